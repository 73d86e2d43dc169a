"""The costs of a job's minibatch, and their file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from elasticdl.errors import ConfigError

_KEYS_TOGETHER = (1.0, 0.860, 0.734, 0.621, 0.520)
"""The keys of 1, 2, 4, 8 and 16 minibatches together, beside the sum of the keys of each one, in
records of Criteo's shape: `python benchmarks/frames.py`."""

_OF_RECORDS = ("feed", "prepare", "compute", "commit", "ps", "bytes_pushed", "bytes_pulled")


@dataclass(frozen=True)
class Costs:
    """The costs of one minibatch, in seconds of a processor core unless another unit is named.

    model: The model that was measured.
    minibatch_size: The records of a minibatch.
    minibatches_per_task: The minibatches of one lease.
    feed, prepare, compute, commit: The costs of the four threads of a worker, with one ps replica.
    worker_frame: The cost of each further ps replica, in `prepare` and in `commit`.
    ps: The cost of all ps replicas together, half for the pull and half for the push.
    ps_frame: The cost for each further replica.
    master: The cost of a task.
    bytes_pushed, bytes_pulled: Bytes on the network, in both calls.
    record_bytes: The bytes of a record in storage.
    start: The cost of a worker until it trains.
    wait: Seconds of waiting at each exchange with the ps replicas: wake-ups, and turns of Python.
    heartbeat: The cost of a heartbeat in the master.
    exchange_minibatches: The minibatches of one exchange with the ps replicas. A pull has each key
        once. A push has the keys of each minibatch, because each gradient is applied on its own.
    """

    model: str
    minibatch_size: int
    minibatches_per_task: float
    feed: float
    prepare: float
    compute: float
    commit: float
    ps: float
    master: float
    bytes_pushed: float
    bytes_pulled: float
    record_bytes: float
    worker_frame: float = 30e-6
    ps_frame: float = 20e-6
    start: float = 5.0
    wait: float = 0.0
    heartbeat: float = 0.0
    exchange_minibatches: int = 1

    @property
    def per_minibatch(self) -> float:
        """The seconds of all processes together, with one ps replica."""
        task = self.master / self.minibatches_per_task
        return self.feed + self.prepare + self.compute + self.commit + self.ps + task

    def of_minibatches(self, size: int) -> Costs:
        """Return the costs of minibatches of another size, with the same costs for each record.

        In reality they are usually lower for larger minibatches: the calls of a framework cost less
        a record.
        """
        times = size / self.minibatch_size
        scaled = {name: getattr(self, name) * times for name in _OF_RECORDS}
        return replace(self, minibatch_size=size, **scaled)

    @property
    def keys_together(self) -> float:
        """The keys of the minibatches of a pull together, beside the sum of the keys of each."""
        doublings = math.log2(self.exchange_minibatches)
        return float(np.interp(doublings, range(len(_KEYS_TOGETHER)), _KEYS_TOGETHER))

    def of_replica(self, num_ps: int, minibatches: float) -> float:
        """Return the seconds that one of the ps replicas works for a pull or a push.

        Args:
            num_ps: The number of ps replicas.
            minibatches: The minibatches whose keys it has.
        """
        return (self.ps * minibatches + self.ps_frame * (num_ps - 1)) / num_ps / 2

    def write(self, path: Path) -> None:
        """Write the costs as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")


def read_costs(path: Path) -> Costs:
    """Read a file that `Costs.write` wrote.

    Raises:
        ConfigError: The file cannot be read, or does not have costs.
    """
    expected = {field.name for field in fields(Costs)}
    try:
        found = json.loads(path.read_text("utf-8"))
        numbers = {name: found[name] for name in expected - {"model"}}
        costs = Costs(model=str(found["model"]), **{n: float(v) for n, v in numbers.items()})  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path}: expected costs that elasticdl simulate --calibrate wrote, found {error!r}"
        ) from error
    if costs.minibatch_size < 1 or min(numbers.values()) < 0:
        raise ConfigError(f"{path}: expected costs of at least 0, found {min(numbers.values())}")
    return costs
