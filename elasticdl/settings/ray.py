"""The settings of a job on a Ray cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from elasticdl.settings.section import Section


class RaySection(Section):
    """Ray."""

    ray_address: Annotated[
        str,
        Field(
            pattern=r"^(auto|[^/\s]+:\d+)$",
            description="The Ray cluster, HOST:PORT of its head; auto: the one that this machine "
            "is a node of, or RAY_ADDRESS.",
        ),
    ] = "auto"
