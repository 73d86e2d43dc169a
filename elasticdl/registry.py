"""Finds the packages: folders that bring features, unknown to the core.

A package is a module with an attribute `PACKAGE`. The packages of this distribution are the folders
in `elasticdl/packages`. Another distribution names its packages by an entry point:

    [project.entry-points."elasticdl.packages"]
    mine = "my_module"

A package names each of its parts as "module:name". The module is imported only when the part is
used, so a package that is not used costs nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from elasticdl.errors import ConfigError

GROUP = "elasticdl.packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """The parts of a package; a value is "module:name", unless its entry says otherwise.

    Attributes:
        needs: Names of packages. If one of them is missing, this package is left out.
        commands: Commands of `elasticdl`, by their names: objects of Click.
        names: Names in the module `elasticdl`, such as `train` for `elasticdl.train`.
        sections: Settings of a job, by the name of the section: subclasses of `PackageSection`.
        trackers: Functions that begin a tracker, of the type `observe.tracker.Begin`.
        launchers: Launchers, by the words of `--launcher`: `settings.launcher.LauncherFacts`.
        formats: Formats of data files, by name: each is a `data.kinds.FileFormat`.
        sources: Sources of data other than files, by name: each is a `data.kinds.DataSource`.
        backends: Frameworks of models, by name: each is a `backends.backend.Backend`.
        model_built: Functions that a worker calls after it has built its model: each is a
            `worker.worker_process.ModelBuilt`.
        programs: Programs that a worker runs in place of a model file: each is a
            `worker.worker_process.Program`.
        script_frameworks: Frameworks of scripts, by the names of their backends: each is a
            `ScriptFramework` of the package `own_loops`.
        modules: Modules that users import from the core's folders, such as
            `elasticdl.layers.torch`. Each value is the module of the package that has the code.
        model_files: Objects that prepare for model files of a kind, and adapt their functions: each
            is a `model_spec.AdaptsModelFiles`.
        other_flags: Flags of other programs, by the program: each maps a flag to a hint for users.
        read_once: Training data of which the job keeps a copy: each is a `data.kinds.ReadOnce`.
        features: Functions that return the features of a job's master, from `JobParts`.
        tables: Functions that make the table of training tasks, if tasks are cut while the job
            runs: each is a `master.tasks.MakeTable`.
        readings: Functions that return observers of the records that a worker reads: each is a
            `worker.reading.MakeReadings`.
        roles: Processes of a job beside those of the core, by role: each is a module that Python
            runs.
        services: Functions that add services to the master's server: each is a
            `master.servicer.AddService`.
        row_sources: Functions that return sources of rows that are in no store: each is a
            `worker.row_source.MakeSources`.
        rings: The function that makes the ring of a worker: a `worker.ring.MakeRing`.
        step_watches: Functions that return watches of a worker's steps: each is a
            `worker.step_watch.MakeWatches`.
        worlds: The function that makes the worlds of workers in the master: a
            `master.parameters.pair.MakeWorlds`.
        kinds: Kinds of events, by their names in the log: subclasses of `observe.kind.Kind`.
        views: Objects that show a part of the status of a job: each is a
            `cli.status_views.StatusView`.
        other_names: Names of other programs that people write: each is a
            `cli.other_names.OtherNames`.
        journals: Kinds of journals that are not in a file: each is a `state.base.JournalKind`.
        pages: The part that makes pages and serves metrics: an `observe.page.Pages`.
        profilers: Functions that return what looks for requests of profiles in a process, by role:
            each is an `observe.page.MakeProfiler`.
        process_starts: Functions that a process of a job calls when it starts, with the folder and
            the secret of the job. They are not called where the launcher makes the secret.
        job_folders: Functions that are called when the folder of a job is filled, with the
            settings, the folder and the secret of the job.
        advisers: The function that returns an `observe.adviser.Adviser`, from `JobConfig` and the
            time. The adviser looks for unusual things in a job.
        first_rows: The part that reads the rows with which tables begin: a
            `checkpoints.first_rows.FirstRows`.
        looks: Functions that look for odd data before the job trains: each is a
            `worker.data_check.LookAtData`.
        checks: Functions that check a job before it starts, by its `JobConfig`, and return notes.
    """

    needs: tuple[str, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    trackers: Mapping[str, str] = field(default_factory=dict)
    launchers: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    backends: Mapping[str, str] = field(default_factory=dict)
    model_built: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    script_frameworks: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    model_files: Mapping[str, str] = field(default_factory=dict)
    other_flags: Mapping[str, str] = field(default_factory=dict)
    read_once: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    readings: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    services: Mapping[str, str] = field(default_factory=dict)
    row_sources: Mapping[str, str] = field(default_factory=dict)
    rings: Mapping[str, str] = field(default_factory=dict)
    step_watches: Mapping[str, str] = field(default_factory=dict)
    worlds: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    other_names: Mapping[str, str] = field(default_factory=dict)
    journals: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    profilers: Mapping[str, str] = field(default_factory=dict)
    process_starts: Mapping[str, str] = field(default_factory=dict)
    job_folders: Mapping[str, str] = field(default_factory=dict)
    advisers: Mapping[str, str] = field(default_factory=dict)
    first_rows: Mapping[str, str] = field(default_factory=dict)
    looks: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, str] = field(default_factory=dict)


def places(kind: str) -> dict[str, str]:
    """Return the places "module:name" of one kind of parts, for all packages.

    Args:
        kind: A field of `Package`.

    Raises:
        ConfigError: Two packages bring the same name, or a package cannot be imported.
    """
    found: dict[str, str] = {}
    for package in packages().values():
        for name, place in getattr(package, kind).items():
            if name in found:
                raise ConfigError(
                    f"packages bring {name!r} of {kind} twice, {found[name]} and {place}: "
                    "remove one of them"
                )
            found[name] = place
    return found


def brought(kind: str) -> dict[str, Any]:
    """Return the parts of one kind of all packages, by name.

    Raises:
        ConfigError: Two packages bring the same name, or a package cannot be imported.
    """
    return {name: load(place) for name, place in places(kind).items()}


def only(kind: str) -> Any:
    """Return the only part of a kind; None if no package brings one."""
    return next(iter(brought(kind).values()), None)


@cache
def packages() -> Mapping[str, Package]:
    """Return all packages by their names, those of this distribution first.

    Raises:
        ConfigError: A package cannot be imported, or has no `PACKAGE`.
    """
    modules = {each.name: f"{GROUP}.{each.name}" for each in pkgutil.iter_modules(_folders())}
    modules |= {each.name: each.value for each in entry_points(group=GROUP)}
    found = {name: load(f"{module}:PACKAGE") for name, module in modules.items()}
    return {name: each for name, each in found.items() if found.keys() >= set(each.needs)}


def load(place: str) -> Any:
    """Return the object at "module:name".

    Raises:
        ConfigError: The module cannot be imported, or has no such name.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"package {place}: {error}; remove the package or mend it") from error


def module(name: str, package: str) -> ModuleType:
    """Return the module of a package that users import by a name of the core.

    Args:
        name: The name, a key of `Package.modules`.
        package: The package that has it in this distribution, for the message.

    Raises:
        ImportError: No package has it, or its module cannot be imported.
    """
    place = places("modules").get(name)
    if place is None:
        raise ImportError(
            f"{name}: expected the package {package!r} of elasticdl, found it removed; install "
            "elasticdl anew"
        )
    return importlib.import_module(place)


def _folders() -> list[str]:
    try:
        return list(importlib.import_module(GROUP).__path__)
    except ModuleNotFoundError:  # all packages were removed
        return []
