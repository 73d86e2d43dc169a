"""Begins the trackers that a job's flags ask for."""

from __future__ import annotations

from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.observe.tracker import Tracker
from elasticdl.packages.trackers.mlflow_run import MlflowRun
from elasticdl.packages.trackers.settings import TrackersSection
from elasticdl.packages.trackers.tensorboard import Summaries
from elasticdl.packages.trackers.wandb_run import WandbRun


def tensorboard(config: JobConfig, job: str, folder: Path) -> Tracker | None:
    """Begin event files of TensorBoard, if `--tensorboard_log_dir` asks for them."""
    seeing, checkpoints = config.seeing, config.checkpoint.checkpoint_dir
    if seeing.tensorboard_log_dir is None:
        return None
    if not seeing.tensorboard_histograms:
        checkpoints = None
    assert checkpoints is None or isinstance(checkpoints, Path), "JobConfig refuses another one"
    return Summaries(seeing.tensorboard_log_dir, checkpoints, job)


def mlflow(config: JobConfig, job: str, folder: Path) -> Tracker | None:
    """Begin a run of MLflow, if `--mlflow_uri` asks for one."""
    return MlflowRun(config, job) if config.of(TrackersSection).mlflow_uri else None


def wandb(config: JobConfig, job: str, folder: Path) -> Tracker | None:
    """Begin a run of Weights & Biases, if `--wandb_project` asks for one."""
    return WandbRun(config, job, folder) if config.of(TrackersSection).wandb_project else None
