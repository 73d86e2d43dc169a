"""Lists flags of ElasticDL 0.x that are gone, with what to say instead."""

from __future__ import annotations

_LOOP = (
    "elasticdl run SCRIPT --training_data=PATH, of a loop in PyTorch or TensorFlow that uses "
    "elasticdl.controller"
)
_ENGINE = "elasticdl zoo build uses the docker, podman or buildah of this machine, as it is set up"
_EVALUATOR = "workers evaluate between tasks, so no process is there for that alone"

FLAGS = {
    "aux_params": "disable_relaunch is --max_relaunches=0",
    "chief_resource_limit": "there is no chief; --worker_resource_limit is of all workers",
    "chief_resource_request": "there is no chief; --worker_resource_request is of all workers",
    "cluster_spec_json": "--labels, --annotations, --tolerations, --affinity and --node_selector, "
    "or a Python file as --cluster_spec",
    "custom_training_loop": _LOOP,
    "dataset_fn": "--feed=NAME; a function that is called dataset_fn is found by itself",
    "docker_base_url": _ENGINE,
    "docker_image_repository": "elasticdl zoo build and elasticdl zoo push make the image, and "
    "--image_name says which",
    "docker_tlscert": _ENGINE,
    "docker_tlskey": _ENGINE,
    "evaluation_start_delay_secs": "--evaluation_steps counts updates, not seconds",
    "evaluation_throttle_secs": "--evaluation_steps counts updates, not seconds",
    "evaluator_resource_limit": _EVALUATOR,
    "evaluator_resource_request": _EVALUATOR,
    "force_use_kube_config_file": "the kubeconfig is used where there is one",
    "image_base": "elasticdl zoo init --base_image, and --image_name of the image that is built",
    "job_command": _LOOP,
    "log_file_path": "each process writes a file in --job_dir; elasticdl logs shows them",
    "log_loss_steps": "the loss is shown all the time, and is in --summary",
    "lr_staleness_modulation": "--staleness_lr_modulation",
    "max_step": "--num_epochs, or a callback that stops",
    "need_elasticdl_job_service": "every job has it",
    "need_pod_manager": "every job has it",
    "need_task_manager": "every job has it",
    "need_tf_config": _LOOP,
    "num_evaluator": _EVALUATOR,
    "num_ps": "--num_ps_pods",
    "populate_env_names": "--envs says names and values",
    "ps_image": "--image_name is of all pods",
    "records_per_task": "--num_minibatches_per_task, so many times --minibatch_size",
    "relaunch_on_worker_failure": "--max_relaunches",
    "relaunch_timeout_worker": "--task_timeout_seconds",
    "restart_policy": "the master asks for another pod, --max_relaunches times after failures",
    "task_fault_tolerance": "every job has it; --max_task_retries limits how often a task is tried",
    "use_go_ps": "ps replicas are one program, in Rust",
    "worker_image": "--image_name is of all pods",
    "yaml": "--dry_run > FILE",
}
"""The flags of earlier versions of ElasticDL; `docs/migrating.md` has all of them."""
