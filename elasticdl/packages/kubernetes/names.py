"""The names of a job's objects on Kubernetes, and the paths in its pods."""

from __future__ import annotations

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.packages.kubernetes.words import parse_labels

JOB_LABEL = "elasticdl-job-name"
ROLE_LABEL = "elasticdl-replica-type"
INDEX_LABEL = "elasticdl-replica-index"
OWNER_UID_LABEL = "batch.kubernetes.io/controller-uid"  # Kubernetes' own, of the pods of a Job
OWNER_VARIABLE = "ELASTICDL_JOB_UID"  # in the environment of a master: the Job's
CONTROLLER_VARIABLE = "ELASTICDL_SERVICE_UID"  # the same of the Service, see `pods.owners`
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # Kueue's own, of the queue that a thing waits in
PICTURE_ANNOTATION = "elasticdl.org/picture"  # of the Job: the last picture, from the master
SUBMISSION_ANNOTATION = "elasticdl.org/submission"  # of the Job: drawn by the command that made it

REPLICAS = (Role.WORKER, Role.PS, Role.MODEL_SERVER)  # the roles of pods that a master asks for

MASTER_PORT = 50001
JOB_DIR = "/job"
SETTINGS_DIR = "/etc/elasticdl/settings"  # the ConfigMap NAME
SECRET_DIR = "/etc/elasticdl/secret"  # the Secret NAME
DATA_SECRET_DIR = "/etc/elasticdl/data_secret"  # the Secret NAME-data, if there is one
MODEL_PARAMS_PREFIX = "model_params."  # of its keys that --model_params had
TLS_DIR = "/etc/elasticdl/tls"  # the Secret of the name of the pod, of any but the master
AUTHORITY_DIR = "/etc/elasticdl/authority"  # the Secret NAME.authority, of the master
MODEL_DIR = "/etc/elasticdl/model_zoo"  # the ConfigMap NAME-model
CONFIG_KEY = "job.json"
CLUSTER_SPEC_KEY = "cluster_spec.py"
MODEL_FILES_KEY = "model_files.json"
TOKEN_KEY = "token"
CONTAINER = "elasticdl"


def labels_of(config: JobConfig) -> dict[str, str]:
    """Return the labels of everything that a job makes."""
    own = {"app": "elasticdl", JOB_LABEL: config.cluster.job_name}
    return parse_labels(config.of(KubernetesSection).labels) | own


def labels_of_pod(config: JobConfig, role: Role, index: int) -> dict[str, str]:
    """Return the labels of a pod."""
    return labels_of(config) | {ROLE_LABEL: str(role), INDEX_LABEL: str(index)}


def selector_of_job(job_name: str) -> str:
    """Return the selector for the pods of a job."""
    return f"{JOB_LABEL}={job_name}"


def selector_of_replicas(job_name: str) -> str:
    """Return the selector for the pods that a master has requested."""
    return f"{JOB_LABEL}={job_name},{ROLE_LABEL} in ({','.join(REPLICAS)})"


def model_map_of(job_name: str) -> str:
    """Return the name of the ConfigMap with the model folder."""
    return f"{job_name}-model"


def minimum_of(job_name: str) -> str:
    """Return the name of the Job that stands in a queue for the master's pods."""
    return f"{job_name}-minimum"


def data_secret_of(job_name: str) -> str:
    """Return the name of the Secret with passwords of the data reader and the model."""
    return f"{job_name}-data"


def env_secret_of(job_name: str) -> str:
    """Return the name of the Secret with the values of `--envs`.

    A job's own name has no dot, so no Secret of another job has this name.
    """
    return f"{job_name}.envs"


def authority_of(job_name: str) -> str:
    """Return the name of the Secret with the job's authority.

    A job's own name has no dot, so no Secret of another job has this name.
    """
    return f"{job_name}.authority"


def host_of_master(config: JobConfig, namespace: str) -> str:
    """Return the host name under which pods find the master in any pod."""
    return f"{config.cluster.job_name}.{namespace}.svc"
