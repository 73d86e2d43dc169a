"""What goes wrong in simulated jobs, drawn from a seed; and jobs by the thousand."""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.simulation.clockwork import Fault
from tests.simulation.ps_job import SILENCE_SECONDS, BoundedJob, PsJob, SynchronousJob
from tests.simulation.stream_job import StreamJob

JOB_SECONDS = 2.5  # that a job takes if nothing goes wrong

PROCESS_FAULTS = [
    "kill worker",
    "kill ps",
    "kill master",
    "pause worker",
    "pause ps",
    "cut off worker",
    "cut off ps",
    "ask ps to end",
    "power fails",
    "clock of the master jumps",
]

MOVE_FAULTS = [
    "kill the master",
    "kill ps",
    "kill ps",
    "kill a worker",
    "ask ps to end",
    "ask ps to end",
    "pause ps",
    "cut off ps",
    "power fails",
]
"""What happens before a replica does a step of a move; `which`: of the living ones."""


def drawn(seed: int, process_faults: Sequence[str] = PROCESS_FAULTS) -> list[Fault]:
    """Draw what goes wrong in a job."""
    return list(_drawn(random.Random(seed), process_faults))


def _drawn(rng: random.Random, process_faults: Sequence[str]) -> Iterator[Fault]:
    for _ in range(rng.randrange(1, 6)):
        kind = rng.choice(process_faults)
        # Some come back while others have their tasks, before or after they were given up.
        lasts = rng.choice([0.5, SILENCE_SECONDS - 0.1, SILENCE_SECONDS + rng.uniform(0.0, 3.0)])
        seconds = lasts if kind.startswith(("pause", "cut off", "clock")) else 0.0
        yield Fault(
            kind, rng.uniform(0.0, JOB_SECONDS * rng.choice([1.0, 2.0])), seconds, rng.randrange(4)
        )
    for _ in range(rng.randrange(0, 3)):
        when = rng.choice(["kill the master before append", "kill the master after append"])
        yield Fault(when, rng.randrange(200))
    if rng.random() < 0.2:
        yield Fault("journal fails at append", rng.randrange(200))
    for _ in range(rng.randrange(0, 3)):
        yield Fault("write fails", rng.randrange(12))
    if rng.random() < 0.3:
        yield Fault("kill who writes at file operation", rng.randrange(160))
    if rng.random() < 0.2:
        yield Fault("the disk is full at file operation", rng.randrange(160))
    if rng.random() < 0.2:
        yield Fault("ask ps to end at file operation", rng.randrange(80), 0.0, rng.randrange(3))
    for _ in range(rng.randrange(0, 8)):
        kind = rng.choice(["drop message", "delay message", "deliver message twice"])
        seconds = 0.0 if kind.startswith("drop") else rng.choice([0.01, 0.5, 5.0])
        yield Fault(kind, rng.randrange(1500), seconds)
    if rng.random() < 0.5:
        yield from _moves(rng)
    if rng.random() < 0.4:
        seconds = rng.choice([0.5, SILENCE_SECONDS + 1.0])
        yield Fault("source is away", rng.uniform(0.0, JOB_SECONDS), seconds)


def _moves(rng: random.Random) -> Iterator[Fault]:
    """Draw moves of the model to other numbers of ps replicas, and what happens in them.

    Some are asked for with a report of the last tasks, so that they end in each phase after it.
    """
    for _ in range(rng.choice([1, 1, 2])):
        if rng.random() < 0.6:
            yield Fault("scale ps", rng.uniform(0.0, JOB_SECONDS), 0.0, rng.randrange(4))
        else:
            yield Fault("scale ps with report", rng.randrange(20), 0.0, rng.randrange(4))
    for _ in range(rng.randrange(0, 3)):
        what = rng.choice(MOVE_FAULTS)
        lasts = (
            rng.choice([0.5, SILENCE_SECONDS + 1.0]) if what in ("pause ps", "cut off ps") else 0
        )
        yield Fault(f"{what} before move step", rng.randrange(60), lasts, rng.randrange(1, 4))
    for _ in range(rng.randrange(0, 3)):
        what = rng.choice(["nobody hears of move step", "move step is lost", "again"])
        if what != "again":
            yield Fault(what, rng.randrange(60))
        else:
            yield Fault("move step comes again", rng.randrange(60), rng.choice([0.05, 0.5, 2.0]))


