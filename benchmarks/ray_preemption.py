"""Minibatches that are computed again when workers on Ray are preempted, beside Ray Train.

    pip install 'ray>=2.60,<2.61' && python -m benchmarks.ray_preemption [--short]

Both sides train 1,600 minibatches with two workers, each on a node of its own, on one Ray cluster
of this machine. When 30 % and when 65 % are computed, a worker's node is drained with ten seconds
of notice and killed at the end of it, or the worker's process gets SIGKILL. A new node comes at
once. A minibatch takes 20 ms and is noted in a file when it is computed, by each side's own code.

Ours is a job with one ps replica. Theirs is a `DataParallelTrainer` whose two workers go in step
and write a checkpoint every 100 steps of 800. "Just in time": also when Ray Train tells of a
drained node, once, and training goes on, as the documentation of `get_preemption_info` recommends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))
import psutil

from benchmarks.report import Row, Side, asked_for_short, compare, write_results
from elasticdl._core import RecordWriter
from scripts.ray_cluster import RayCluster

ROOT = Path(__file__).parents[1]
NUM_MINIBATCHES, MINIBATCH_SIZE, NUM_WORKERS = 1600, 16, 2
SECONDS = 0.02
SHARES = (0.3, 0.65)
NOTICE_SECONDS = 10
STEPS_PER_CHECKPOINT = 100
STABLE = "example.com/stable"
GIVE_UP_SECONDS = 400.0
UNIT = "minibatches computed for 1,600"

MODEL = """
import os, time
from dataclasses import replace
from counting import model
from counting.model import eval_metrics_fn, feed, optimizer

def forward(seconds, tally, pids):
    counting = model.forward()
    def gradients(*arguments):
        open(f"{pids}/{os.getpid()}", "w").close()
        time.sleep(seconds)
        found = counting.gradients(*arguments)
        with open(tally, "ab") as file:
            file.write(b".")
        return found
    return replace(counting, gradients=gradients)
"""


class Run:
    """One job of a side: how many minibatches were computed, and who computes them."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        """Prepare the folder, and two nodes for workers beside one that stays."""
        self._cluster = cluster
        self.folder = folder
        self.tally, self.pids = folder / "tally", folder / "pids"
        self.pids.mkdir(parents=True)
        self.tally.touch()

    @property
    def computed(self) -> int:
        """How many minibatches were computed."""
        return self.tally.stat().st_size

    def victim(self) -> psutil.Process:
        """Return a worker that computes: the one that began last."""
        while True:
            found = [path.name for path in self.pids.iterdir() if psutil.pid_exists(int(path.name))]
            for process in sorted(map(psutil.Process, map(int, found)), key=_began, reverse=True):
                with contextlib.suppress(LookupError, psutil.NoSuchProcess):
                    self._cluster.node_of(process)  # else it is being killed
                    return process
            time.sleep(0.05)

    def drain(self) -> None:
        """Have the node of a worker drained, and kill it at the end of the notice."""
        node = self._cluster.node_of(self.victim())
        self._cluster.drain(node, NOTICE_SECONDS)
        gone = time.monotonic() + NOTICE_SECONDS
        self._cluster.add_node(num_cpus=1)
        time.sleep(max(0.0, gone - time.monotonic()))
        self._cluster.kill_node(node)

    def kill(self) -> None:
        """Kill the process of a worker."""
        self.victim().send_signal(signal.SIGKILL)

    def strike(self, words: list[str], how: Callable[[], None] | None) -> int:
        """Run a command with the schedule of strikes; return how many minibatches were computed.

        Raises:
            RuntimeError: The command has failed, or takes too long.
        """
        due = [int(share * NUM_MINIBATCHES) for share in SHARES] if how is not None else []
        began = time.monotonic()
        with (self.folder / "log").open("wb") as log:
            job = subprocess.Popen(words, stdout=log, stderr=log, cwd=ROOT)
            try:
                while job.poll() is None:
                    if due and self.computed >= due[0] and how is not None:
                        due.pop(0)
                        how()
                    if time.monotonic() - began > GIVE_UP_SECONDS:
                        raise RuntimeError(f"no end: {self.folder / 'log'}")
                    time.sleep(0.02)
            finally:
                job.kill()
        if job.returncode or due:
            raise RuntimeError(f"exit code {job.returncode}, due {due}: {self.folder / 'log'}")
        return self.computed


def _began(process: psutil.Process) -> float:
    return float(process.create_time())


def ours(run: Run, address: str) -> list[str]:
    """Return the command of our job."""
    zoo = run.folder / "zoo"
    shutil.copytree(ROOT / "model_zoo" / "counting", zoo / "counting")
    (zoo / "tallied.py").write_text(MODEL)
    with RecordWriter(str(run.folder / "data.recordio")) as writer:
        writer.write_many(str(n % 500).encode() for n in range(NUM_MINIBATCHES * MINIBATCH_SIZE))
    flags = {
        "launcher": "ray",
        "ray_address": address,
        "job_name": run.folder.name,
        "job_dir": run.folder / "job",
        "model_zoo": zoo,
        "model_def": "tallied.forward",
        "model_params": f"seconds={SECONDS};tally='{run.tally}';pids='{run.pids}'",
        "training_data": run.folder / "data.recordio",
        "num_workers": NUM_WORKERS,
        "num_ps_pods": 1,
        "minibatch_size": MINIBATCH_SIZE,
        "num_minibatches_per_task": 25,
        "heartbeat_seconds": 0.2,
        "worker_resource_request": "cpu=1",
        "ps_resource_request": f"{STABLE}=1",
        "master_resource_request": f"{STABLE}=1",
    }
    given = [f"--{name}={value}" for name, value in flags.items()]
    return [sys.executable, "-m", "elasticdl.cli.main", "train", *given]


def theirs(run: Run, address: str, is_just_in_time: bool) -> list[str]:
    """Return the command of their job."""
    words = {
        "address": address,
        "folder": str(run.folder),
        "tally": str(run.tally),
        "pids": str(run.pids),
        "is_just_in_time": is_just_in_time,
    }
    return [sys.executable, "-m", "benchmarks.ray_preemption", "--theirs", json.dumps(words)]


def train_with_ray(words: dict[str, object]) -> None:
    """Run their job to its end."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    ray.init(address=str(words["address"]), log_to_driver=False)
    DataParallelTrainer(
        train_loop,
        train_loop_config=words,
        scaling_config=ScalingConfig(
            num_workers=NUM_WORKERS, resources_per_worker={"CPU": 1}, placement_strategy="SPREAD"
        ),
        run_config=RunConfig(
            name="theirs",
            storage_path=f"{words['folder']}/storage",
            failure_config=FailureConfig(max_failures=-1),
        ),
    ).fit()


