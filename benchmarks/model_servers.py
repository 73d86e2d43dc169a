"""A tower over images on a model server against the same within each worker.

    python benchmarks/model_servers.py [--short]

`tower_model.py`: each record has ten images, skewed, of 4,000; a tower makes 12 numbers of the
4,096 of an image. One ps replica, two workers, minibatches of 256, two model servers or none:
records/s, the bytes that a worker moves for a record, and how often the tower is computed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jobs import DEADLINE_SECONDS, environment, summarise
from report import Side, asked_for_short, compare, write_results
from tower_model import IMAGES, OTHERS, WIDTH

from elasticdl._core import RecordWriter
from elasticdl.observe.events import read_events

RECORDS, NUM_IMAGES, NUM_OTHERS, MINIBATCH = 30_000, 4_000, 100_000, 256
WORKERS = SERVERS = 2
OUTPUT = 12
_COUNTED = re.compile(
    r"(\d+) requests of (\d+) ids in (\d+) windows \((\d+) closed by time\): (\d+) computed, "
    r"(\d+) backward, (\d+) bytes an output, (\d+) bytes received, (\d+) sent"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of one job."""

    records_per_second: float
    bytes_a_record: float  # that workers sent and received
    computed: int | None = None  # outputs, by the model server
    asked: int | None = None  # ids, by workers
    output_bytes: int | None = None


def write_data(folder: Path) -> float:
    """Write the records; return how many different images a minibatch has on average."""
    rng = np.random.default_rng(0)
    images = (NUM_IMAGES * rng.random((RECORDS, IMAGES)) ** 3).astype(np.int64)
    others = rng.integers(0, NUM_OTHERS, (RECORDS, OTHERS))
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.hstack([images, others]), 8)):
        with RecordWriter(str(folder / f"part-{number}.recordio")) as writer:
            writer.write_many(" ".join(map(str, record)).encode() for record in part.tolist())
    whole = RECORDS // MINIBATCH * MINIBATCH
    batches = images[:whole].reshape(-1, MINIBATCH * IMAGES)
    return float(np.mean([len(np.unique(batch)) for batch in batches]))


def run(data: Path, num_servers: int) -> Measured:
    """Run one job."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        job_dir = Path(folder, "job")
        command = [
            *("elasticdl", "train", f"--model_zoo={Path(__file__).parent}"),
            *("--model_def=tower_model.forward", f"--training_data={data}"),
            *("--distribution_strategy=ParameterServerStrategy", f"--num_workers={WORKERS}"),
            *(f"--minibatch_size={MINIBATCH}", "--num_minibatches_per_task=10"),
            *(f"--num_model_servers={num_servers}", "--num_epochs=1", "--heartbeat_seconds=0.2"),
            f"--job_dir={job_dir}",
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment()
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        usage = {
            event["index"]: event["bytes_sent"] + event["bytes_received"]
            for event in read_events(job_dir)
            if event["event"] == "usage" and event["role"] == "worker"
        }
        moved, speed = sum(usage.values()), summarise(job_dir).records_per_second
        if not num_servers:
            return Measured(speed, moved / RECORDS)
        logs = (job_dir / "logs").glob("modelserver-*.log")
        counts = np.array([_COUNTED.findall(log.read_text())[-1] for log in logs], np.int64)
        _, ids, _, _, computed, _, _, received, sent = counts.sum(0).tolist()
        moved += received + sent
        return Measured(speed, moved / RECORDS, computed, ids, int(counts[0, 6]))


def main() -> None:
    """Measure and write `benchmarks/results/model_servers.json`."""
    is_short = asked_for_short(__doc__)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        data = Path(folder, "data")
        different = write_data(data)
        measured: dict[int, list[Measured]] = {SERVERS: [], 0: []}
        for number in range(1 if is_short else 2):
            for servers in (SERVERS, 0) if number % 2 == 0 else (0, SERVERS):
                measured[servers].append(run(data, servers))
                print(f"  run {number + 1}, {servers} model servers: {measured[servers][-1]}")
    ours, peer = measured[SERVERS], measured[0]
    last = ours[-1]
    assert last.asked is not None
    assert last.computed is not None
    assert last.output_bytes == OUTPUT * 4
    print(f"an image is {WIDTH * 4:,} bytes in the worker, {last.output_bytes} from a server")
    print(
        f"of {RECORDS * IMAGES:,} images workers asked for {last.asked:,} (each once a minibatch, "
        f"{different:,.0f} of {MINIBATCH * IMAGES:,}); the servers computed {last.computed:,}, "
        f"each once a window: {last.computed / last.asked:.3f} of those asked for"
    )
    lower = {"higher_is_better": False}
    rows = [
        compare(
            "bytes of an image that a worker gets",
            "bytes",
            Side((float(last.output_bytes),), **lower),
            Side((WIDTH * 4.0,), **lower),
        ),
        compare(
            "bytes that workers move for a record, gradients of variables and all",
            "bytes",
            Side(tuple(one.bytes_a_record for one in ours), **lower),
            Side(tuple(one.bytes_a_record for one in peer), **lower),
        ),
        compare(
            "two workers, two model servers",
            "records/s",
            Side(tuple(one.records_per_second for one in ours)),
            Side(tuple(one.records_per_second for one in peer)),
        ),
        compare(
            "images computed forward",
            "images",
            Side((float(last.computed),), **lower),
            Side((float(RECORDS * IMAGES),), **lower),
        ),
    ]
    write_results("model_servers", rows, {"minibatch": MINIBATCH}, keep=not is_short)


if __name__ == "__main__":
    main()
