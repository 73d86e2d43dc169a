"""Which launcher a job goes to, and where a job is that was submitted before."""

from __future__ import annotations

from elasticdl.config import JobConfig
from elasticdl.errors import UnknownJobError
from elasticdl.launchers.base import Job, Submitter
from elasticdl.launchers.kubernetes import settle
from elasticdl.launchers.kubernetes.submit import KubernetesSubmitter
from elasticdl.launchers.process.job import LocalSubmitter


def submitter_for(config: JobConfig) -> Submitter:
    """Return who starts a job of this configuration."""
    return KubernetesSubmitter() if config.is_on_kubernetes else LocalSubmitter()


def notes(config: JobConfig) -> list[str]:
    """Return what a user should know about the job before it runs, a sentence each."""
    return list(settle.notes(config)) if config.is_on_kubernetes else []


def find(name: str) -> Job:
    """Return a job that was submitted before, running or ended.

    Raises:
        UnknownJobError: There is none of this name; says where it was looked for.
    """
    submitters: list[Submitter] = [LocalSubmitter(), KubernetesSubmitter()]
    for submitter in submitters:
        job = submitter.find(name)
        if job is not None:
            return job
    places = "; ".join(submitter.places_of(name) for submitter in submitters)
    raise UnknownJobError(f"there is no job {name!r}; looked for {places}")
