"""Jobs on a Slurm cluster, whose tasks are requeued, killed and cancelled: the counts are exact."""

import contextlib

import numpy as np
import psutil
import pytest

from elasticdl.observe.events import read_events
from elasticdl.packages.slurm.roster import Roster, handle_of
from scripts.chaos import job as counting
from tests.elastic.seen_job import SeenJob
from tests.packages.own_loops.test_shards_job import SCRIPT, ShardsJob

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

NUM_IDS = 1000


class SlurmJob(SeenJob):
    """A paced counting job on a cluster."""

    def __init__(self, folder, cluster, num_records, pace=0.04, **flags):
        """Prepare it; `cluster` is a `tests.clusters.slurm_cluster.SlurmCluster`."""
        super().__init__(
            folder,
            num_records,
            pace=pace,
            launcher="slurm",
            num_workers=3,
            worker_resource_request="cpu=1,memory=100Mi",
            ps_resource_request="cpu=1,memory=100Mi",
            master_resource_request="cpu=1,memory=100Mi",
            output=folder / "export",
            summary=folder / "summary.json",
            **flags,
        )
        self.cluster, self.num_records = cluster, num_records
        self.roster = Roster(self.job_dir)
        self._where = {"env": cluster.environment}

    def __exit__(self, *error):
        super().__exit__(*error)
        self.cluster.clear()

    def tasks(self, role):
        """Return the tasks of Slurm that have a process of a role: index -> task."""
        running, ended = self.roster.running(), self.roster.ended()
        return {
            handle_of(ref).index: place.task
            for ref, place in running.items()
            if handle_of(ref).role == role and ref not in ended
        }

    def until_here(self, role, index):
        """Wait until a process has registered, beside any that was there before it."""
        self.until_event("registered", f"{role} {index}")

    def workers_here(self):
        """Return the workers that have registered, however they fared since."""
        here = {event["process"] for event in self.events("registered")}
        return {name for name in here if name.startswith("worker ")}

    def until_times(self, name, times):
        """Wait until there were so many events of a name."""
        self.until_event(name, also=lambda _: len(self.events(name)) >= times)

    def check(self):
        """Let the job go to its end; check that each record was trained once."""
        self.hurry()
        summary = self.finish()
        (row,) = summary["ledger"]
        assert (row["trained_once"], row["repeated"], row["lost"]) == (self.num_records, 0, 0)
        counts = counting.counts_of(self.folder / "export", NUM_IDS)
        np.testing.assert_array_equal(counts, np.full(NUM_IDS, self.num_records // NUM_IDS))
        self.cluster.until_no_task()
        return summary


def place_of(job, task):
    """Return the process that Slurm has started for a task."""
    number, _, index = task.partition("_")
    wanted = {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index}
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        words = process.info["cmdline"] or []
        if "elasticdl.packages.slurm.place" in words and str(job.job_dir) in words:
            with contextlib.suppress(psutil.Error):  # another one may end meanwhile
                if wanted.items() <= process.environ().items():
                    found.append(process)
    return min(found, key=lambda process: process.info["create_time"])  # others are its forks


def test_tasks_are_requeued_killed_and_moved_and_each_record_counts_once(tmp_path, slurm):
    with SlurmJob(tmp_path, slurm, 300_000) as job:
        job.until_trained(1_000, also=lambda: len(job.tasks("worker")) == 3)
        # Slurm takes a worker's task back: it hands over, and another one takes its place.
        slurm.run("scontrol", "requeue", job.tasks("worker")[0])
        job.until_event("left", "worker 0", also=lambda e: e["reason"] == "preempted")
        job.until_here("worker", 3)
        task = job.tasks("worker")[1]
        job.send("worker", 0)  # the process alone: its task takes the next one
        job.until_event("lost", "worker 1", also=lambda e: e["reason"] == "killed")
        job.until_here("worker", 4)
        assert job.tasks("worker")[4] == task
        place_of(job, job.tasks("worker")[2]).kill()  # and all of its task
        job.until_event("lost", "worker 2")
        job.until_here("worker", 5)
        job.send("master")
        job.until_times("resumed", 1)
        # No new task begins on the node; those that are taken back begin on others.
        with slurm.drained("n1"):
            slurm.run("scontrol", "requeue", job.tasks("ps")[0])
            job.until_event("ps recovered", also=lambda e: e["replica"] == 0)
            assert place_of(job, job.tasks("ps")[0]).environ()["SLURMD_NODENAME"] != "n1"
            slurm.run("scontrol", "requeue", job.roster.master())
            job.until_times("resumed", 2)
            trained = job.until(lambda _: True).records_done
            job.until_trained(trained)
            job.check()


def test_a_job_outlives_the_time_limit_of_all_its_tasks(tmp_path, slurm):
    # Two minutes: a minute before its end each task is asked to hand over, the master's too.
    with SlurmJob(tmp_path, slurm, 600_000, pace=0.02, slurm_time_limit="2") as job:
        job.until_trained(1_000, also=lambda: len(job.tasks("worker")) == 3)
        first = job.roster.running()
        job.until_times("resumed", 1)
        job.until_event("ps recovered", also=lambda e: e["replica"] == 0)
        job.until_event("ps recovered", also=lambda e: e["replica"] == 1)
        # Three others come; one of them may have to leave its place to a ps replica.
        job.until(lambda _: len(job.workers_here()) >= 6)
        job.until(lambda _: not set(first) & set(job.roster.running()))
        summary = job.check()
    assert [found["is_handed_over"] for found in summary["recoveries"]] == [True, True]
    assert {event["reason"] for event in job.events("left")} <= {"preempted", "finished"}


def test_workers_that_another_job_preempts_hand_over_wait_and_come_back(tmp_path, slurm):
    options = {"slurm_options": "--nodelist=n1", "slurm_worker_options": "--nodelist=n2"}
    with SlurmJob(tmp_path, slurm, 300_000, **options) as job:
        job.until_trained(1_000, also=lambda: len(job.tasks("worker")) == 3)
        words = ("--parsable", "--partition=first", "--nodelist=n2", "--exclusive")
        first = slurm.run("sbatch", *words, "--output=/dev/null", "--wrap=sleep 300")
        for index in range(3):
            job.until_event("left", f"worker {index}", also=lambda e: e["reason"] == "preempted")
            job.until_event("pending", f"worker {index + 3}", also=lambda e: "(" in e["why"])
        assert job.tasks("worker") == {}
        slurm.run("scancel", first.strip())
        for index in range(3):
            job.until_here("worker", index + 3)
        summary = job.check()
    assert summary["recomputed"] == 0
    assert "lost" not in {event["event"] for event in read_events(job.job_dir)}


def test_a_lost_node_is_replaced_by_another(tmp_path, slurm):
    with SlurmJob(tmp_path, slurm, 300_000, slurm_worker_options="--exclude=n1") as job:
        job.until_trained(1_000, also=lambda: len(job.workers_here()) == 3)
        assert place_of(job, job.tasks("worker")[0]).environ()["SLURMD_NODENAME"] == "n2"
        with slurm.without("n2"):
            # By its silence, or by Slurm's word, which is slower.
            job.until_event("lost", "worker 0")
            job.until(lambda _: len(job.workers_here()) >= 6)
        job.check()


def test_a_cancelled_job_ends_all_its_tasks_and_goes_on_by_the_same_command(tmp_path, slurm):
    job = SlurmJob(tmp_path, slurm, 300_000)
    with job:
        job.until_trained(1_000, also=lambda: len(job.tasks("worker")) == 3)
        slurm.run("scancel", job.roster.master())
        assert job.process.wait() == 130, job.log()
        slurm.until_no_task()
    with job:
        job.until_times("resumed", 1)
        job.check()


def test_a_script_with_a_loop_of_its_own_runs_and_a_requeued_worker_repeats_nothing(
    tmp_path, slurm, monkeypatch
):
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.environment[name])
    flags = {"launcher": "slurm", "num_workers": 2}
    flags |= {f"{role}_resource_request": "cpu=1,memory=100Mi" for role in ("worker", "ps")}
    with ShardsJob(tmp_path, SCRIPT, 5_000, **flags) as job:
        job.until_trained(200)
        (task,) = {
            place.task
            for ref, place in Roster(job.job_dir).running().items()
            if ref.startswith("worker-0-")
        }
        slurm.run("scontrol", "requeue", task)
        job.until_event("left", "worker 0", also=lambda e: e["reason"] == "preempted")
        (tmp_path / "hurry").touch()
        (row,) = job.finish()["ledger"]
    assert (row["trained_once"], row["repeated"], row["lost"]) == (5_000, 0, 0)
    assert job.seen() == dict.fromkeys(range(5_000), 1)
    slurm.clear()
