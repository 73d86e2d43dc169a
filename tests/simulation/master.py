"""The master of a simulated job: one process after the other, on one journal."""

import json
from pathlib import Path

from elasticdl.errors import ElasticdlError, LaunchError, StateError, UnavailableError
from elasticdl.job import Shard
from elasticdl.master import actions
from elasticdl.master.durable import JobData, open_job
from elasticdl.master.effects import audits
from elasticdl.master.interpreter import Interpreter, Line
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.parameters.answers import CheckpointFailed
from elasticdl.state.memory import MemoryState
from tests.simulation.clockwork import Died, Node, Scheduler, Sleep
from tests.simulation.disk import Disk


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
            lambda: JobData((Shard("records", 0, world.num_records),)),
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
        self._lines: dict[object, float] = {}
        self._is_new = is_new
        self._parts: list[Path] = []  # of the checkpoint that is being written

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
            if isinstance(action, actions.WriteCheckpoint):
                self.world.scheduler.spawn(self, self._checkpoint(action))
            else:
                self.interpreter.carry_out(action)
        if self.core.has_ended:
            self.world.scheduler.stop()
        return answer

    def _checkpoint(self, action):
        """Have the replicas write their parts one after the other; then the rest follows."""
        world = self.world
        staged = world.folder / f"parts-{world.scheduler.count('checkpoint')}"
        parts = []
        try:
            for index in range(world.num_ps):
                yield Sleep(0.05)
                while waits := world.seconds_cut_off():
                    yield Sleep(waits)
                part = staged / str(index)
                world.write_part(self.clients()[index], part)
                parts.append(part)
        except ElasticdlError as error:
            was_unreachable = isinstance(error, UnavailableError)
            answer = CheckpointFailed(action.version, str(error), was_unreachable)
            self.do(lambda core, now: core.answered(answer, now))
            return
        self._parts = parts
        self.interpreter.carry_out(action)

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

    def clients(self):
        found = [self.world.by_address(address) for address in self.core.ps_route().addresses]
        if not all(found):
            raise UnavailableError("a ps replica is gone")
        return [node.reached() for node in found]

    def checkpoint(self, directory):
        """Put the parts where they belong: each replica wrote its own there, and synced it."""
        for part in self._parts:
            part.rename(directory / part.name)
        return [json.dumps({"part": part.name}) for part in self._parts]

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
