"""Jobs on a Ray cluster, as a command sees them: the folder is shared, the keeper is an actor."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError, LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import SubmittedJob
from elasticdl.launchers.process import folder
from elasticdl.launchers.process.folder_job import FolderJob
from elasticdl.packages.ray import cluster
from elasticdl.packages.ray.keepers import JobKeeper, Surroundings, as_actor, stop_signals
from elasticdl.packages.ray.resources import asked_for, options_of, why_it_waits
from elasticdl.packages.ray.settings import RaySection
from elasticdl.runtime import process

_BEGIN_SECONDS = 15.0  # that a command waits for the first master; it may wait for room for longer
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 3.0  # of a keeper that runs

_REFUSED = "the actor of the master cannot be made"

_log = logging.getLogger(__name__)


class RaySubmitter:
    """`launchers.base.Submitter` of a Ray cluster."""

    def submit(self, config: JobConfig, is_tied: bool) -> SubmittedJob:
        """Make the actor that keeps the job's master; no job on a cluster is tied to a command."""
        ray = cluster.library()
        cluster.connect(config.of(RaySection).ray_address)
        name = config.cluster.job_name
        if cluster.find_actor(cluster.keeper_name(name)) is not None:
            raise LaunchError(_there_is(name))
        with folder.prepared(config) as held:
            job_dir = held.job_dir
            folder.clear(job_dir)
        try:
            make = as_actor(
                JobKeeper,
                cluster.keeper_name(name),
                max_restarts=-1,
                **options_of(asked_for(config, Role.MASTER)),
            )
            keeper = make.remote(Surroundings(name, str(job_dir), str(Path.cwd())))
        except (ValueError, ray.exceptions.RayError) as error:
            if cluster.find_actor(cluster.keeper_name(name)) is not None:  # of another command
                raise LaunchError(_there_is(name)) from error
            raise LaunchError(f"{_REFUSED}: {cluster.last_line(error)}") from error
        try:
            problem = ray.get(keeper.begun.remote(), timeout=_BEGIN_SECONDS)
        except ray.exceptions.GetTimeoutError:
            problem = ""  # it waits for room
        except ray.exceptions.RayError as error:
            problem = f"{_REFUSED}: {cluster.last_line(error)}"
        except BaseException:  # Ctrl-C: the job would begin, and nobody would know of it
            ray.kill(keeper, no_restart=True)
            raise
        if problem:
            cluster.kill_actor(cluster.keeper_name(name))
            raise LaunchError(problem)
        return FolderJob(job_dir, _Keeper(config, job_dir))

    def find(self, name: str) -> SubmittedJob | None:
        """Return a job by its folder, or by the name of a folder below `jobs`."""
        job_dir = folder.find(name)
        if job_dir is None:
            return None
        config = JobConfig.read(job_dir / process.CONFIG_FILE)
        if config.launcher_name != "ray":
            return None
        has_ended = (job_dir / process.PICTURE_FILE).exists()
        if not has_ended:
            try:
                cluster.connect(config.of(RaySection).ray_address)
            except ElasticdlError:
                has_ended = (job_dir / folder.END_FILE).exists()
                if not has_ended:
                    raise
        return FolderJob(job_dir, _Keeper(config, job_dir, has_ended))

    def places_of(self, name: str) -> str:
        """Return "": the launcher of this machine names the same folders."""
        return ""


def _there_is(name: str) -> str:
    return (
        f"there is a job {name} on this Ray cluster already: elasticdl stop with its folder ends "
        "it; or give another --job_name"
    )


class _Keeper:
    """`JobRoot` of a job on Ray: the actor that keeps the job's root."""

    is_tied = False

    def __init__(self, config: JobConfig, job_dir: Path, has_ended: bool = False) -> None:
        self._config = config
        self._job_dir = job_dir
        self._name = cluster.keeper_name(config.cluster.job_name)
        self._looked_at = 0.0
        self._begun: Any = None  # an answer of the keeper that did not come yet
        self._has_ended = has_ended

    def wait(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self._has_ended:
            now = time.monotonic()
            if now - self._looked_at >= _LOOK_SECONDS:
                self._looked_at = now
                self._has_ended = cluster.find_actor(self._name) is None
            elif now >= deadline:
                return False
            else:
                time.sleep(min(deadline - now, _LOOK_SECONDS / 10))
        return True

    def code(self) -> int | None:
        return None

    def waiting(self) -> str:
        actor = None if self.wait(0.0) else cluster.find_actor(self._name)
        if actor is None:
            return ""
        ray = cluster.library()
        begun, self._begun = self._begun or actor.begun.remote(), None
        try:
            ray.get(begun, timeout=_LOOK_SECONDS)
        except ray.exceptions.GetTimeoutError:
            self._begun = begun
        except ray.exceptions.ActorUnavailableError:
            _log.debug("%s goes to another node", self._name)
        except ray.exceptions.RayError as error:
            _log.debug("%s: %s", self._name, error)
            return ""  # it is gone
        else:
            return ""
        # A master before may have left its address, so that tells nothing.
        asked = asked_for(self._config, Role.MASTER)
        return why_it_waits(asked, cluster.nodes(), cluster.free())

    def page(self, url: str) -> str:
        return ""  # it is at the loopback address of the master's node

    def end(self, at_once: bool) -> None:
        ray = cluster.library()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self._has_ended and (actor := cluster.find_actor(self._name)) is not None:
            left = max(0.0, deadline - time.monotonic())
            try:
                ray.get(actor.send.remote(stop_signals(at_once)), timeout=left)
            except ray.exceptions.ActorUnavailableError:  # it is between two nodes
                if left:
                    time.sleep(_LOOK_SECONDS / 10)
                    continue
                cluster.kill_actor(self._name)
            except ray.exceptions.GetTimeoutError:
                cluster.kill_actor(self._name)  # it waits for a node
            except ray.exceptions.RayError as error:
                _log.debug("%s: %s", self._name, error)  # it is gone
            return
