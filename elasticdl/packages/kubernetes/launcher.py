"""The launcher of a job's master on Kubernetes; a process is a bare pod.

A handle is the name of a pod, and the name is drawn before the pod is requested. So if the answer
to a request is lost, the pod is found again (409: it exists). A pod that no journal names exists
only if its master was killed just then; `_remove_strays` deletes such a pod. One thread keeps the
list of pods (`PodWatch`), and other threads make requests. `_lock` guards the data of both.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from elasticdl.errors import ElasticdlError, LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import (
    END_ORDER,
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
from elasticdl.launchers.last_words import last_words
from elasticdl.packages.kubernetes import names, process_one, suspension
from elasticdl.packages.kubernetes.admission import (
    Admission,
    members_of_minimum,
    minimum_job,
    place,
)
from elasticdl.packages.kubernetes.certificates import replica_secret
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.cluster_spec import ClusterSpec
from elasticdl.packages.kubernetes.launched_pod import (
    KeptPods,
    LaunchedPod,
    MemoryOfRoles,
    belongs_to,
    command_in_pod,
    ended_before,
    is_of,
    is_queued,
    priority_of,
    refusal,
)
from elasticdl.packages.kubernetes.observe import (
    PodEnded,
    PodRunning,
    Waiting,
    observe,
)
from elasticdl.packages.kubernetes.pods import (
    GRACE_SECONDS,
    Manifest,
    Plan,
    WantedPod,
    replica_pod,
)
from elasticdl.packages.kubernetes.retry import RequestThreads, persistently
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.packages.kubernetes.watch import Pod, PodWatch
from elasticdl.runtime import process
from elasticdl.runtime.addresses import Listening

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

# For those of a suspended Job; the master itself is killed after GRACE_SECONDS.
_SUSPENDED_SECONDS = 25.0
_FIRST_SHARE = 0.6  # of that time for workers; those that come after them have at least the rest
_NAME_BYTES = 3
_REPLICAS_FIRST_SECONDS = 30.0  # that a worker's pod lets those of replicas be accepted first
_ADMISSION_SECONDS = 1.0  # until a pod that waits for it is looked at again

log = logging.getLogger(__name__)


class KubernetesLauncher:
    """Runs processes as pods; it implements `launchers.base.Launcher`."""

    listening = Listening("0.0.0.0", "$(POD_IP)")

    def __init__(
        self,
        plan: Plan,
        api: Api,
        owners: Sequence[Manifest],
        master: str,
        on_event: OnEvent,
        authority: JobAuthority | None = None,
    ) -> None:
        """Begin to watch the pods of the job.

        Args:
            plan: The parts that are equal in all pods of the job.
            api: The namespace of the job.
            owners: The owners of the pods (`pods.owners`); the Job of the master is the first.
            master: The address under which pods find the master.
            on_event: The receiver of the events of processes.
            authority: The maker of each pod's certificate, if the job makes its own certificates.
        """
        self._authority = authority
        self._plan, self._config = plan, plan.config
        self._api = api
        self._owners, self._job_uid = owners, owners[0]["uid"]
        self._master = master
        self._on_event = on_event
        self._spec = ClusterSpec.read(plan.config.of(KubernetesSection).cluster_spec)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pods: dict[str, LaunchedPod] = {}  # whose end is to be told
        self._seen: dict[str, Pod] = {}  # as the API has them
        self._memory = MemoryOfRoles(self._config)
        self._kept = KeptPods()
        self._is_closing = self._is_handing_over = False
        self._closed, self._listed_once = threading.Event(), threading.Event()
        self._threads = RequestThreads()
        self._watch = PodWatch(
            api,
            names.selector_of_replicas(plan.config.cluster.job_name),
            self._before_list,
            self._take_list,
            self._take,
        )
        self._admission = self._queue() if self._config.of(KubernetesSection).queue_name else None
        self._watch.start()

    # --- the contract ----------------------------------------------------------------------------

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Request a pod for a process; return before the pod exists."""
        name = process.process_name(spec.role, spec.index)
        draw = secrets.token_hex(_NAME_BYTES)
        handle = ProcessHandle(
            spec.role, spec.index, f"{self._config.cluster.job_name}-{name}-{draw}"
        )
        with self._lock:
            if self._is_closing:
                raise LaunchError(f"{name}: not started, because the job is ending")
            pod = self._pods[handle.ref] = LaunchedPod(handle)
        self._threads.submit(lambda: self._create(pod), self._threads.creators[spec.role])
        return handle

    def adopt(self, handle: ProcessHandle) -> None:
        """Watch a pod that an earlier master has asked for."""
        with self._lock:
            if self._is_closing:
                raise LaunchError("no process can be adopted, because the job is ending")
            self._pods[handle.ref] = LaunchedPod(handle, is_there=True, is_adopted=True)
            is_late = self._listed_once.is_set()
        if is_late:
            self._threads.submit(lambda: self._look_at(handle.ref))

    def stop(self, handle: ProcessHandle, grace_seconds: float) -> None:
        """Delete a pod: SIGTERM now, SIGKILL after the grace period."""
        with self._lock:
            pod = self._pods.get(handle.ref)
            if pod is None:
                return
            pod.was_asked, pod.grace_seconds = True, grace_seconds
            ends = partial(self._delete, handle.ref, grace_seconds)
            if pod.has_no_room:
                ends = partial(self._withdraw, pod)
            elif not pod.is_begun and not pod.is_there:  # all threads may wait for room
                ends = partial(self._ends, pod, Exited(handle, ExitReason.KILLED, None))
            self._changed.notify_all()
        self._threads.submit(ends)

    def close(self, grace_seconds: float) -> None:
        """Delete every pod that runs, and wait until all are gone.

        The method may be called again. Pods that have ended stay until the job is deleted, because
        they have the logs.
        """
        with self._lock:
            self._is_closing = True
        left = stop_all(self._pods, self._changed, self.stop, grace_seconds)
        if left:
            names = ", ".join(sorted(pod.handle.ref for pod in left))
            log.error("not gone in time, and left to Kubernetes: %s", names)
        self._end()

    def leave(self, grace_seconds: float) -> None:
        """Stop watching; the pods go on, and another master adopts them.

        If the Job is suspended, there will be no master for long, and others want the room of the
        pods: then the pods hand over and end.
        """
        with self._lock:
            self._is_closing = True
        if suspension.is_suspended(self._api, self._config.cluster.job_name, self._job_uid):
            log.info("the Job is suspended: its processes hand over and go")
            self._hand_over(_SUSPENDED_SECONDS)
            if self._admission is not None:
                self._admission.give_up()
        self._end()

    def _end(self) -> None:
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._watch.close()
        if self._admission is not None:
            self._admission.close()
        self._threads.close()

    # --- requests --------------------------------------------------------------------------------

    def _create(self, pod: LaunchedPod) -> None:
        """Request a pod until it exists."""
        with self._lock:
            pod.is_begun = True
        while not self._listed_once.wait(1.0):
            if self._closed.is_set():
                return
        if not self._wait_for_admission(pod):
            return
        self._wait_for_replicas(pod)
        self._remove_strays(pod.handle)
        try:
            with self._lock:
                manifest = None if pod.was_asked else self._manifest(pod)
        except ElasticdlError as error:  # of the user's --cluster_spec
            self._fail(pod, str(error))
            return
        if manifest is None:
            self._ends(pod, Exited(pod.handle, ExitReason.KILLED, None))
            return
        request, failed = partial(self._request, pod, manifest), partial(self._take_problem, pod)
        try:
            if not persistently(request, self._closed, failed):
                return
        except ApiError as error:
            if self._closed.is_set():
                return
            if error.code != 409:  # else an answer was lost, and it is there
                self._fail(pod, refusal(pod.handle, error, "pod"))
                return
        with self._lock:
            pod.is_there = True
            self._changed.notify_all()
            is_unwanted = pod.was_asked or not self._is_admitted
        log.debug("asked for the pod %s", pod.handle.ref)
        if is_unwanted:
            self._delete(pod.handle.ref, pod.grace_seconds)
        self._look_at(pod.handle.ref, or_gone=False)

    def _request(self, pod: LaunchedPod, manifest: Manifest) -> bool:
        """Request a pod once; return False if the pod was withdrawn."""
        with self._lock:
            if self._pods.get(pod.handle.ref) is not pod:
                return False
            pod.has_no_room = False  # the answer may be another one now
        self._api.create(self._api.path("pods"), manifest)
        return True

    def _take_problem(self, pod: LaunchedPod, error: ApiError) -> None:
        """Take in why a pod was not made, for a reason that may pass."""
        self._tell_waiting(pod, error.words, error.is_over_quota)
        with self._lock:
            pod.has_no_room = error.is_over_quota
            is_unwanted = pod.was_asked
        if is_unwanted:
            self._withdraw(pod)

    def _withdraw(self, pod: LaunchedPod) -> None:
        """Request a pod no more for which the quota has no room."""
        with self._lock:
            if self._pods.get(pod.handle.ref) is not pod or not pod.has_no_room:
                return
            self._forget(pod)
        self._tell(Exited(pod.handle, ExitReason.KILLED, None))

    def _wait_for_replicas(self, pod: LaunchedPod) -> None:
        """Delay a worker's pod until the pods that it would wait for have been accepted.

        Otherwise the worker's pod could take the room of one of them, if a quota has too little
        room for all. The delay is short: a job trains while another ps replica is added, and a lost
        worker is replaced.
        """
        if pod.handle.role is not Role.WORKER:
            return
        deadline = time.monotonic() + _REPLICAS_FIRST_SECONDS
        while time.monotonic() < deadline:
            with self._changed:
                if self._changed.wait_for(partial(self._is_next, pod), _ADMISSION_SECONDS):
                    return
            self._tell_waiting(pod, "the cluster has not accepted all replicas that it waits for")

    def _is_next(self, worker: LaunchedPod) -> bool:
        is_over = self._closed.is_set() or worker.was_asked
        return is_over or all(
            pod.is_there or pod.was_asked or pod.handle.role is Role.WORKER
            for pod in self._pods.values()
        )

    def _manifest(self, pod: LaunchedPod) -> Manifest:
        role, index = pod.handle.role, pod.handle.index
        has_tls = self._authority is not None
        command = command_in_pod(self._config, role, index, self._master, self.listening, has_tls)
        pod.priority = self._priority(role)
        pod.is_member = self._is_member(role)
        replica = WantedPod(
            role,
            index,
            pod.handle.ref,
            process_one.command_of(command),
            pod.priority,
            self._memory.of(role),
            "" if pod.is_member else self._config.of(KubernetesSection).queue_name,
        )
        made = self._spec.pod(replica_pod(self._plan, replica, self._owners))
        if self._admission is not None and pod.is_member:
            place(made, self._admission.template)
        return made

    def _give_certificate(self, pod: LaunchedPod, found: Pod) -> None:
        """Make the Secret that a pod waits for, as soon as the pod has a node.

        The Secret is not made earlier: a pod may wait for a node for longer than a certificate is
        valid. The present master makes the Secret, so a pod does not lose it by the death of an
        earlier master.
        """
        with self._lock:
            is_due = "nodeName" in found["spec"] and not pod.has_certificate
            if self._authority is None or not is_due:
                return
            pod.has_certificate = True
        authority = self._authority
        work = partial(self._make_secret, pod, found, authority)
        self._threads.submit(work, self._threads.signers)

    def _make_secret(self, pod: LaunchedPod, found: Pod, authority: JobAuthority) -> None:
        role, index = pod.handle.role, pod.handle.index
        manifest = replica_secret(self._config, role, index, found, authority)
        try:
            persistently(
                lambda: self._api.create(self._api.path("secrets"), manifest),
                self._closed,
                lambda error: self._tell_waiting(pod, f"its certificate: {error}"),
            )
        except ApiError as error:
            if self._closed.is_set() or error.code == 409:  # a master before this one has made it
                return
            self._fail(pod, refusal(pod.handle, error, "Secret"))
            self._delete(pod.handle.ref, 0)

    def _priority(self, role: Role) -> str:
        given = [
            pod.priority
            for pod in self._pods.values()
            if pod.handle.role is role and pod.priority and not pod.was_asked
        ]
        return priority_of(role, self._config.of(KubernetesSection), given)

    def _remove_strays(self, handle: ProcessHandle) -> None:
        """Delete pods of this role and index that are in no master's journal.

        Such a pod was requested by a master that was killed before it could write the journal.
        """
        with self._lock:
            strays = [
                name
                for name, pod in self._seen.items()
                if name not in self._pods
                and is_of(pod, handle)
                and "deletionTimestamp" not in pod["metadata"]
                and not isinstance(observe(pod), PodEnded)
            ]
        for name in strays:
            log.warning("the pod %s was asked for by a master that is gone; deleted", name)
            self._delete(name, GRACE_SECONDS)

    def _delete(self, name: str, grace_seconds: float) -> None:
        path = self._api.path("pods", name)
        try:
            persistently(
                lambda: self._api.delete(path, max(1, round(grace_seconds))),
                self._closed,
                lambda error: log.warning("the pod %s cannot be deleted: %s", name, error),
            )
        except ApiError as error:
            log.error("the pod %s is not deleted: %s", name, error)

    def _fail(self, pod: LaunchedPod, words: str) -> None:
        self._ends(pod, Exited(pod.handle, ExitReason.FAILED, None, last_words=words))

    def _ends(self, pod: LaunchedPod, end: Exited) -> None:
        """Tell the end of a pod, unless it was told."""
        with self._lock:
            if self._pods.get(pod.handle.ref) is not pod:
                return
            self._forget(pod)
        self._tell(end)

    # --- its queue -------------------------------------------------------------------------------

    def _queue(self) -> Admission:
        """Put the minimum of the job into the queue."""
        samples = {}
        for role in (role for role, number in members_of_minimum(self._config).items() if number):
            name = f"{self._config.cluster.job_name}-{role}"
            wanted = WantedPod(role, 0, name, ["true"], self._priority(role))
            samples[role] = self._spec.pod(replica_pod(self._plan, wanted, self._owners))
        job = minimum_job(self._config, samples, self._owners[0])
        return Admission(self._api, job, self._give_back, self._state_of_minimum)

    @property
    def _is_admitted(self) -> bool:
        return self._admission is None or self._admission.is_given.is_set()

    def _wait_for_admission(self, pod: LaunchedPod) -> bool:
        """Wait until the job has its minimum; return False if the pod is not wanted any more."""
        admission = self._admission
        while admission is not None and not admission.is_given.wait(_ADMISSION_SECONDS):
            if self._closed.is_set():
                return False
            if admission.refused:
                self._fail(
                    pod, f"Kubernetes refuses the job its place in a queue: {admission.refused}"
                )
                return False
            with self._lock:
                if pod.was_asked:
                    return True
            self._tell_waiting(pod, admission.why)
        return True

    def _is_member(self, role: Role) -> bool:
        """Return whether the next process of a role is in the minimum; else it queues by itself."""
        members = sum(pod.handle.role is role and not pod.was_asked for pod in self._members())
        return members < members_of_minimum(self._config).get(role, 0)

    def _members(self) -> list[LaunchedPod]:
        """Return the pods of the minimum; an adopted pod is recognised by its label."""
        return [
            pod
            for name, pod in self._pods.items()
            if pod.is_member
            or (pod.is_adopted and (seen := self._seen.get(name)) and not is_queued(seen))
        ]

    def _state_of_minimum(self) -> tuple[bool, bool]:
        """Return whether a pod of the minimum exists, and whether all of them run."""
        with self._lock:
            members = self._members()
            wanted = sum(members_of_minimum(self._config).values())
            return bool(members), sum(pod.is_started for pod in members) >= wanted

    def _give_back(self) -> None:
        """Make all pods hand over and end, since the queue has taken the minimum back.

        The job did not ask them to end, so it requests other pods at once, and those wait in the
        queue.
        """
        with self._lock:
            if self._is_handing_over:
                return
            self._is_handing_over = True
        log.warning("the queue takes the minimum back: the processes hand over and go")
        self._threads.submit(partial(self._hand_over, len(END_ORDER) * GRACE_SECONDS))

    def _hand_over(self, seconds: float) -> None:
        """Make all pods end in order: workers hand over to ps replicas."""
        deadline = time.monotonic() + seconds
        for role in END_ORDER:
            with self._lock:
                is_last = self._is_closing
                found = {
                    name: pod.handle
                    for name, pod in self._pods.items()
                    if pod.handle.role is role and (pod.is_there or is_last)
                }
            share = 1.0 if role is END_ORDER[-1] else _FIRST_SHARE
            grace_seconds = min(GRACE_SECONDS, share * (deadline - time.monotonic()))
            for name, handle in found.items():
                if is_last:  # also those that are being asked for
                    self.stop(handle, grace_seconds)
                else:
                    self._threads.submit(partial(self._delete, name, grace_seconds))
            with self._changed:
                self._changed.wait_for(partial(self._are_gone, set(found)), grace_seconds + 1.0)
        with self._lock:
            self._is_handing_over = False

    def _are_gone(self, pods: set[str]) -> bool:
        return self._closed.is_set() or pods.isdisjoint(self._pods)

    # --- what the API says -----------------------------------------------------------------------

    def _before_list(self) -> set[str]:
        with self._lock:
            return {name for name, pod in self._pods.items() if pod.is_there}

    def _take_list(self, pods: Iterable[Pod], were_there: set[str]) -> None:
        ours = {pod["metadata"]["name"]: pod for pod in pods if self._is_ours(pod)}
        with self._lock:
            before, self._seen = self._seen, ours
            missing = [
                name
                for name, pod in self._pods.items()
                if name not in ours and (name in were_there or pod.is_adopted)
            ]
            known, is_first = set(self._pods), not self._listed_once.is_set()
            self._listed_once.set()
        for handle in ended_before(ours, known) if is_first else ():
            self._keep(handle)  # as an earlier master did
        for name in missing:
            self._take_gone(name, before.get(name))
        for pod in ours.values():
            self._take(pod, False)

    def _take(self, found: Pod, is_deleted: bool) -> None:
        """Take in the present state of a pod."""
        if not self._is_ours(found):
            return
        name = found["metadata"]["name"]
        with self._lock:
            if is_deleted:
                self._seen.pop(name, None)
            else:
                self._seen[name] = found
            pod = self._pods.get(name)
            if pod is None:
                return
            pod.is_there = True
            self._changed.notify_all()
            pod.priority = pod.priority or found["spec"].get("priorityClassName", "")
            observed = observe(found, is_deleted, pod.was_asked)
            is_begun = isinstance(observed, PodRunning) and not pod.is_started
            if is_begun:
                pod.is_started = True
            if isinstance(observed, PodEnded):
                self._forget(pod)
                self._memory.ended(pod.handle.role, found, observed)
        match observed:
            case Waiting(why, lacks_room):
                self._tell_waiting(pod, why, lacks_room)
                self._give_certificate(pod, found)
            case PodRunning() if is_begun:
                self._tell(Started(pod.handle))
            case PodEnded():
                words = observed.why or last_words(observed.log.splitlines())
                self._tell(Exited(pod.handle, observed.reason, observed.code, words))
                if not is_deleted:
                    self._keep(pod.handle)

    def _take_gone(self, name: str, last: Pod | None) -> None:
        """Take in that a pod was deleted during a break of the watch."""
        if last is not None:
            self._take(last, True)
            return
        with self._lock:
            pod = self._pods.get(name)
        if pod is not None:
            self._ends(pod, Exited(pod.handle, ExitReason.UNKNOWN, None))

    def _look_at(self, name: str, or_gone: bool = True) -> None:
        """Take in what was seen of a pod before the launcher knew its name."""
        with self._lock:
            found = self._seen.get(name)
        if found is not None:
            self._take(found, False)
        elif or_gone:
            self._take_gone(name, None)

    def _is_ours(self, pod: Pod) -> bool:
        return belongs_to(pod, self._job_uid)

    def _forget(self, pod: LaunchedPod) -> None:
        self._pods.pop(pod.handle.ref, None)
        self._changed.notify_all()

    def _keep(self, handle: ProcessHandle) -> None:
        """Keep a pod that has ended, and delete the oldest pods that have ended."""
        if oldest := self._kept.add(handle):
            self._threads.submit(lambda: self._delete(oldest, 0))

    # --- telling ---------------------------------------------------------------------------------

    def _tell_waiting(self, pod: LaunchedPod, why: str, lacks_room: bool = False) -> None:
        with self._lock:
            news = pod.news(why, lacks_room)
        if news is not None:
            self._tell(news)

    def _tell(self, event: PendingProcess | Started | Exited) -> None:
        if not self._closed.is_set():
            tell(self._on_event, event)
