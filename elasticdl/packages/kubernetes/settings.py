"""The settings of a job's pods, and how they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from elasticdl.distribution import version
from elasticdl.job import Role
from elasticdl.packages.kubernetes import words
from elasticdl.settings.launcher import PROCESS, LauncherFacts, launchers
from elasticdl.settings.resources import asks_as, parse_resources
from elasticdl.settings.section import PackageSection

if TYPE_CHECKING:
    from elasticdl.config import JobConfig


def _read(flag: str, parse: Callable[[str], object]) -> AfterValidator:
    """Check a word when it is given, and keep it as a word, as in job.json."""

    def check(word: str) -> str:
        try:
            parse(word)
        except ValueError as error:
            raise ValueError(f"--{flag}: {error}") from error
        return word

    return AfterValidator(check)


def _affinity(word: str) -> str:
    """Read `--affinity`, a file or the object itself; it is stored as the object.

    Raises:
        ValueError: There is no such file, or it has no object.
    """
    if not word:
        return ""
    text, place = word, "--affinity"
    if not word.lstrip().startswith("{"):
        place = f"--affinity={word}"
        try:
            # The file is read where the job is started: the pods do not have it.
            text = Path(word).read_text()
        except OSError as error:
            raise ValueError(f"{place}: expected a file or a JSON object: {error}") from error
    try:
        affinity = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place}: expected a JSON object: {error}") from error
    known = ("nodeAffinity", "podAffinity", "podAntiAffinity")
    if not isinstance(affinity, dict) or not set(affinity) <= set(known):
        raise ValueError(f"{place}: expected an object with {', '.join(known)}, found {text!r}")
    return json.dumps(affinity)


STOCK_IMAGE = f"elasticdl:{version()}"
"""The image with elasticdl, TensorFlow and no model; `scripts/image.sh` builds it."""

LAUNCHER = LauncherFacts(
    parts="elasticdl.packages.kubernetes.parts:PARTS",
    title="Kubernetes",
    description="a Kubernetes cluster",
    place="a pod",
    sees_files=False,
    metrics="own",
    metrics_help="On Kubernetes the port in each pod, which annotations of the pod name; with "
    "--dashboard_port the master serves the job's metrics there too.",
    secret_help="on Kubernetes by --envs={variable}=secret:SECRET/KEY",
    implied_by=("packages", "kubernetes", "image_name"),
    dry_run="Print the manifests of the job for kubectl apply -f -, and ask for nothing.",
)

_JOB_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_NAME = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
_NAME_OR_NONE = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"


class KubernetesSection(PackageSection):
    """Kubernetes."""

    shown_as: ClassVar[Mapping[str, Callable[[str], str]]] = {"envs": words.shown_variables}

    image_name: Annotated[
        str,
        Field(
            description="Image of all pods, which has elasticdl and, unless --send_model_zoo, the "
            "model folder. With it, the job runs on Kubernetes [default: the stock image]."
        ),
    ] = ""
    send_model_zoo: Annotated[
        bool | None,
        Field(
            description="Send the folder --model_zoo along, up to 1 MiB of it, instead of having "
            "it in the image or on a volume [default: true without --image_name]."
        ),
    ] = None
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        Field(description="When nodes pull the image [default: the cluster's own]."),
    ] = None
    image_pull_secrets: Annotated[
        str, Field(description='Secrets to pull the image with: "NAME,NAME".')
    ] = ""
    namespace: Annotated[
        str,
        Field(description="Namespace of the job [default: that of the kubeconfig's context]."),
    ] = ""
    service_account: Annotated[
        str,
        Field(
            pattern=_NAME,
            description="ServiceAccount of the pods; the master needs the rights that "
            "`elasticdl rbac` prints.",
        ),
    ] = "elasticdl"
    master_resource_limit: Annotated[
        str, Field(description="Limits of the master [default: what it requests].")
    ] = ""
    worker_resource_limit: Annotated[
        str,
        Field(description="Limits of each worker and model server [default: what it requests]."),
    ] = ""
    ps_resource_limit: Annotated[
        str, Field(description="Limits of each ps replica [default: what it requests].")
    ] = ""
    ttl: Annotated[
        int | None,
        Field(
            ge=0,
            description="Seconds after the end of the job after which Kubernetes deletes what is "
            "left of it: its Job and its pods, which have the logs [default: they stay]. The "
            "rest goes at the end itself.",
        ),
    ] = None
    master_pod_priority: Annotated[str, Field(description="PriorityClass of the master.")] = ""
    worker_pod_priority: Annotated[
        str,
        _read("worker_pod_priority", words.parse_worker_priority),
        Field(
            description="PriorityClass of the workers, such as high or low; 0.5: that share of "
            "them high, at least one, and the others low."
        ),
    ] = ""
    ps_pod_priority: Annotated[
        str, Field(description="PriorityClass of ps replicas and model servers.")
    ] = ""
    volume: Annotated[
        str,
        _read("volume", words.parse_volumes),
        Field(
            description="Volumes of all pods, several separated by ';': "
            '"claim_name=data,mount_path=/data,sub_path=a", "host_path=/a,mount_path=/b" or '
            '"secret_name=s,mount_path=/c".'
        ),
    ] = ""
    envs: Annotated[
        str,
        _read("envs", words.parse_variables),
        Field(description='Environment of all pods: "NAME=VALUE,PASSWORD=secret:SECRET/KEY".'),
    ] = ""
    queue_name: Annotated[
        str,
        Field(
            pattern=_NAME_OR_NONE,
            description="Queue of Kueue (its LocalQueue) that the job waits in: for its master, "
            "then for all ps replicas, model servers and the first workers at once, then for each "
            "further worker.",
        ),
    ] = ""
    queue_min_workers: Annotated[
        int,
        Field(
            ge=1,
            description="Workers that --queue_name admits together with the ps replicas and model "
            "servers; those up to --num_workers join one by one, and are taken back first.",
        ),
    ] = 1
    scheduler_name: Annotated[
        str,
        Field(
            pattern=_NAME_OR_NONE,
            description="Scheduler of the pods, such as volcano [default: the cluster's own].",
        ),
    ] = ""
    node_selector: Annotated[
        str,
        _read("node_selector", words.parse_labels),
        Field(description='Labels of the nodes that the pods may run on: "disk=ssd".'),
    ] = ""
    tolerations: Annotated[
        str,
        _read("tolerations", words.parse_tolerations),
        Field(description='Taints that the pods tolerate: "spot=true:NoSchedule,gpu".'),
    ] = ""
    affinity: Annotated[
        str,
        AfterValidator(_affinity),
        Field(description="Affinity of the pods: an object of Kubernetes as JSON, or its file."),
    ] = ""
    labels: Annotated[
        str,
        _read("labels", words.parse_labels),
        Field(description='Labels of everything that the job makes: "team=ads".'),
    ] = ""
    annotations: Annotated[
        str,
        _read("annotations", words.parse_annotations),
        Field(description='Annotations of the pods: "example.com/owner=ads".'),
    ] = ""
    cluster_spec: Annotated[
        Path | None,
        Field(
            description="Python file whose functions with_pod and with_service (or those of its "
            "object cluster) change what is asked of Kubernetes."
        ),
    ] = None

    @model_validator(mode="after")
    def _minimum_has_a_queue(self) -> KubernetesSection:
        if self.queue_min_workers != 1 and not self.queue_name:
            raise ValueError(
                f"--queue_min_workers={self.queue_min_workers}: without a queue pods are asked for "
                "at once: expected --queue_name beside it"
            )
        return self

    @property
    def image(self) -> str:
        """The image of all pods."""
        return self.image_name or STOCK_IMAGE

    @property
    def sends_model_zoo(self) -> bool:
        """Return whether the model folder is sent with the job."""
        return not self.image_name if self.send_model_zoo is None else self.send_model_zoo

    def limits(self, role: Role, requests: dict[str, str]) -> dict[str, str]:
        """Return the limits of a pod of a role, which requests these resources."""
        limit = parse_resources(getattr(self, f"{asks_as(role)}_resource_limit"))
        return words.limits_of(requests, limit)

    def volumes(self) -> tuple[words.Volume, ...]:
        """Return the volumes of every pod."""
        return words.parse_volumes(self.volume)

    def check(self, job: JobConfig) -> None:
        """Refuse flags without Kubernetes, and what a job on Kubernetes cannot do."""
        if job.launcher_name != "kubernetes":
            self._check_is_not_given(job)
            return
        for role in (Role.MASTER, Role.WORKER, Role.PS):
            try:
                self.limits(role, job.resources.requests(role))
            except ValueError as error:
                raise ValueError(f"--{role}_resource_limit: {error}") from error
        if self.queue_name and self.queue_min_workers > job.cluster.num_workers:
            raise ValueError(
                f"--queue_min_workers={self.queue_min_workers}: expected at most "
                f"--num_workers={job.cluster.num_workers}"
            )
        if not _JOB_NAME.fullmatch(job.cluster.job_name):
            raise ValueError(
                "--job_name: expected at most 40 small letters, digits and '-', the first one a "
                f"letter, as names on Kubernetes are, found {job.cluster.job_name!r}"
            )

    def _check_is_not_given(self, job: JobConfig) -> None:
        given = self.given()
        if not given:
            return
        if job.launcher_name == PROCESS:
            raise ValueError(
                f"--{given[0]} is of jobs on Kubernetes: give --image_name, or "
                "--launcher=kubernetes for the stock image"
            )
        own = launchers()[job.launcher_name].own_options
        instead = f"--{own}, or not this flag," if own else "not this flag"
        raise ValueError(
            f"--{given[0]} is of jobs on Kubernetes: expected {instead} with "
            f"--launcher={job.launcher_name}"
        )
