"""Prints manifests for Kubernetes: those of a job, and those of its rights."""

from __future__ import annotations

import rich_click as click

from elasticdl.cli import preflight
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.packages.kubernetes.words import values_of
from elasticdl.settings import reader_params


def dry_run(config: JobConfig) -> int:
    """Print the manifests of a job for `kubectl apply -f -`; return the exit code.

    Raises:
        ElasticdlError: The job cannot run on Kubernetes with these settings.
    """
    if config.launcher_name != "kubernetes":
        raise ConfigError(
            "--dry_run prints what is asked of Kubernetes: give --image_name, or "
            "--launcher=kubernetes for the stock image"
        )
    for flag, text in (
        ("--data_reader_params", config.data.data_reader_params),
        ("--model_params", config.model.model_params),
    ):
        for name in reader_params.secrets_of(text):
            raise ConfigError(
                f"--dry_run prints no secrets, and {name} of {flag} is one: expected {name}=env:"
                f"NAME with --envs=NAME=secret:SECRET/KEY, or {name}=file:PATH of a volume"
            )
    preflight.check(config)
    from elasticdl.packages.kubernetes import names
    from elasticdl.packages.kubernetes.client import library
    from elasticdl.packages.kubernetes.manifests import as_yaml, manifests
    from elasticdl.packages.kubernetes.settle import notes

    library()
    click.echo(as_yaml([each for each in manifests(config) if each["kind"] != "Secret"]), nl=False)
    found = list(notes(config))
    if variables := values_of(config.of(KubernetesSection).envs):
        words = " ".join(f"--from-literal={name}=VALUE" for name in variables)
        where = config.of(KubernetesSection).namespace
        namespace = f" --namespace={where}" if where else ""
        secret = names.env_secret_of(config.cluster.job_name)
        found.append(
            "the values of --envs are not printed; the pods wait for the Secret that has them: "
            f"kubectl create secret generic {secret} {words}{namespace}"
        )
    for note in found:
        click.echo(f"note: {note}", err=True)
    return 0


@click.command()
@click.option("--namespace", default="", help="Namespace of the jobs [default: kubectl's].")
@click.option(
    "--service_account",
    default="elasticdl",
    show_default=True,
    help="ServiceAccount of the pods, as in elasticdl train.",
)
@click.option("--queues", is_flag=True, help="Include the rights that --queue_name needs.")
def rbac(namespace: str, service_account: str, queues: bool) -> None:
    """Print the RBAC manifests that jobs need on Kubernetes, for kubectl apply -f -.

    \b
    Example:
      elasticdl rbac --namespace=training | kubectl apply -f -
    """  # noqa: D301 - the backspace is click's mark for lines that it must not join
    from elasticdl.packages.kubernetes.client import library
    from elasticdl.packages.kubernetes.manifests import as_yaml
    from elasticdl.packages.kubernetes.rbac import rights

    library()
    click.echo(as_yaml(rights(namespace, service_account, queues)), nl=False)
