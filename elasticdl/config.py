"""Every setting of a job, validated once and handed to each process as one JSON file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from elasticdl import registry
from elasticdl.errors import ConfigError
from elasticdl.job import Role, Strategy
from elasticdl.locations import Location, Url, is_remote
from elasticdl.settings import devices, reader_params
from elasticdl.settings.best import Best
from elasticdl.settings.checkpoint import REDO_MB_ON_CLUSTERS, CheckpointSection
from elasticdl.settings.cluster import JOURNAL_FILE, ClusterSection
from elasticdl.settings.conflicts import check_conflicts, check_destinations
from elasticdl.settings.data import DataSection
from elasticdl.settings.launcher import PROCESS, LauncherFacts, launchers
from elasticdl.settings.model import STATISTICS_VARIABLE, ModelSection
from elasticdl.settings.resources import ResourcesSection
from elasticdl.settings.section import Command, Only, PackageSection, Section
from elasticdl.settings.seeing import SeeingSection
from elasticdl.settings.training import EvaluationSection, TrainingSection

__all__ = [
    "STATISTICS_VARIABLE",
    "CheckpointSection",
    "ClusterSection",
    "Command",
    "DataSection",
    "EvaluationSection",
    "JobConfig",
    "ModelSection",
    "Only",
    "Section",
    "TrainingSection",
]


def _is_url(place: Location | None) -> bool:
    return place is not None and is_remote(place)


AUTO_EXCHANGED = ((2, 2), (4, 4), (16, 8), (64, 16))
"""With --exchange_minibatches=auto: from how many ps replicas on, and how many minibatches."""

_SQLITE = "sqlite://"
_SQLITE_BYTES = 512 - len("-journal")
"""Largest length of a journal's path. SQLite opens at most 512 bytes, `-journal` included."""

# The name of a job's folder has the time and the process id after the name of the job.
_NAME_BYTES = 255 - len("-20260101-000000-1000")

_PATH_BYTES = 4096 - 256
"""Largest length of the path of a job's folder. The rest is room for names of files in it."""


def _check_length(flag: str, path: Path, most: int) -> None:
    found = len(os.fsencode(os.path.realpath(path)))
    if found > most:
        raise ValueError(
            f"--{flag}: expected a path of at most {most} bytes, in which the job can open its "
            f"files, found one of {found}: name a shorter one"
        )


OfPackage = TypeVar("OfPackage", bound=PackageSection)

if TYPE_CHECKING:
    PackageSections = Section
else:
    # The core knows no package, so the fields of this section are made from the registry.
    PackageSections = create_model(
        "PackageSections",
        __base__=Section,
        **{name: (kind, kind()) for name, kind in registry.brought("sections").items()},
    )


