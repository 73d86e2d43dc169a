"""A job that trains on a stream: partitions that grow, positions without a message, retention.

The source is another system: nothing that happens to the job happens to it. It may be away for a
while, and forgets what the job says that nobody asks for again.
"""

import random
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np

from elasticdl.errors import DataError
from elasticdl.job import Shard, Task
from elasticdl.master.features import sources
from elasticdl.master.parameters import retired
from tests.simulation.clockwork import Fault, Sleep
from tests.simulation.processes import Replica
from tests.simulation.ps_job import PsJob

LOOK_SECONDS = 0.1  # between two looks of the master at the source
APART = 1_000  # between the first keys of two partitions


class Source:
    """Partitions of messages, which arrive as time goes on."""

    def __init__(self, rng: random.Random) -> None:
        self.names = [f"topic-{number}" for number in range(rng.choice([1, 2, 3]))]
        self._rates = {name: rng.choice([10.0, 40.0, 1_000.0]) for name in self.names}
        self._lengths = {name: rng.randrange(10, 90) for name in self.names}
        self._messages = {
            name: [at for at in range(length) if rng.random() < 0.8]
            for name, length in self._lengths.items()
        }
        self.kept_from = dict.fromkeys(self.names, 0)
        self.away_until = 0.0

    def ends(self, now: float) -> dict[str, int]:
        """Return how far each partition goes."""
        return {n: min(self._lengths[n], int(now * self._rates[n])) for n in self.names}

    def is_over(self, now: float) -> bool:
        """Whether nothing more comes."""
        return self.ends(now) == self._lengths

    def look(self, now: float) -> list[Shard]:
        """Return what there is of each partition."""
        return [Shard(name, self.kept_from[name], end) for name, end in self.ends(now).items()]

    def forget(self, positions: dict[str, int]) -> None:
        """Delete what is before a position."""
        for name, position in positions.items():
            self.kept_from[name] = max(self.kept_from[name], position)

    def read(self, shard: Shard) -> np.ndarray:
        """Return the keys of the messages in a range."""
        kept = self.kept_from[shard.name]
        if shard.start < kept:  # only one whose lease is over may come to this
            raise DataError(f"{shard} is read, and forgotten up to {kept}")
        first = APART * self.names.index(shard.name)
        messages = self._messages[shard.name]
        return np.array(
            [first + at for at in messages if shard.start <= at < shard.end], dtype=np.int64
        )

    def count(self, shard: Shard) -> int:
        """Return how many messages a range has, forgotten or not."""
        return sum(shard.start <= at < shard.end for at in self._messages[shard.name])

    def all(self) -> list[int]:
        """Return the keys of all messages."""
        whole = (Shard(name, self.kept_from[name], 10**6) for name in self.names)
        before = (
            APART * number + at
            for number, name in enumerate(self.names)
            for at in self._messages[name]
            if at < self.kept_from[name]
        )
        return [*before, *(int(key) for shard in whole for key in self.read(shard))]


class StreamJob(PsJob):
    """Each message is trained once, and nothing is asked for that the source has forgotten."""

    num_epochs = 1

    def __init__(self, seed: int, faults: list[Fault], folder: Path) -> None:
        self.source = Source(random.Random(seed + 1))
        self.keeps_order = random.Random(seed + 2).random() < 0.5
        self.training_data = "kafka://broker/topic" + self.keeps_order * "?order=partition"
        super().__init__(seed, faults, folder)

    def shards(self) -> tuple[Shard, ...]:
        return tuple(Shard(name, 0, 0) for name in self.source.names)

    def records_of(self, task: Task) -> np.ndarray:
        return self.source.read(task.shard)

    def waits_to_read(self) -> float:
        return max(0.0, self.source.away_until - self.scheduler.now)

    def follow(self, master):
        """Ask what has arrived, again and again, as `Master._follow` does."""
        source, told = self.source, master.core.features.of(sources.RecordSource)
        while True:
            now = self.scheduler.now
            if source.away_until > now:
                master.do(lambda core, now: told.went_away("the source does not answer"))
            else:
                if source.is_over(now):
                    master.do(lambda core, now: told.came_to_end())
                found = source.look(now)
                master.do(lambda core, now: told.arrived(found, now))  # noqa: B023
                master.interpreter.forget_records(source, told.kept_from())
            yield Sleep(LOOK_SECONDS)

    def source_is_away(self, seconds: float) -> None:
        self.source.away_until = self.scheduler.now + seconds

    def run(self) -> None:
        """Let the job run; it forgets what is done as soon as it may."""
        with mock.patch.object(retired, "_AT_ONCE", 3):
            super().run()

    def applied_at(self, replica: Replica) -> None:
        """Each partition has whole tasks, then one of which a part is there, then none."""
        if not self.keeps_order or replica.driven.store is None or self.master is None:
            return
        (audit,) = replica.driven.client().audit()
        has = {task: next_index for task, next_index, _ in audit.tolist()}
        table = self.master.core.tasks.training
        incomplete: dict[str, int] = {}
        for task in range(table.first, len(table)):
            piece = table.piece(task)
            before = incomplete.get(piece.name)
            words = f"{replica.name} has a part of task {task}, and lacks one of task {before}"
            assert before is None or not has.get(task), f"{words}, both of {piece.name}"
            if has.get(task, 0) < -(-self.source.count(piece) // self.minibatch_size):
                incomplete.setdefault(piece.name, task)

    def check_counts(self) -> None:
        found: Counter[int] = Counter()
        for client in self.last_stores():
            for keys, rows in client.scan(0):
                found.update(dict(zip(keys.tolist(), rows[:, 0].astype(int).tolist(), strict=True)))
        expected = dict.fromkeys(self.source.all(), 1)
        wrong = {key: found[key] for key in {*expected, *found} if found[key] != expected.get(key)}
        assert not wrong, f"messages by times trained, if not once: {wrong}"
