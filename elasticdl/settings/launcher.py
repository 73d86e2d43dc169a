"""What the settings of a job must know of each launcher. A package brings one by `launchers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from elasticdl import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFacts:
    """Facts of a launcher; `--launcher` chooses the launcher by its name.

    Attributes:
        parts: The object that acts, a `launchers.parts.LauncherParts`, as "module:name".
        title: The name of the system, as users write it.
        description: The launcher in the help of `--launcher`, such as "a Ray cluster".
        place: What the launcher runs a process in, such as "a pod".
        is_cluster: The processes may be on several machines.
        shares_folder: All machines see the job's folder, and the processes find each other in it.
        sees_files: The processes see the files of the command's machine: folder, data and model.
        metrics: Where a process can serve `--metrics_port`: at the loopback address of its machine,
            or at each address of the process's own; "" if nobody could reach it.
        metrics_help: What the help of `--metrics_port` says of the launcher; "" if nothing.
        secret_help: How a process gets the environment variable {variable}, for messages; "" if it
            is set where the job is started.
        starts_other_roles: The launcher starts processes of packages, such as model servers.
        own_options: A flag of the launcher that can say what flags of other launchers say.
        dry_run: The help of `--dry_run`; "" if the launcher cannot print what it would ask for.
        implied_by: The place of a setting that chooses the launcher without `--launcher`.
    """

    parts: str
    title: str
    description: str
    place: str
    is_cluster: bool = True
    shares_folder: bool = False
    sees_files: bool = True
    metrics: Literal["loopback", "own", ""] = ""
    metrics_help: str = ""
    secret_help: str = ""
    starts_other_roles: bool = True
    own_options: str = ""
    dry_run: str = ""
    implied_by: tuple[str, ...] = ()

    @property
    def place_name(self) -> str:
        """The place without its article, such as "pod"."""
        return self.place.partition(" ")[2]


PROCESS = "process"
_OWN = {
    PROCESS: LauncherFacts(
        parts="elasticdl.launchers.process.parts:PARTS",
        title="this machine",
        description="this machine",
        place="a process",
        is_cluster=False,
        metrics="loopback",
        metrics_help="On one machine 0, any free port each: files in JOB_DIR/metrics/ say where.",
    ),
}


@cache
def launchers() -> Mapping[str, LauncherFacts]:
    """Return the launchers by name: those of the core first, then those of packages."""
    return _OWN | registry.brought("launchers")


def check_launcher(name: object) -> object:
    """Check that something brings a launcher.

    Raises:
        ValueError: Nothing does; says which launchers there are.
    """
    if name is None or name in launchers():
        return name
    raise ValueError(
        f"--launcher={name}: expected {', '.join(launchers())}; no package here brings a launcher "
        f"{name}: install the package, or choose another launcher"
    )


def metrics_help() -> str:
    """Return what launchers say in the help of `--metrics_port`."""
    return " ".join(facts.metrics_help for facts in launchers().values() if facts.metrics_help)


def secret_help(variable: str) -> str:
    """Return how a process gets an environment variable where the job runs elsewhere."""
    said = [facts.secret_help for facts in launchers().values() if facts.secret_help]
    return "".join(f", {words.format(variable=variable)}" for words in said)


def description() -> str:
    """Return the help of `--launcher`."""
    known = launchers()
    *others, last = (facts.description for facts in known.values())
    words = f"{', '.join(others)}, or {last}" if others else last
    implied = [
        f", and {name} with --{facts.implied_by[-1]}"
        for name, facts in known.items()
        if facts.implied_by
    ]
    return f"What runs the processes: {words} [default: {PROCESS}{''.join(implied)}]."
