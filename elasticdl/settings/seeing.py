"""Settings for observing a running job; none of them changes what is trained."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from elasticdl.settings.launcher import metrics_help
from elasticdl.settings.section import Only, Section

_TRAIN = Only(("train",))


class SeeingSection(Section):
    """Seeing the job."""

    dashboard_port: Annotated[
        int | None,
        Field(
            ge=0,
            le=65535,
            description="The master serves a web page of the job, and metrics for Prometheus, at "
            "this port of its machine's loopback address; 0: any free one. The address is printed "
            "[default: no page].",
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        Field(
            ge=0,
            le=65535,
            description="Workers and ps replicas serve /metrics for Prometheus themselves. "
            f"{metrics_help()} [default: only the page's server has metrics].",
        ),
    ] = None
    log_file_bytes: Annotated[
        int,
        Field(
            ge=65536,
            description="On one machine: a process whose log file is longer begins a new one; the "
            "one before it is kept, with .1 after its name.",
        ),
    ] = 64 << 20
    process_log_format: Annotated[
        Literal["text", "json"],
        Field(
            description="How processes write their logs: as text, or one JSON object a line. What "
            "frameworks and your code print stays as it is."
        ),
    ] = "text"
    tensorboard_log_dir: Annotated[
        Path | None,
        Field(
            description="Folder for TensorBoard: loss, metrics, learning rate and throughput "
            "[default: none]."
        ),
        _TRAIN,
    ] = None
    tensorboard_histograms: Annotated[
        bool,
        Field(
            description="Also a histogram of each dense parameter at each checkpoint of "
            "--checkpoint_dir, a folder."
        ),
        _TRAIN,
    ] = False
