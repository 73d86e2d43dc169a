"""The launcher of a job's master on Ray: each worker and ps replica has an actor, its keeper.

A handle is the name of an actor, which is drawn before the actor is made. One thread waits for the
answers of all actors, and looks now and then for nodes that are being drained. `_lock` guards the
state.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.config import JobConfig
from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import (
    Exited,
    ExitReason,
    OnEvent,
    PendingProcess,
    ProcessHandle,
    ProcessSpec,
    Started,
    tell,
)
from elasticdl.launchers.closing import stop_all
from elasticdl.packages.ray import cluster
from elasticdl.packages.ray.keepers import NODE_IP, RoleKeeper, Surroundings, as_actor
from elasticdl.packages.ray.resources import (
    Amounts,
    asked_for,
    is_feasible,
    options_of,
    why_it_waits,
)
from elasticdl.runtime.addresses import Listening
from elasticdl.runtime.process import process_name

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

_WAIT_SECONDS = 0.2  # for answers; a new process is asked after so long
_LOOK_SECONDS = 1.0  # between two looks at the nodes
_PATIENCE_SECONDS = 3.0  # before it is said why an actor waits
_PLACING_SECONDS = 20.0  # in which Ray places an actor for which there is room
_WITHDRAW_SECONDS = 2.0  # that an actor which was asked to end gets to say where it is
_LEAVE_SECONDS = 10.0  # so long may the last look at the actors take
_NODE_SECONDS = 3.0  # that Ray gets to notice that the node of a lost actor is lost too
_SPARE_SECONDS = 1.0  # of a node that is taken away, for the end of its actors
_NAME_BYTES = 3
_OF_LOST_NODE = "its node has died"  # in what Ray says of an actor that is gone

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Kept:
    """A process whose end was not told yet."""

    handle: ProcessHandle
    actor: Any
    place: Any  # what it answers once it runs; None when it was told
    end: Any  # what it answers when the process has ended
    since: float  # monotonic time
    certified: float  # monotonic time of its certificate
    node: str = ""
    why: str = ""  # what was told of its waiting
    was_asked: bool = False  # to end
    withdraw_at: float = math.inf  # monotonic time: when an actor is given up that was not placed
    is_on_leaving_node: bool = False
    lost: Any = None  # the error by which Ray says that the actor is gone
    lost_at: float = 0.0  # monotonic time


class RayLauncher:
    """Runs processes in actors; it implements `launchers.base.Launcher`."""

    listening = Listening(NODE_IP)

    def __init__(
        self,
        config: JobConfig,
        job_dir: Path,
        on_event: OnEvent,
        authority: JobAuthority | None = None,
    ) -> None:
        """Begin to watch the actors of the job.

        Raises:
            LaunchError: The cluster cannot be reached.
        """
        cluster.connect("auto")  # the keeper of this master has said which
        self._config = config
        self._authority = authority
        self._on_event = on_event
        self._where = Surroundings(config.cluster.job_name, str(job_dir), str(Path.cwd()))
        self._before = cluster.actors_below(f"{cluster.keeper_name(config.cluster.job_name)}/")
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._kept: dict[str, _Kept] = {}  # by handle.ref
        self._is_closing = False
        self._ends = threading.Event()
        self._asked_autoscaler: list[Amounts] = []
        self._thread = threading.Thread(target=self._watch, name="launcher", daemon=True)
        self._thread.start()

    # --- the contract ----------------------------------------------------------------------------

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Make an actor for a process; return before the actor is placed."""
        name = process_name(spec.role, spec.index)
        prefix = f"{cluster.keeper_name(self._config.cluster.job_name)}/{name}/"
        handle = ProcessHandle(spec.role, spec.index, prefix + secrets.token_hex(_NAME_BYTES))
        with self._lock:
            if self._is_closing:
                raise LaunchError(f"{name}: not started, because the job is ending")
            known = set(self._kept)
        self._certify(spec.role, spec.index)
        try:
            for stray in {name for name in self._before if name.startswith(prefix)} - known:
                log.warning("%s was made by a master that is gone; ended", stray)
                cluster.kill_actor(stray)
            actor = self._make(handle, spec)
        except Exception as error:  # of Ray, of many kinds
            raise LaunchError(f"{name}: Ray refuses its actor: {error}") from error
        self._add(handle, actor)
        return handle

    def _make(self, handle: ProcessHandle, spec: ProcessSpec) -> Any:
        options = options_of(asked_for(self._config, spec.role))
        if spec.role is Role.PS:
            options["scheduling_strategy"] = "SPREAD"
        make = as_actor(RoleKeeper, handle.ref, max_restarts=0, **options)
        return make.remote(self._where, str(spec.role), spec.index, list(spec.command))

    def _certify(self, role: Role, index: int) -> None:
        if self._authority is None:
            return
        try:
            self._authority.issue(role, index)
        except OSError as error:
            name = process_name(role, index)
            raise LaunchError(f"{name}: its certificate cannot be written: {error}") from error

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch an actor that an earlier master has made."""
        with self._lock:
            if self._is_closing:
                raise LaunchError("no process can be adopted, because the job is ending")
        if not handle.ref.startswith(cluster.keeper_name(self._config.cluster.job_name) + "/"):
            name = process_name(handle.role, handle.index)
            raise LaunchError(f"{name}: {handle.ref!r} is not an actor; is it of another launcher?")
        actor = cluster.find_actor(handle.ref)
        if actor is None:
            threading.Thread(
                target=tell, args=(self._on_event, Exited(handle, ExitReason.UNKNOWN, None))
            ).start()
        else:
            self._add(handle, actor)

    def _add(self, handle: ProcessHandle, actor: Any) -> None:
        now = time.monotonic()
        kept = _Kept(handle, actor, actor.place.remote(), actor.end.remote(), now, now)
        with self._lock:
            self._kept[handle.ref] = kept

    def stop(self, handle: ProcessHandle, grace_seconds: float) -> None:
        """Ask a process to end, and kill it after the grace period; withdraw a waiting one."""
        with self._lock:
            kept = self._kept.get(handle.ref)
            if kept is None:
                return
            kept.was_asked = True
            kept.withdraw_at = time.monotonic() + _WITHDRAW_SECONDS
        kept.actor.stop.remote(grace_seconds)

    def close(self, grace_seconds: float) -> None:
        """Stop every process, and wait until each is gone and reported. It may be called again."""
        with self._lock:
            self._is_closing = True
        for kept in stop_all(self._kept, self._changed, self.stop, grace_seconds):
            log.error("%s has not ended in time, and is killed", kept.handle.ref)
            cluster.library().kill(kept.actor, no_restart=True)
        self.leave(0.0)

    def leave(self, grace_seconds: float) -> None:
        """Stop watching; the actors go on, and another master adopts them."""
        with self._lock:
            self._is_closing = True
        self._ends.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_LEAVE_SECONDS)

    # --- what the actors say ---------------------------------------------------------------------

    def _watch(self) -> None:
        look_at = 0.0
        while not self._ends.is_set():
            try:
                self._take_answers()
                self._tell_lost()
                if time.monotonic() >= look_at:
                    self._look_at_nodes()
                    look_at = time.monotonic() + _LOOK_SECONDS
            except Exception:  # of Ray; the next look may be a better one
                log.exception("the Ray cluster cannot be asked")
                self._ends.wait(_LOOK_SECONDS)

    def _take_answers(self) -> None:
        with self._lock:
            kept = [each for each in self._kept.values() if each.lost is None]
        asked = {each.place: each for each in kept if each.place is not None}
        asked |= {each.end: each for each in kept}
        if not asked:
            self._ends.wait(_WAIT_SECONDS)
            return
        ray = cluster.library()
        answered, _ = ray.wait(list(asked), num_returns=1, timeout=_WAIT_SECONDS)
        if answered:  # take all that are there, in the order in which they were asked for
            answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        are_away = False
        for reference in answered:
            each = asked[reference]
            if reference is each.place:
                are_away |= self._take_place(each)
            elif each.handle.ref in self._kept:
                are_away |= self._take_end(each)
        if are_away:
            self._ends.wait(_WAIT_SECONDS)

    def _take_place(self, kept: _Kept) -> bool:
        """Take where an actor is; return whether it is away for now, so that it is asked again."""
        ray = cluster.library()
        try:
            kept.node = ray.get(kept.place)
        except ray.exceptions.ActorUnavailableError:
            kept.place = kept.actor.place.remote()  # it may be there again
            return True
        except ray.exceptions.RayError as error:
            log.debug("%s: %s", kept.handle.ref, error)  # its end says the same
        else:
            tell(self._on_event, Started(kept.handle))
        kept.place = None
        return False

    def _take_end(self, kept: _Kept) -> bool:
        """Take how a process has ended; return whether its actor is away for now."""
        ray = cluster.library()
        try:
            reason, code, words = ray.get(kept.end)
            exited = Exited(kept.handle, ExitReason(reason), code, words)
            ray.kill(kept.actor, no_restart=True)
        except ray.exceptions.ActorUnavailableError:
            kept.end = kept.actor.end.remote()
            return True
        except ray.exceptions.RayError as error:
            log.debug("the actor %s is gone: %s", kept.handle.ref, error)
            kept.lost, kept.lost_at = error, time.monotonic()
        else:
            self._report(kept, exited)
        return False

    def _report(self, kept: _Kept, exited: Exited) -> None:
        with self._lock:
            self._kept.pop(kept.handle.ref, None)
        tell(self._on_event, exited)
        with self._changed:
            self._changed.notify_all()

    def _tell_lost(self) -> None:
        """Tell how processes ended whose actors are gone, as soon as that is known."""
        with self._lock:
            lost = [each for each in self._kept.values() if each.lost is not None]
        if not lost:
            return
        alive = {node.id for node in cluster.nodes()}
        for each in lost:
            exited = _lost(each, alive, time.monotonic() - each.lost_at >= _NODE_SECONDS)
            if exited is not None:
                self._report(each, exited)

    # --- the nodes -------------------------------------------------------------------------------

    def _look_at_nodes(self) -> None:
        with self._lock:
            kept = list(self._kept.values())
        self._hand_over(kept)
        now = time.monotonic()
        for each in kept:
            if each.place is not None and now >= each.withdraw_at:
                cluster.library().kill(each.actor, no_restart=True)
        waiting = [
            each for each in kept if each.place is not None and now - each.since > _PATIENCE_SECONDS
        ]
        wanted: list[Amounts] = []
        if waiting:
            nodes, free = cluster.nodes(), cluster.free()
            for each in waiting:
                asked = asked_for(self._config, each.handle.role)
                is_late = now - each.since > _PLACING_SECONDS
                self._tell_waiting(each, why_it_waits(asked, nodes, free, is_late))
                if not is_feasible(asked, nodes):
                    wanted.append(asked)
                self._certify_again(each, now)
        if wanted != self._asked_autoscaler:
            cluster.ask_autoscaler(wanted)
            self._asked_autoscaler = wanted

    def _hand_over(self, kept: Sequence[_Kept]) -> None:
        """Make the processes on nodes that are being drained hand over and end."""
        leaving = cluster.draining_nodes()
        for each in kept:
            if each.node in leaving and not each.is_on_leaving_node:
                each.is_on_leaving_node = True
                seconds = leaving[each.node]
                name = process_name(each.handle.role, each.handle.index)
                log.warning(
                    "the node of %s is taken away in %.0f s: it is asked to hand over",
                    name,
                    seconds,
                )
                each.actor.stop.remote(max(_SPARE_SECONDS, seconds - _SPARE_SECONDS))

    def _tell_waiting(self, kept: _Kept, why: str) -> None:
        if why and why != kept.why:
            kept.why = why
            tell(self._on_event, PendingProcess(kept.handle, why, lacks_room=True))

    def _certify_again(self, kept: _Kept, now: float) -> None:
        """Renew the certificate of a process that waits longer than the certificate is valid."""
        if now - kept.certified > self._config.cluster.tls_certificate_seconds / 3:
            self._certify(kept.handle.role, kept.handle.index)
            kept.certified = now


def _lost(kept: _Kept, alive: Container[str], is_late: bool) -> Exited | None:
    """Return how a process ended whose actor is gone; None: its node may be lost too.

    Args:
        kept: The process.
        alive: The nodes that are alive. Ray may say a moment later that a node is not.
        is_late: Ray would have said so by now.
    """
    if kept.was_asked:
        return Exited(kept.handle, ExitReason.KILLED, None)
    if getattr(kept.lost, "actor_init_failed", False):  # by what its node lacks
        why = f"its actor cannot be made: {cluster.last_line(kept.lost)}"
        return Exited(kept.handle, ExitReason.FAILED, None, why)
    if kept.is_on_leaving_node:  # it was asked to hand over, and its answer is lost
        return Exited(kept.handle, ExitReason.PREEMPTED, None)
    is_node_lost = _OF_LOST_NODE in str(kept.lost)
    if not kept.node:
        if not is_node_lost:
            return Exited(kept.handle, ExitReason.KILLED, None)
        why = "its node was lost before it began"  # which is nobody's failure
        return Exited(kept.handle, ExitReason.PREEMPTED, None, why)
    if is_node_lost or kept.node not in alive:
        return Exited(kept.handle, ExitReason.NODE_LOST, None, f"node {kept.node[:12]}")
    return Exited(kept.handle, ExitReason.KILLED, None) if is_late else None
