"""How fast a job is on a topic of Kafka, against the same job on files with the same records.

    python benchmarks/stream.py [--records=800_000] [--runs=5] [--short]

The counting model of the tests: two workers and a ps replica; the broker has four partitions, and
shares the cores. A job on a topic that has no end goes on until all is trained, and is drained.
Each job's counts must be exact. Needs Java 17 and Maven (`python -m scripts.kafka.jars`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from jobs import environment, summarise
from report import Row, compare, interleave, write_results

from scripts.chaos import job as counting
from scripts.kafka.broker import KafkaBroker

NUM_PARTITIONS = 4
_LOOK_SECONDS = 0.5
MINIBATCH_SIZE, MINIBATCHES_PER_TASK = 64, 25


def main() -> None:
    """Measure and write `benchmarks/results/stream.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=800_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="fewer records and runs, not kept")
    words = parser.parse_args()
    records, runs = (300_000, 1) if words.short else (words.records, words.runs)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        found = measure(records, runs, Path(folder))
    notes = {"records": records, "minibatch": MINIBATCH_SIZE, "partitions": NUM_PARTITIONS}
    write_results("stream", found, notes, keep=not words.short)


def measure(records: int, runs: int, folder: Path) -> list[Row]:
    """Run the jobs in turn; return a row for each kind of topic."""
    rng = np.random.default_rng(0)
    ids = (counting.NUM_IDS * rng.random((records, counting.IDS_PER_RECORD)) ** 3).astype(np.int64)
    counts = np.bincount(ids.ravel(), minlength=counting.NUM_IDS)
    counting.write_data(folder / "files", np.array_split(ids, NUM_PARTITIONS))
    with KafkaBroker(folder / "kafka") as broker:
        send(broker.address, ids)
        topic = f"kafka://{broker.address}/ids"
        job = partial(run, folder, counts)
        sides: dict[str, Callable[[], float]] = {
            "files": partial(job, folder / "files", 0),
            "a topic with an end": partial(job, f"{topic}?end=latest", 0),
            "a topic without an end": partial(job, topic, records),
        }
        found = interleave(sides, runs)
    files = found.pop("files")
    return [compare(f"{what}, against files", "records/s", of, files) for what, of in found.items()]


def send(address: str, ids: counting.Ids) -> None:
    """Send lines of ids to a new topic, a quarter of them to each partition."""
    servers = {"bootstrap.servers": address, "log_level": 0}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic("ids", NUM_PARTITIONS)])["ids"].result(60)
    producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 20})
    for number, record in enumerate(ids.tolist()):
        message = " ".join(map(str, record)).encode()
        producer.produce("ids", message, partition=number % NUM_PARTITIONS)
        producer.poll(0)
        if number % 10_000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0


def run(folder: Path, counts: counting.Ids, place: str | Path, drained_at: int) -> float:
    """Run a job to its end, which one on an endless topic has at so many records.

    Returns:
        Records a second, while both workers trained.
    """
    with tempfile.TemporaryDirectory(dir=folder) as made:
        output, job_dir = Path(made, "output"), Path(made, "job")
        flags = {"num_workers": 2, "num_ps_pods": 1, "num_epochs": 1}
        flags |= {
            "minibatch_size": MINIBATCH_SIZE,
            "num_minibatches_per_task": MINIBATCHES_PER_TASK,
        }
        words = counting.train_command(
            place,
            output,
            job_dir,
            Path(made, "summary.json"),
            **flags,
        )
        with Path(made, "log").open("w+") as log:
            with subprocess.Popen(words, stdout=log, stderr=log, env=environment()) as job:
                if drained_at:
                    drain(job_dir, job, drained_at)
            if job.returncode:
                log.seek(0)
                sys.exit(log.read())
        np.testing.assert_array_equal(counting.counts_of(output), counts)
        return summarise(job_dir).records_per_second


def drain(job_dir: Path, job: subprocess.Popen[bytes], records: int) -> None:
    """Have a job on a stream end once it has trained so many records."""
    master = counting.connect(job_dir, job)
    assert master is not None
    while master.status().records_done < records:  # to watch each change would cost the job
        time.sleep(_LOOK_SECONDS)
    master.close()
    words = [sys.executable, "-m", "elasticdl.cli.main", "stop", str(job_dir), "--drain"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