def a_move_at_the_end(seed: int) -> list[Fault]:
    """Draw a move that is asked for with one of the last tasks, and a step that comes late."""
    rng = random.Random(seed)
    lost = [Fault("move step is lost", rng.randrange(5, 40)) for _ in range(2)]
    return [Fault("scale ps with report", rng.randrange(8, 16), 0.0, rng.randrange(4)), *lost]


def asked_to_end_in_a_move(seed: int) -> list[Fault]:
    """Draw a move, and ps replicas that are asked to end in its middle."""
    rng = random.Random(seed)
    scale = Fault("scale ps", rng.uniform(0.5, JOB_SECONDS), 0.0, rng.randrange(4))
    step = rng.randrange(10, 40)
    lost = Fault("move step is lost", step)
    asked = step + rng.randrange(3)
    return [scale, lost, Fault("ask ps to end before move step", asked, 0.0, rng.randrange(3))]


def asked_to_end_again(seed: int) -> list[Fault]:
    """Draw a replica that is asked to end, and its successor while files are written."""
    rng = random.Random(seed)
    which = rng.randrange(3)
    first = Fault("ask ps to end", rng.uniform(0.6, 1.6), 0.0, which)
    return [first, Fault("ask ps to end at file operation", rng.randrange(60), 0.0, which)]


def folder_in_memory() -> tempfile.TemporaryDirectory:
    """Return a folder that is synced in no time, where the machine has one."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(dir=in_memory)


KINDS = {
    "each as it comes": PsJob,
    "bounded": BoundedJob,
    "rounds": SynchronousJob,
    "stream": StreamJob,
}


def kind_of(seed: int) -> str:
    """Return which kind of job has a seed: of six, three apply each gradient as it comes."""
    first, *others = KINDS
    return (first, first, first, *others)[seed % (3 + len(others))]


class Many:
    """Jobs by their seeds, each in a folder of its own that goes with it."""

    def __init__(
        self,
        folder: Path,
        kind: type[PsJob] | None = None,
        faults: Sequence[str] | Callable[[int], list[Fault]] = PROCESS_FAULTS,
    ) -> None:
        """Given the process faults to draw from, or what draws all faults of a seed."""
        self._folder, self._kind = folder, kind
        self._drawn = faults if callable(faults) else partial(drawn, process_faults=faults)

    def run(self, seed: int, faults: list[Fault] | None = None) -> tuple[str | None, PsJob]:
        """Run a job; return what was wrong with it, None if nothing was, and the job."""
        folder = self._folder / "job"
        folder.mkdir()
        wanted = self._drawn(seed) if faults is None else faults
        kind = self._kind or KINDS[kind_of(seed)]
        job = kind(seed, wanted, folder)
        try:
            job.run()
        except AssertionError as error:
            return str(error).partition("\n")[0], job
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what Rust panics with is no `Exception`
            return f"{type(error).__name__}: {error}", job
        finally:
            shutil.rmtree(folder)
        return None, job

    def first_of(self, seeds: Iterable[int]) -> str | None:
        """Return the story of the first job that goes wrong; None if none does."""
        for seed in seeds:
            if (wrong := self.run(seed)[0]) is not None:
                return self.story(seed, wrong)
        return None

    def story(self, seed: int, found: str) -> str:
        """Return what goes wrong with as few of its faults as can be, as lines to be read.

        Args:
            seed: Of the job.
            found: What was wrong with it at first.
        """
        faults, is_smaller = self._drawn(seed), True
        while is_smaller:
            is_smaller = False
            for fault in faults:
                rest = [other for other in faults if other is not fault]
                if self.run(seed, rest)[0] is not None:
                    faults, is_smaller = rest, True
                    break
        wrong, job = self.run(seed, faults)
        if wrong is None:
            wrong = f"{found} (and not again: the same seed was another run)"
        return "\n".join([f"seed {seed}: {wrong}", *map(str, faults), *job.scheduler.story])