def train_loop(config: dict[str, object]) -> None:
    """What each of their workers does: compute, note it, and write checkpoints."""
    import ray.train
    from ray.train import collective

    pid = os.getpid()
    Path(str(config["pids"]), str(pid)).touch()
    step, handed_over = 0, False
    if (before := ray.train.get_checkpoint()) is not None:
        with before.as_directory() as folder:
            step = int(Path(folder, "step").read_text())
    while step < NUM_MINIBATCHES // NUM_WORKERS:
        time.sleep(SECONDS)
        with open(str(config["tally"]), "ab") as file:
            file.write(b".")
        step += 1
        is_noticed = config["is_just_in_time"] and not handed_over and _is_preempted()
        # In step, as their gradients would be: all do what the first one says.
        is_noticed = collective.broadcast_from_rank_zero(bool(is_noticed))
        if is_noticed or step % STEPS_PER_CHECKPOINT == 0:
            handed_over = handed_over or is_noticed
            _report(step)


def _is_preempted() -> bool:
    import ray.train

    return ray.train.get_preemption_info() is not None


def _report(step: int) -> None:
    import ray.train

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(str(step))
        is_first = ray.train.get_context().get_world_rank() == 0
        checkpoint = ray.train.Checkpoint.from_directory(folder) if is_first else None
        ray.train.report({"step": step}, checkpoint=checkpoint)


@contextlib.contextmanager
def cluster_of_workers() -> Iterator[RayCluster]:
    """A cluster with a node for each worker, and one that is never taken away."""
    cluster = RayCluster()
    try:
        cluster.add_node(num_cpus=0, resources={STABLE: 10})
        for _ in range(NUM_WORKERS):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.close()


def measure(folder: Path, name: str, how: str) -> int:
    """Return how many minibatches a side computes: ours, theirs, or theirs just in time."""
    with cluster_of_workers() as cluster:
        run = Run(cluster, folder / f"{name}-{how or 'none'}".replace(" ", "-"))
        if name == "ours":
            words = ours(run, cluster.address)
        else:
            words = theirs(run, cluster.address, is_just_in_time="just in time" in name)
        strikes = {"drain": run.drain, "kill": run.kill}
        computed = run.strike(words, strikes.get(how))
    repeated = computed - NUM_MINIBATCHES
    print(f"{name}, {how or 'undisturbed'}: {repeated} of {NUM_MINIBATCHES} computed again")
    return computed


def rows(folder: Path, is_short: bool) -> list[Row]:
    """Measure each side once for each way to be struck; a short run has the drained nodes alone."""

    def side(name: str, how: str) -> Side:
        return Side((float(measure(folder, name, how)),), higher_is_better=False)

    def row(what: str, ours: Side, peer: str, how: str) -> Row:
        return compare(f"{what}, beside {peer}", UNIT, ours, side(peer, how))

    drained = side("ours", "drain")
    found = [row("the nodes of two workers drained", drained, "Ray Train", "drain")]
    if not is_short:
        what = "the same"
        found.append(row(what, drained, "Ray Train just in time", "drain"))
        what, killed = "the processes of two workers killed", side("ours", "kill")
        found.append(row(what, killed, "Ray Train", "kill"))
    return found


def main() -> None:
    """Measure both sides and write `results/ray_preemption.json`."""
    if sys.argv[1:2] == ["--theirs"]:
        train_with_ray(json.loads(sys.argv[2]))
        return
    is_short = asked_for_short(__doc__)
    notes = {
        "strikes": f"at {SHARES} of {NUM_MINIBATCHES} minibatches; notice {NOTICE_SECONDS} s",
        "ray": metadata.version("ray"),
        "their checkpoints": f"every {STEPS_PER_CHECKPOINT} steps of two minibatches",
    }
    with tempfile.TemporaryDirectory(prefix="ray-preemption-") as folder:
        found = rows(Path(folder), is_short)
        write_results("ray_preemption", found, notes, keep=not is_short)


if __name__ == "__main__":
    main()
