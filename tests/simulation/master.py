"""The master of a simulated job: one process after the other, on one journal."""

import json
from collections import deque
from collections.abc import Generator
from pathlib import Path

from elasticdl.errors import ElasticdlError, LaunchError, StateError, UnavailableError
from elasticdl.master import actions
from elasticdl.master.durable import JobData, open_job
from elasticdl.master.effects import audits
from elasticdl.master.interpreter import Interpreter, Line
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.moves import leading
from elasticdl.master.moves.messages import (
    AbandonMove,
    LostInMove,
    MoveFailed,
    MovePrepared,
    MoveTold,
    PrepareMove,
    TellMoved,
)
from elasticdl.master.moves.steps import RedoLogPlace, Settle, decoded
from elasticdl.master.parameters.answers import CheckpointFailed
from elasticdl.state.memory import MemoryState
from tests.simulation.clockwork import (
    LOOK_SECONDS,
    Call,
    Died,
    Node,
    Scheduler,
    Sleep,
    Until,
)
from tests.simulation.disk import Disk

ANSWER_SECONDS = 10.0  # for a replica to do a step of a move


class Journal(MemoryState):
    """A journal whose writer may be killed before or after what it writes is durable.

    What was appended survives the death of the master. When the machine loses power, the last
    facts that were not synced may be lost, as `elasticdl.state.sqlite` says.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._num_synced = 0  # facts
        self._lengths: list[int] = []  # of the journal after each append that is not synced

    def append(self, facts):
        """Write facts down, if nothing happens to the master."""
        number = self._scheduler.count("append")
        if self._scheduler.fault("kill the master before append", number):
            raise Died
        if self._scheduler.fault("journal fails at append", number):
            raise StateError("the disk is broken")
        super().append(facts)
        self._lengths.append(len(self._facts))
        if self._scheduler.fault("kill the master after append", number):
            raise Died

    def sync(self) -> None:
        """Lose nothing of what was appended so far."""
        self._num_synced, self._lengths = len(self._facts), []

    def lose_power(self) -> None:
        """Lose some of the last appends that are not synced."""
        lengths = [self._num_synced, *self._lengths]
        left = self._scheduler.random.choice(lengths[-20:])
        if left < len(self._facts):
            self._scheduler.tell(f"the journal loses {len(self._facts) - left} facts")
        del self._facts[left:]
        self._num_synced, self._lengths = left, []


class Master(Node):
    """One master process."""

    is_centre = True

    def __init__(self, world) -> None:
        super().__init__(f"master {world.scheduler.count('master')}")
        self.world, self.seconds_ahead = world, 0.0
        began = world.scheduler.now
        self.job, is_new = open_job(
            world.journal,
            world.config,
            lambda: JobData(world.shards()),
            clock=lambda: world.scheduler.now - began + self.seconds_ahead,
        )
        self.core = self.job.core
        self.interpreter = Interpreter(
            self.core,
            self,
            self,
            world.folder,
            self.job.id,
            tell=lambda note: world.scheduler.tell(f"{self.name}: {note.text}"),
            event=lambda event: self.do(lambda core, now: event(now)),
            run=self._run,
            sync=self.job.sync,
        )
        self.interpreter._disk = _SameThread(world.disk)
        if not is_new:
            with world.disk.noting():
                self.interpreter.take_up()
        self._lines: dict[object, float] = {}
        self._is_new = is_new
        self._lost: set[str] = set()  # sessions of those who were lost in moves
        self._told = Until()  # a replica answers in a move, or is lost
        self._in_line: deque[Generator] = deque()  # what takes time and asks replicas
        self._staged: tuple[Path, list[str]] | None = None  # parts of a checkpoint, and entries

    def main(self):
        """Take the job up, and look for silent processes."""
        is_begun = not self._is_new and any(self.core.members)  # as `Master` asks
        self.do(lambda core, now: core.resume(now) if is_begun else core.begin(now))
        while True:
            yield Sleep(self.core.members.tick_seconds)
            self.do(lambda core, now: core.tick(now))

    def do(self, event):
        """Have an event happen; it is written down before anybody hears of it."""
        try:
            answer, wanted = self.job.handle(lambda: event(self.core, self.job.now()))
        except StateError as error:
            self.world.scheduler.tell(f"{self.name}: {error}")
            raise Died from error
        for action in wanted:
            match action:
                case actions.WriteCheckpoint():
                    self._enqueue(self._checkpoint(action))
                case actions.ExpireRows():
                    self._enqueue(self._expire_rows(action))
                case PrepareMove():
                    self._enqueue(self._prepare_move(action))
                case TellMoved():
                    self._enqueue(self._tell_moved(action))
                case AbandonMove():
                    self._enqueue(self._lead(leading.abandon(action, self.clock)))
                case LostInMove(session):
                    self._lost.add(session)
                    self._told.wake()
                case _:
                    self.interpreter.carry_out(action)
        if self.core.has_ended:
            self.world.scheduler.stop()
        return answer

    def clock(self) -> float:
        return self.world.scheduler.now

    def _enqueue(self, steps: Generator) -> None:
        """Have something done after what was wanted before."""
        self._in_line.append(steps)
        if len(self._in_line) == 1:
            self.world.scheduler.spawn(self, self._work_off())

    def _work_off(self):
        while self._in_line:
            yield from self._in_line[0]
            self._in_line.popleft()

    def _checkpoint(self, action):
        """Have the replicas write their parts one after the other; then the rest follows."""
        world = self.world
        staged = world.folder / f"parts-{world.scheduler.count('checkpoint')}"
        entries = []
        try:
            for index in range(len(self.core.parameters.route.addresses)):
                yield Sleep(0.05)
                while waits := world.seconds_cut_off():
                    yield Sleep(waits)
                entries.append(world.write_part(self.replicas()[index], staged))
        except ElasticdlError as error:
            was_unreachable = isinstance(error, UnavailableError)
            answer = CheckpointFailed(action.version, str(error), was_unreachable)
            self.do(lambda core, now: core.answered(answer, now))
            return
        self._staged = staged, entries
        self.interpreter.carry_out(action)

    def _expire_rows(self, action):
        """Wait as long as a move holds a replica, as a call to it does; then the rest follows."""
        while self._is_held():
            yield Sleep(LOOK_SECONDS)
        self.interpreter.carry_out(action)

    def _is_held(self) -> bool:
        route = self.core.parameters.route
        found = [self.world.by_address(address) for address in route.addresses]
        there = [node.driven for node in found if node is not None and node.serves]
        return any(driven.entrance(route.layout, []) == (False, None) for driven in there)

    # --- moves -----------------------------------------------------------------------------------

    def _prepare_move(self, action):
        """Do what `elasticdl.master.moving` says, with the replicas' time between."""
        world = self.world

        def redo_log_of(replica, layout):
            folder = world.redo_log_of(replica, layout)
            return RedoLogPlace(str(folder), world.redo_bytes) if folder else None

        try:
            yield from self._lead(leading.prepare(action, None, redo_log_of, self.clock), action)
        except ElasticdlError as error:
            answer = MoveFailed(action, str(error), isinstance(error, leading.MoveRefusedError))
        else:
            answer = MovePrepared(action)
        self.do(lambda core, now: core.answered(answer, now))

    def _tell_moved(self, action):
        self.job.sync()
        is_everybody = yield from self._lead(leading.tell(action, self.clock))
        if is_everybody:
            self.world.remove_redo_logs(but=action.layout)
        answer = MoveTold(action.layout, is_everybody)
        self.do(lambda core, now: core.answered(answer, now))

    def _lead(self, led, action=None):
        answers = failure = None
        while True:
            try:
                wanted = led.send(answers) if failure is None else led.throw(failure)
            except StopIteration as end:
                return end.value
            answers = failure = None
            match wanted:
                case leading.AskReplicas(steps, needed):
                    try:
                        answers = yield from self._ask(steps, needed)
                    except ElasticdlError as error:
                        failure = error
                case leading.Pause(seconds):
                    yield Sleep(seconds)
                case leading.WritePoint(parts):
                    try:
                        yield from self._write_point(action, parts)
                    except ElasticdlError as error:
                        failure = error

    def _write_point(self, action, parts):
        """Write the checkpoint of a move, of the parts that replicas have written."""
        world = self.world
        staged = world.folder / f"parts-{world.scheduler.count('checkpoint')}"
        self._staged = staged, (yield from self._lead(parts(staged)))
        folder = self.interpreter.checkpoint_dir(is_private=True)
        with world.disk.noting():
            self.interpreter._write_whole(folder, action.version, self.checkpoint)

    def _ask(self, steps, needed):
        """Ask replicas, all at the same time; nobody waits for those that are lost."""
        answers: dict[object, object] = {}
        for seated, step in steps.items():
            self.world.scheduler.spawn(self, self._ask_one(seated, step, answers))
        while True:
            if any(seated.session in self._lost for seated in needed):
                raise UnavailableError("a ps replica was lost")
            here = [seated for seated in steps if seated.session not in self._lost]
            if all(seated in answers for seated in here):
                return {seated: answers[seated] for seated in here}
            yield self._told

    def _ask_one(self, seated, step, answers):
        is_settle = isinstance(step, Settle)
        until = self.clock() + (step.wait_ms / 1000 if is_settle else 0.0)
        call = Call(
            lambda: self.world.by_address(seated.address),
            lambda node: node.move_step(step),
            ANSWER_SECONDS,
        )
        try:
            while True:
                told = decoded((yield call))
                if not is_settle or self.clock() >= until or _has_come(step.limits, told.marks):
                    break
                yield Sleep(LOOK_SECONDS)
        except ElasticdlError as error:
            answers[seated] = error
        except (ValueError, RuntimeError) as error:
            answers[seated] = UnavailableError(str(error))
        else:
            answers[seated] = told
        self._told.wake()

    def _run(self, effect, line):
        """Run an effect a little later, those of one line one after the other."""
        scheduler = self.world.scheduler
        begin = max(self._lines.get(line, 0.0), scheduler.now) + 0.01
        self._lines[line] = begin + 0.005

        def run():
            if waits := self.world.seconds_cut_off():  # its calls wait for who does not answer
                scheduler.at(waits, lambda: scheduler.on(self, run))
                return
            if line is Line.STORAGE:
                with self.world.disk.noting():
                    then = effect()
            else:
                then = effect()
            scheduler.at(0.005, lambda: scheduler.on(self, then))

        scheduler.at(begin - scheduler.now, lambda: scheduler.on(self, run))

    # --- `JobProcesses` --------------------------------------------------------------------------

    def start(self, role, index):
        return self.world.start(role, index)

    def adopt(self, handle):
        if not self.world.watch(handle):
            raise LaunchError("it is gone")

    def stop(self, handle):
        self.world.stop(handle)

    def exited(self, exited):
        self.do(lambda core, now: core.process_exited(exited, now))

    # --- `ParameterAccess` -----------------------------------------------------------------------

    def replicas(self):
        route = self.core.parameters.route
        found = [self.world.by_address(address) for address in route.addresses]
        for node in found:
            if node is None:
                raise UnavailableError("a ps replica is gone")
            is_now, _ = node.driving().entrance(route.layout, [])
            if not is_now and self.world.checks_layouts:
                raise UnavailableError("the model is elsewhere, or a move holds the replica")
        return found

    def clients(self):
        return [node.reached() for node in self.replicas()]

    def checkpoint(self, directory):
        """Put the parts where they belong: each replica wrote its own already, and synced it."""
        folder, entries = self._staged
        for part in sorted(folder.iterdir()):
            part.rename(directory / part.name)
        return entries

    def audit(self, first=0):
        return audits([client.audit(first)[0] for client in self.clients()])

    def tally(self):
        tallies = [json.loads(client.stats())[0]["watermarks"] for client in self.clients()]
        return {name: sum(tally[name] for tally in tallies) for name in tallies[0]}

    def expire(self, now_seconds=None):
        self.clients()
        return ""

    def applied_by(self, address, role):
        node = self.world.by_address(address)
        if node is None:
            raise UnavailableError("it is gone")
        (applied,) = node.reached().audit()
        return Applied(applied[:, 0], applied[:, 1])


def _has_come(limits, marks) -> bool:
    """Whether a replica has applied what others have."""
    applied = {task: next_index for task, _, next_index, _ in marks.watermarks}
    return all(applied.get(task, 0) >= end for task, end in limits)


class _SameThread:
    """`elasticdl.checkpoints.disk.Disk` without a thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def do(self, what, work):
        """Do it now."""
        return work()

    def elsewhere(self):
        """Somebody else works within this block."""
        return self._disk.resting()
