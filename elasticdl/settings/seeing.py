"""How a job is looked at while it runs. None of it changes what is trained."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

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
    tensorboard_log_dir: Annotated[
        Path | None,
        Field(
            description="Folder for TensorBoard: loss, metrics, throughput, and the learning rate "
            "where --learning_rate or a callback sets it [default: none]."
        ),
        _TRAIN,
    ] = None
