"""Published figures of large jobs, and costs with which to simulate them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasticdl.packages.simulate.cluster import Cluster
from elasticdl.packages.simulate.costs import Costs
from elasticdl.settings.training import MOST_MINIBATCHES_PER_TASK

FLIGHTS = Costs(
    model="flights.deepfm.forward",
    minibatch_size=512,
    minibatches_per_task=20,
    feed=0.00097,
    prepare=0.00037,
    compute=0.00162,
    commit=0.00029,
    ps=0.00091,
    master=0.00094,
    bytes_pushed=258_000,
    bytes_pulled=153_000,
    record_bytes=210,
    worker_frame=12e-6,
    ps_frame=48e-6,
    start=6.4,
    wait=0.0008,
    heartbeat=0.0012,
)
"""The DeepFM of `make demo`: the mean of two calibrations on two shared cores (AMD EPYC).

`elasticdl simulate --calibrate` measured a minibatch with one ps replica. `worker_frame` and
`ps_frame` are of `python benchmarks/frames.py`: a call of 800 keys to 1 and to 16 replicas, and a
frame with 1,000 connections. `master` and `heartbeat` are of `benchmarks/members.py --costs`.
"""

_EXAMPLE_BYTES = 10_000
_OF_8_BY_8 = 8 * 512 / 52_000  # seconds of a minibatch of one of 8 workers

PUBLISHED_LR = Costs(
    model="sparse LR of TensorFlow 1, as published",
    minibatch_size=512,
    minibatches_per_task=20,
    feed=0.0,
    prepare=0.0,
    compute=_OF_8_BY_8,
    commit=0.0,
    ps=512 * 20e-6,  # less than half a core of 16 replicas at 440,000 examples/s
    master=0.0,
    bytes_pushed=512 * 5_000.0,
    bytes_pulled=512 * 5_000.0,
    record_bytes=_EXAMPLE_BYTES,
    worker_frame=0.0,
    ps_frame=0.0,
)
"""Costs that give the first row of the published table: 8 workers, 52,000 examples/s."""


_LARGE_TASKS = replace(FLIGHTS, minibatches_per_task=MOST_MINIBATCHES_PER_TASK)
"""Tasks as they are by themselves in an epoch of ten billion records or more."""


@dataclass(frozen=True)
class PublishedJob:
    """A published job.

    published: The examples/s, or None if not published.
    said: The words of the publication.
    minibatch_size: The minibatch size of the simulation; None: that of the costs.
    exchange_minibatches: The minibatches of one exchange with the ps replicas.
    """

    workers: int
    ps: int
    published: float | None = None
    said: str = ""
    minibatch_size: int | None = None
    exchange_minibatches: int = 1


@dataclass(frozen=True)
class Preset:
    """Published jobs on clusters, and the costs with which they are simulated here."""

    title: str
    costs: Costs
    cluster: Cluster
    jobs: Sequence[PublishedJob]
    source: str


PRESETS = {
    "sparse-lr": Preset(
        "Sparse LR, 7 billion features",
        PUBLISHED_LR,
        Cluster(1, 1, worker_cores=2, ps_cores=2, input_bandwidth=4.9e9),
        (
            PublishedJob(8, 8, 52_000, "19 to 23 cores"),
            PublishedJob(64, 16, 260_000),
            PublishedJob(128, 16, 440_000, "278 cores"),
            PublishedJob(160, 20, 500_000, "360 cores; bound by 4.9 GB/s from HDFS"),
            PublishedJob(160, 32, None, "input bandwidth is the wall"),
        ),
        "TensorFlow 1 with parameter servers and FTRL, 250 million examples of 10 KB",
    ),
    "xdl": Preset(
        "1,000 workers",
        _LARGE_TASKS,
        Cluster(1, 1),
        (
            PublishedJob(100, 10),
            PublishedJob(100, 10, exchange_minibatches=4),
            PublishedJob(200, 20, said="TensorFlow fades past 200 workers (XDL's claim)"),
            PublishedJob(200, 20, exchange_minibatches=8),
            PublishedJob(1000, 100, said="XDL: nearly linear up to 1,000 workers (a claim)"),
            PublishedJob(1000, 100, exchange_minibatches=16),
            PublishedJob(1000, 250),
            PublishedJob(1000, 250, exchange_minibatches=16),
            PublishedJob(1000, 250, minibatch_size=8_192),
        ),
        "alibaba/x-deeplearning, README and issue 4; here the flights, with large tasks",
    ),
    "nestpipe": Preset(
        "1,536 workers",
        _LARGE_TASKS,
        Cluster(1, 1),
        (
            PublishedJob(1536, 154, said="NestPipe: efficiency of 94.07 % (GPUs)"),
            PublishedJob(1536, 154, exchange_minibatches=16),
            PublishedJob(1536, 384, exchange_minibatches=16),
        ),
        "arXiv 2604.06956; here the flights, on processors, with large tasks",
    ),
}
