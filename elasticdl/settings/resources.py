"""What each process of a job asks its cluster for, and how the words are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated

from pydantic import Field, model_validator

from elasticdl.job import Role
from elasticdl.settings.section import Section

_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E|)")
_FACTORS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    # The decimal kilo is written "k" and the binary one "Ki", as Kubernetes does.
    **{unit: Decimal(1000) ** (power + 1) for power, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (power + 1) for power, unit in enumerate("KMGTPE")},
}
_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_BYTES = ("memory", "ephemeral-storage")
_SHORT_NAMES = {"disk": "ephemeral-storage", "gpu": "nvidia.com/gpu"}


class ResourcesSection(Section):
    """Resources on a cluster."""

    master_resource_request: Annotated[
        str, Field(description='What the master requests: "cpu=1,memory=4096Mi,gpu=1".')
    ] = "cpu=0.1,memory=1024Mi"
    worker_resource_request: Annotated[
        str,
        Field(
            description="What each worker, and each model server, requests: "
            '"cpu=1,memory=4096Mi,gpu=1".'
        ),
    ] = "cpu=1,memory=4096Mi"
    ps_resource_request: Annotated[
        str, Field(description='What each ps replica requests: "cpu=1,memory=4096Mi,gpu=1".')
    ] = "cpu=1,memory=4096Mi"

    @model_validator(mode="after")
    def _words_are_resources(self) -> ResourcesSection:
        # The texts are parsed here once, so that a mistake is found before the job starts.
        for role in (Role.MASTER, Role.WORKER, Role.PS):
            try:
                self.requests(role)
            except ValueError as error:
                raise ValueError(f"--{role}_resource_request: {error}") from error
        return self

    def requests(self, role: Role) -> dict[str, str]:
        """Return the resources that a process of a role requests."""
        return parse_resources(getattr(self, f"{asks_as(role)}_resource_request"))


def asks_as(role: Role) -> Role:
    """Return the role whose resource flags apply; processes of packages count as workers."""
    return role if role in (Role.MASTER, Role.PS) else Role.WORKER


def parse_quantity(text: str) -> Decimal:
    """Return a quantity as a number, in the form of Kubernetes: "250m" is 0.25, "1Ki" is 1024."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a quantity such as 2, 250m or 4096Mi, found {text!r}")
    return Decimal(found[1]) * _FACTORS[found[2]]


def parse_resources(text: str) -> dict[str, str]:
    """Read "cpu=250m,memory=32Mi,gpu=1" into names of Kubernetes and quantities."""
    resources: dict[str, str] = {}
    for name, quantity in pairs(text, "cpu=1,memory=4096Mi"):
        name = _SHORT_NAMES.get(name, name)
        if name not in ("cpu", *_BYTES) and not _RESOURCE.fullmatch(name):
            raise ValueError(
                "expected cpu, memory, ephemeral-storage (or disk), gpu, or a device such as "
                f"amd.com/gpu, found {name!r}"
            )
        if name in resources:
            raise ValueError(f"expected each resource once, found {name} twice")
        parse_quantity(quantity)
        # A memory without a unit would be bytes, which no one means.
        if name in _BYTES and quantity[-1].isdecimal():
            raise ValueError(f"{name}: expected a unit, such as {quantity}Mi, found {quantity!r}")
        resources[name] = quantity
    return resources


def pairs(text: str, example: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of "NAME=VALUE,NAME=VALUE".

    Raises:
        ValueError: A piece has another form.
    """
    for piece in text.split(","):
        if not piece.strip():
            continue
        name, equals, value = (word.strip() for word in piece.partition("="))
        if not name or not equals or not value:
            raise ValueError(f"expected a form like {example}, found {piece.strip()!r}")
        yield name, value
