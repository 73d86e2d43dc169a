"""Histograms of the dense parameters at each checkpoint, for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from elasticdl.checkpoints.parameters import dense_parameters
from elasticdl.checkpoints.versions import version_folder
from elasticdl.config import JobConfig
from elasticdl.observe.kind import Kind
from elasticdl.observe.kinds import CheckpointWritten
from elasticdl.observe.tensorboard import Summaries


def take_histograms(
    summaries: Summaries | None, kind: Kind, config: JobConfig, job_id: str
) -> None:
    """Have histograms written of a checkpoint that is whole, if they are wanted.

    Args:
        summaries: The summaries of the job, if it has some.
        kind: The event, which may be a checkpoint.
        config: The job's settings.
        job_id: Its identity, which may be in the name of the checkpoint's folder.
    """
    directory = config.checkpoint.checkpoint_dir
    if summaries is None or not config.seeing.tensorboard_histograms or directory is None:
        return
    if isinstance(kind, CheckpointWritten):
        folder = version_folder(directory, kind.version, job_id)
        assert isinstance(folder, Path), "JobConfig refuses another one"
        summaries.take_parameters(kind.version, lambda: dense_parameters(folder))
