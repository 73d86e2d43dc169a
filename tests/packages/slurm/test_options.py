"""What is asked of sbatch."""

from pathlib import Path

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.cli.job_folder import holds_job
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Role, Strategy
from elasticdl.launchers import choose
from elasticdl.launchers.process.folder import prepare
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.options import script_of, words_of
from elasticdl.packages.slurm.parts import PARTS
from elasticdl.packages.slurm.settings import SlurmSection
from elasticdl.packages.slurm.submit import SlurmSubmitter
from elasticdl.runtime import process

HERE = Path("/jobs/x y")


def configure(**words):
    given = {"model_def": "a.forward", "training_data": "/data", "launcher": "slurm"}
    return build_config("train", given | words)


def test_resources_and_options_are_those_of_the_role():
    config = configure(
        worker_resource_request="cpu=2.5,memory=1500Mi,gpu=1",
        slurm_partition="cpu",
        slurm_time_limit="4:00:00",
        slurm_options="--qos=low",
        slurm_worker_options="--partition=spot",
    )
    worker, master = (words_of(config, role, HERE, 3) for role in (Role.WORKER, Role.MASTER))
    for word in ("--cpus-per-task=3", "--mem=1500M", "--gpus-per-node=1", "--array=0-2"):
        assert word in worker
    for word in ("--partition=cpu", "--time=4:00:00", "--qos=low", "--cpus-per-task=1"):
        assert word in master
    assert worker[-1] == "--partition=spot"  # the last one counts
    assert not any("spot" in word or "gpus" in word for word in master)


def test_a_script_runs_in_a_folder_of_any_name_and_holds_no_secret():
    assert script_of(Role.PS, HERE).endswith(
        " -P -u -m elasticdl.packages.slurm.place --role ps --job_dir '/jobs/x y'\n"
    )


def test_slurm_writes_into_a_folder_of_any_name():
    words = words_of(configure(), Role.PS, Path("/jobs/50%j"))
    assert "--output=/jobs/50%%j/slurm/ps.out" in words


def test_a_job_goes_on_in_another_partition(tmp_path):
    job = configure(job_dir=str(tmp_path / "job"), slurm_partition="a")
    folder = prepare(job)
    now = configure(job_dir=str(folder), slurm_partition="b", slurm_time_limit="8:00:00")
    assert holds_job(now)
    prepare(now)
    found = JobConfig.read(folder / process.CONFIG_FILE)
    assert found.of(SlurmSection) == now.of(SlurmSection)


def test_a_worker_has_the_cores_of_its_task(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert PARTS.cores(configure(), 8) == 4


@pytest.mark.parametrize(("megabytes", "expected"), [({}, 512), ({"ps_redo_mb": "0"}, 0)])
def test_replicas_keep_a_redo_log_where_another_machine_finds_it(megabytes, expected):
    config = configure(job_dir="jobs/a", **megabytes)
    told = [note for note in choose.notes(config) if "redo log of up to 512 MB" in note]
    assert config.redo_log_bytes == expected * 1_000_000
    assert len(told) == (expected == 512)


def test_parameters_are_on_ps_replicas_unless_something_else_is_said():
    assert configure().training.distribution_strategy is Strategy.PARAMETER_SERVER


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"slurm_options": "-p cpu"}, "in their long form"),
        ({"slurm_options": "--array=0-9"}, "which elasticdl gives; found '--array=0-9'"),
        ({"slurm_options": "--comment='a"}, "No closing quotation"),
        ({"slurm_time_limit": "soon"}, "--slurm_time_limit: expected text of the form"),
        ({"launcher": "process", "slurm_partition": "cpu"}, "give --launcher=slurm"),
        ({"volume": "host_path=/a,mount_path=/b"}, "--volume is of jobs on Kubernetes"),
        ({"metrics_port": "0"}, "expected --launcher=process or kubernetes"),
        ({"distribution_strategy": "Local"}, "ParameterServerStrategy on Slurm"),
        ({"num_model_servers": "1"}, "--num_model_servers=1 does not go with --launcher=slurm"),
    ],
)
def test_what_does_not_go_with_slurm_is_refused_in_words(words, message):
    with pytest.raises(ConfigError, match=message):
        configure(**words)


def test_a_resource_that_slurm_does_not_have_is_refused():
    config = configure(worker_resource_request="cpu=1,disk=1Gi")
    with pytest.raises(ConfigError, match="ephemeral-storage is of Kubernetes"):
        words_of(config, Role.WORKER, HERE)


def test_a_job_that_slurm_cannot_be_asked_for_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "own_tasks", dict)
    job_dir = tmp_path / "job"
    config = configure(worker_resource_request="cpu=1,disk=1Gi", job_dir=str(job_dir))
    with pytest.raises(ConfigError, match="--worker_resource_request"):
        SlurmSubmitter().submit(config, is_tied=False)
    assert not job_dir.exists()