class JobConfig(Section):
    """All settings of one job."""

    command: Command
    model: ModelSection
    data: DataSection = DataSection()
    training: TrainingSection = TrainingSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    cluster: ClusterSection = ClusterSection()
    seeing: SeeingSection = SeeingSection()
    resources: ResourcesSection = ResourcesSection()
    packages: PackageSections = PackageSections()

    def package_sections(self) -> list[PackageSection]:
        """Return the settings of all packages."""
        return [getattr(self.packages, name) for name in type(self.packages).model_fields]

    def of(self, kind: type[OfPackage]) -> OfPackage:
        """Return the settings of the package whose section has this type."""
        return next(each for each in self.package_sections() if type(each) is kind)

    @property
    def claims(self) -> dict[str, Location | None]:
        """The places that no other running job may write to, by flag."""
        return {"checkpoint_dir": self.checkpoint.checkpoint_dir} | {
            name: place for each in self.package_sections() for name, place in each.claims.items()
        }

    @property
    def trains_on(self) -> str:
        """The source of the training records: --training_data, or what a package has for it."""
        others = (each.trains_on for each in self.package_sections())
        return self.data.training_data or next(filter(None, others), "")

    @property
    def launcher_name(self) -> str:
        """The name of what runs the processes."""
        return self.cluster.launcher or _implied_launcher(self)

    @property
    def launcher(self) -> LauncherFacts:
        """The facts of what runs the processes."""
        return launchers()[self.launcher_name]

    @property
    def shares_folder(self) -> bool:
        """Whether processes on several machines find each other in the job's folder."""
        return self.launcher.shares_folder

    @property
    def is_on_cluster(self) -> bool:
        """Whether its processes may be on several machines."""
        return self.launcher.is_cluster

    @property
    def num_ps(self) -> int:
        """How many ps replicas the job has."""
        if self.training.distribution_strategy not in (Strategy.PARAMETER_SERVER, Strategy.HYBRID):
            return 0
        # An exported model is whole in each worker.
        return 0 if self.checkpoint.saved_model else self.cluster.num_ps_pods

    @property
    def minibatches_per_exchange(self) -> int:
        """How many minibatches are pulled together, and pushed in one frame to each replica."""
        if self.training.exchange_minibatches != "auto":
            return self.training.exchange_minibatches
        found = [number for replicas, number in AUTO_EXCHANGED if self.num_ps >= replicas]
        return found[-1] if found else 1

    @property
    def redo_log_bytes(self) -> int:
        """Bytes of a ps replica's redo log; 0: none is kept."""
        if not self.num_ps or not self.checkpoint.recovery_seconds:
            return 0
        megabytes = self.checkpoint.ps_redo_mb
        if megabytes is None:
            megabytes = REDO_MB_ON_CLUSTERS if self.is_on_cluster else 0
        return megabytes * 1_000_000

    @property
    def why_ps_stay(self) -> str:
        """Why the number of ps replicas cannot change while the job runs; "": it can."""
        training, checkpoint = self.training, self.checkpoint
        found = [
            (self.command != "train", "this is no training job, expected one"),
            (
                not self.num_ps,
                f"--distribution_strategy={training.distribution_strategy}, expected "
                f"{Strategy.PARAMETER_SERVER} or {Strategy.HYBRID}",
            ),
            (
                checkpoint.recovery_seconds == 0,
                "--recovery_seconds=0, expected more: a move writes a checkpoint into the folder "
                "of the job",
            ),
            (
                checkpoint.ps_recovery != "replay",
                f"--ps_recovery={checkpoint.ps_recovery}, expected replay",
            ),
            (self.cluster.ps_disk is not None, "--ps_disk, expected none so far"),
        ]
        return next((why for stays, why in found if stays), "")

    @property
    def records_per_task(self) -> int:
        """The number of records of a task, if its shard has so many."""
        return self.training.minibatch_size * self.training.num_minibatches_per_task

    @property
    def other_processes(self) -> dict[Role, int]:
        """How many processes the job has beside master, workers and ps replicas, by role."""
        sections = self.package_sections()
        return {role: number for each in sections for role, number in each.processes.items()}

    def is_given(self, name: str) -> bool:
        """Whether a setting differs from its default; False where no section has it."""
        owner: Any = self
        for section in _HOMES.get(name, ()):
            owner = getattr(owner, section)
        return name in _HOMES and name in owner.given()

    def does_for_all(self, worker_id: int) -> bool:
        """Whether a worker does the work that one worker does for all workers.

        The first worker does it, and each worker that was started later: one of these may have
        taken the place of the first one.
        """
        return not 0 < worker_id < self.cluster.num_workers

    @property
    def has_worlds(self) -> bool:
        """Whether the workers hold parameters (all, or the dense ones) and reduce gradients."""
        strategy = self.training.distribution_strategy
        is_theirs = strategy in (Strategy.ALLREDUCE, Strategy.HYBRID)
        return is_theirs and not self.checkpoint.saved_model

    @property
    def is_local(self) -> bool:
        """Whether the job is one process, without a journal."""
        return self.training.distribution_strategy is Strategy.LOCAL

    @property
    def keeps_own_checkpoints(self) -> bool:
        """Whether the job has a lasting folder in which it can keep checkpoints."""
        has_folder = self.cluster.job_dir is not None
        return has_folder and (self.is_local or self.checkpoint.recovery_seconds > 0)

    @property
    def is_synchronous(self) -> bool:
        """Whether gradients of several workers make one update, so that workers wait."""
        return self.has_worlds or not self.training.use_async

    @property
    def pipeline_depth(self) -> int:
        """The number of its own updates that may be under way when a worker pulls."""
        training = self.training
        strategy = training.distribution_strategy
        if self.is_synchronous and strategy is not Strategy.HYBRID:
            return 0
        # More than two save no time: one minibatch is computed, one is pulled, one is pushed.
        if training.max_staleness is not None:
            return min(2, training.max_staleness)
        return 2 if strategy is Strategy.PARAMETER_SERVER else 0

    @property
    def staleness_bound(self) -> int | None:
        """The number of updates by which ps replicas let a gradient be late; None: no bound.

        Workers of a hybrid job wait for each other in the ring, so each worker keeps the bound.
        """
        is_hybrid = self.training.distribution_strategy is Strategy.HYBRID
        return None if is_hybrid else self.training.max_staleness

    @property
    def grads_to_wait(self) -> int | None:
        """The number of gradients in an update; None if each gradient is applied at once."""
        if self.training.use_async:
            return None
        return self.training.grads_to_wait or self.cluster.num_workers

    @model_validator(mode="after")
    def _settings_fit_together(self) -> JobConfig:
        # This reads what is written in the settings, so that a wrong word is refused.
        Best.of(self.checkpoint.keep_best)
        check_conflicts(self)
        self._check_launcher()
        self._check_metrics_port()
        self._check_lengths()
        self._check_destinations()
        self._check_passwords()
        for section in self.package_sections():
            section.check(self)
        return self

    def _check_lengths(self) -> None:
        """Refuse paths that are too long for the files of the job."""
        job_dir, state = self.cluster.job_dir, self.cluster.state
        most = _PATH_BYTES
        if state is None and not self.is_local:
            most = _SQLITE_BYTES
        elif state is not None and state.startswith(_SQLITE):
            _check_length("state", Path(state.removeprefix(_SQLITE)), _SQLITE_BYTES)
        if job_dir is not None:
            _check_length("job_dir", job_dir, most - len(f"/{JOURNAL_FILE}"))
        elif len(os.fsencode(self.cluster.job_name)) > _NAME_BYTES:
            raise ValueError(
                f"--job_name: expected at most {_NAME_BYTES} bytes, since the folder of the job "
                f"is called so, found {len(os.fsencode(self.cluster.job_name))}"
            )

    def _check_destinations(self) -> None:
        if self.command == "train":
            check_destinations(
                {
                    "output": self.checkpoint.output,
                    "export_tables": self.checkpoint.export_tables,
                    "checkpoint_dir": self.checkpoint.checkpoint_dir,
                    "job_dir": self.cluster.job_dir,
                    "tensorboard_log_dir": self.seeing.tensorboard_log_dir,
                }
                | {k: v for each in self.package_sections() for k, v in each.destinations.items()}
            )

    def _check_passwords(self) -> None:
        """Refuse passwords in the names of places, which are in logs and in the job's state."""
        found = [*vars(self.checkpoint).items(), ("state", self.cluster.state)]
        for each in self.package_sections():
            found += each.destinations.items()
        for name, place in found:
            if isinstance(place, Url | str) and reader_params.has_password(str(place)):
                instead = (
                    "user_file=/PATH as docs/designs/state.md says"
                    if name == "state"
                    else "where its driver looks for one, as in the environment"
                )
                raise ValueError(
                    f"--{name}={reader_params.without_password(str(place))}: the name of a place "
                    f"is in logs and in the job's state: expected no password in it, but {instead}"
                )

    def _check_metrics_port(self) -> None:
        port = self.seeing.metrics_port
        place = self.launcher.metrics
        if port is not None and not place:
            can = " or ".join(name for name, facts in launchers().items() if facts.metrics)
            raise ValueError(
                f"--metrics_port: with --launcher={self.launcher_name} the processes of a job "
                f"have no port that Prometheus could reach: expected --launcher={can}, or not this "
                "flag"
            )
        if port is not None and (place == "own") != (port > 0):
            expected = (
                f"a port above 0 in each {self.launcher.place_name}"
                if place == "own"
                else "0, since all processes are on one machine"
            )
            raise ValueError(f"--metrics_port={port}: expected {expected}")

    def _check_launcher(self) -> None:
        named = devices.names(self.cluster.worker_devices)
        is_local = self.training.distribution_strategy is Strategy.LOCAL
        if len(named) > 1 and (is_local or self.is_on_cluster):
            why = (
                "of which there is one"
                if is_local
                else f"and {self.launcher.place} has GPUs of its own"
            )
            raise ValueError(
                f"--worker_devices={self.cluster.worker_devices}: several devices are dealt to the "
                f"workers of one machine, {why}: expected one device, as cuda:0"
            )
        self._check_requests()
        if not self.is_on_cluster:
            return
        if self.training.distribution_strategy is Strategy.LOCAL:
            raise ValueError(
                "--distribution_strategy=Local uses one process, on this machine: expected "
                f"--distribution_strategy={Strategy.PARAMETER_SERVER} on {self.launcher.title}"
            )

    def _check_requests(self) -> None:
        """Refuse requests for resources where no cluster runs the job."""
        if not self.is_on_cluster and (asked := self.resources.given()):
            clusters = " or ".join(name for name, facts in launchers().items() if facts.is_cluster)
            raise ValueError(
                f"--{asked[0]} is what a process requests on a cluster: expected "
                f"--launcher={clusters or 'NAME of a package'}, or not this flag"
            )

    @model_validator(mode="before")
    @classmethod
    def _strategy_of_clusters(cls, values: Any) -> Any:
        """Choose ps replicas for parameters on a cluster, unless the user chose a strategy."""
        if not isinstance(values, dict):
            return values
        values = _relocated(values)
        cluster, training = (values.get(name) or {} for name in ("cluster", "training"))
        if not (isinstance(cluster, dict) and isinstance(training, dict)):
            return values  # the caller has made the sections, so they have their defaults
        facts = launchers().get(cluster.get("launcher") or _implied_launcher(values))
        if facts is None or not facts.is_cluster or training.get("distribution_strategy"):
            return values
        return values | {
            "training": training | {"distribution_strategy": str(Strategy.PARAMETER_SERVER)}
        }

    def going_on(self, now: JobConfig) -> JobConfig:
        """Return the settings with which a later command goes on with this job.

        The later command decides the settings for pages and logs, and those that packages leave
        free. It also decides the model if `--model_changes` is set.
        """
        packages = {
            name: getattr(self.packages, name).model_copy(
                update={each: getattr(getattr(now.packages, name), each) for each in kind.free()}
            )
            for name, kind in _package_sections().items()
        }
        sections: dict[str, Any] = {
            "seeing": now.seeing,
            "packages": self.packages.model_copy(update=packages),
            "model": now.model if now.model.model_changes else self.model,
        }
        return self.model_copy(update=sections)

    def shown(self) -> dict[str, Any]:
        """Return all settings as values of JSON, with *** in place of secrets."""
        return shown_settings(self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> JobConfig:
        """Read a configuration that `write` wrote.

        Raises:
            ConfigError: There is none, or it is not one of this version of elasticdl.
        """
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, found['loc'])) or 'the file'}: {found['msg']}"
                for found in error.errors(include_input=False, include_url=False)
            )
            raise ConfigError(
                f"{path}: expected the settings of a job, as this version of elasticdl writes "
                f"them: {wrong}"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: expected the settings of a job: {error}") from error

    def write(self, path: Path) -> None:
        """Write the configuration as JSON."""
        path.write_text(self.model_dump_json(indent=2))


def _package_sections() -> dict[str, type[PackageSection]]:
    return registry.brought("sections")


def free_settings() -> set[str]:
    """Return the settings of packages that may change when a job goes on."""
    return {each for kind in _package_sections().values() for each in kind.free()}


_SHOWN_AS = {
    "data_reader_params": reader_params.shown,
    "model_params": reader_params.shown,
    **{
        setting: shown
        for section in _package_sections().values()
        for setting, shown in section.shown_as.items()
    },
}


def shown_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by section and name, with *** in place of secrets."""
    return {name: shown_setting(name, value) for name, value in values.items()}


def shown_setting(name: str, value: Any) -> Any:
    """Return the value of a setting or a section in a form that anybody may see."""
    if isinstance(value, Mapping):
        return shown_settings(value)
    if isinstance(value, list | tuple):
        return [shown_setting(name, each) for each in value]
    if not isinstance(value, str):
        return value
    return _SHOWN_AS.get(name, reader_params.without_password)(value)


def completed(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that an earlier version has shown, with the settings of this version added.

    A setting or a section that the earlier version did not have gets its default.
    """
    sections = {
        name: defaults
        for name, field in JobConfig.model_fields.items()
        if (defaults := _defaults(field)) is not None
    }
    return _over(sections, _relocated(shown))


def _relocated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, each in the section that has it now; an earlier version had other sections.

    A setting has the same name in all versions, and no two sections have one of the same name.
    """
    found = {name: dict(each) if isinstance(each, dict) else each for name, each in values.items()}
    for name, section in values.items():
        if not isinstance(section, dict) or name == "packages":
            continue
        for setting in section:
            home = _HOMES.get(setting)
            if home is None or home == (name,):
                continue
            place = found
            for each in home:
                place[each] = dict(place.get(each) or {})
                place = place[each]
            place.setdefault(setting, found[name].pop(setting))
        if name not in JobConfig.model_fields and not found[name]:
            del found[name]
    return found


def _homes(kind: type[Section], path: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the settings below a section, each with the place of its section."""
    for name, field in kind.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, Section):
            yield from _homes(below, (*path, name))
        else:
            yield name, path


_HOMES = dict(_homes(JobConfig, ()))


def _implied_launcher(settings: Any) -> str:
    """Return the launcher that settings, as objects or JSON, ask for without a name."""
    for name, facts in launchers().items():
        found = settings
        for each in facts.implied_by:
            found = found.get(each) if isinstance(found, dict) else getattr(found, each, None)
        if facts.implied_by and found:
            return name
    return PROCESS


def _over(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return dict(defaults) | {
        name: _over(defaults[name], value)
        if isinstance(value, dict) and isinstance(defaults.get(name), dict)
        else value
        for name, value in given.items()
    }


def _defaults(field: FieldInfo) -> dict[str, Any] | None:
    section = field.annotation
    if not (isinstance(section, type) and issubclass(section, Section)):
        return None
    return {
        name: to_jsonable_python(setting.get_default(call_default_factory=True))
        for name, setting in section.model_fields.items()
        if not setting.is_required()
    }
