"""The settings of a job on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from elasticdl.settings.launcher import LauncherFacts
from elasticdl.settings.resources import parse_resources
from elasticdl.settings.section import PackageSection

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

LAUNCHER = LauncherFacts(
    parts="elasticdl.packages.ray.parts:PARTS",
    title="Ray",
    description="a Ray cluster",
    place="an actor of Ray",
    shares_folder=True,
    starts_other_roles=False,
)


class RaySection(PackageSection):
    """Ray."""

    changes_nothing: ClassVar[bool] = True

    ray_address: Annotated[
        str,
        Field(
            pattern=r"^(auto|[^/\s]+:\d+)$",
            description="The Ray cluster, HOST:PORT of its head; auto: the one that this machine "
            "is a node of, or RAY_ADDRESS.",
        ),
    ] = "auto"

    def check(self, job: JobConfig) -> None:
        """Refuse an address without Ray, and requests for disks, which Ray does not know."""
        if job.launcher_name != "ray":
            if self.given():
                raise ValueError(
                    f"--ray_address={self.ray_address} is of jobs on Ray: give --launcher=ray"
                )
            return
        for role in ("master", "worker", "ps"):
            asked = getattr(job.resources, f"{role}_resource_request")
            if "ephemeral-storage" in parse_resources(asked):
                raise ValueError(
                    f"--{role}_resource_request={asked}: Ray knows no disks: expected cpu, memory, "
                    "gpu or a resource of its nodes"
                )
