"""`docs/migrating.md` says of every flag of ElasticDL 0.x what became of it, and is right."""

import re
from pathlib import Path

import pytest

from elasticdl.cli.flags import flags, unknown_flag
from elasticdl.packages.earlier.flags import FLAGS

PAGE = Path(__file__).parents[3] / "docs" / "migrating.md"
ROWS = re.findall(r"^\| `--(\w+)` \| \*\*(\w+)\*\* \| (.*) \|$", PAGE.read_text(), re.M)
NOW = {flag.name for flag in flags()}
# Flags of the command line of version 0.3, of earlier ones, and of its tutorials.
THEN = set(
    [
        "model_zoo",
        "model_def",
        "feed",
        "loss",
        "optimizer",
        "eval_metrics_fn",
        "callbacks",
        "custom_data_reader",
        "prediction_outputs_processor",
        "minibatch_size",
        "num_minibatches_per_task",
        "data_reader_params",
        "training_data",
        "validation_data",
        "prediction_data",
        "num_epochs",
        "max_step",
        "evaluation_steps",
        "log_loss_steps",
        "checkpoint_dir_for_init",
        "use_async",
        "grads_to_wait",
        "sync_version_tolerance",
        "lr_staleness_modulation",
        "get_model_steps",
        "distribution_strategy",
        "checkpoint_steps",
        "checkpoint_dir",
        "keep_checkpoint_max",
        "output",
        "need_pod_manager",
        "need_task_manager",
        "task_fault_tolerance",
        "need_elasticdl_job_service",
        "job_command",
        "need_tf_config",
        "relaunch_on_worker_failure",
        "relaunch_timeout_worker",
        "restart_policy",
        "job_name",
        "image_name",
        "worker_image",
        "image_pull_policy",
        "namespace",
        "num_workers",
        "num_ps_pods",
        "master_resource_request",
        "worker_resource_request",
        "ps_resource_request",
        "master_resource_limit",
        "worker_resource_limit",
        "ps_resource_limit",
        "master_pod_priority",
        "worker_pod_priority",
        "ps_pod_priority",
        "volume",
        "envs",
        "populate_env_names",
        "cluster_spec",
        "cluster_spec_json",
        "yaml",
        "force_use_kube_config_file",
        "aux_params",
        "log_file_path",
        "log_level",
        "dataset_fn",
        "model_params",
        "use_go_ps",
        "tensorboard_log_dir",
        "evaluation_start_delay_secs",
        "evaluation_throttle_secs",
        "docker_image_repository",
        "image_base",
        "docker_base_url",
        "docker_tlscert",
        "docker_tlskey",
        "records_per_task",
        "custom_training_loop",
        "num_ps",
        "ps_image",
        "num_evaluator",
        "chief_resource_request",
        "chief_resource_limit",
        "evaluator_resource_request",
        "evaluator_resource_limit",
    ]
)


def test_every_flag_of_then_has_one_row():
    names = [name for name, _verdict, _note in ROWS]

    assert sorted(names) == sorted(THEN)


@pytest.mark.parametrize(("name", "verdict", "note"), ROWS, ids=[row[0] for row in ROWS])
def test_what_became_of_a_flag_is_true(name, verdict, note):
    if verdict == "works":
        assert name in NOW
        return
    assert name not in NOW
    assert unknown_flag("train", name) == f"unknown flag --{name} (of ElasticDL 0.x); here: {note}"
    mentioned = set(re.findall(r"--(\w+)", note)) - {"base_image", "dry_run"}
    assert mentioned <= NOW
    assert (verdict == "changed") == bool(re.findall(r"--\w+", note))
    assert verdict in ("changed", "gone")


def test_a_row_that_is_wrong_would_be_found():
    with pytest.raises(AssertionError):
        test_what_became_of_a_flag_is_true("num_workers", "gone", "nothing")
    with pytest.raises(AssertionError):
        test_what_became_of_a_flag_is_true("num_ps", "changed", "--number_of_ps")


def test_no_answer_is_about_a_flag_that_there_is():
    assert not NOW & set(FLAGS)
    assert set(FLAGS) <= THEN
