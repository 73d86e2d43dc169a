"""One pod on a node: from bound to gone, as the kubelet would take it there.

A pod has a thread, which starts its containers (they die with the thread), hears of changes of the
object and of exits by a queue, and writes the pod's status.
"""

from __future__ import annotations

import queue
import shutil
import signal
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import fields
from .api import ApiError, Object
from .control_groups import ControlGroup
from .sandbox import Container, Mount, Running, Sandbox, StartError, image
from .status import (
    KILLED,
    now,
    status_of,
    terminated,
    unsupported,
    waiting,
)
from .volumes import NotMountedError, UnsupportedError, Volumes, contents, unmount

if TYPE_CHECKING:
    from .node import Node

_RETRY_SECONDS = 1.0
_MOUNT_RETRY_SECONDS = 0.2  # a kubelet takes about as long until it looks for the first time
_BACK_OFF_SECONDS = (0, 10, 20, 40, 80, 160, 300)
_LAST_WORDS = 2048


class _StopError(Exception):
    """The pod was deleted, or its node wants it gone."""


@dataclass
class _Instance:
    """A container of the pod, its process if it runs, and its state as the API shows it."""

    spec: Object
    state: Object
    running: Running | None = None
    restarts: int = 0
    log: Path | None = None
    exit_code: int | None = None
    start_at: float | None = field(default=None)  # of time.monotonic: when it is started again

    @property
    def name(self) -> str:
        return str(self.spec["name"])


class Pod(threading.Thread):
    """Runs a pod that is bound to this node. `update` and `removed` may be called by any thread."""

    def __init__(self, node: Node, found: Object):
        about = found["metadata"]
        super().__init__(name=f"{about['namespace']}/{about['name']}", daemon=True)
        self.object = found
        self.folder = node.folder / "pods" / about["uid"]
        self.address = ""
        self.wire = ""
        self._node = node
        self._path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        self._changes: queue.Queue[Object | _Instance | None] = queue.Queue()
        self._is_removed = False
        self._sandbox: Sandbox | None = None
        self._volumes: dict[str, Path] = {}
        self._started_at = now()
        spec = found["spec"]
        self._init = [_Instance(each, waiting()) for each in spec.get("initContainers", [])]
        self._main = [_Instance(each, waiting()) for each in spec["containers"]]
        self._phase = "Pending"
        self._reason: tuple[str, str] | None = None

    # What the node's threads call.

    def update(self, found: Object) -> None:
        """Hear that the object changed."""
        self._changes.put(found)

    def removed(self) -> None:
        """Hear that the object is gone: what runs is stopped."""
        self._changes.put(None)

    def log_of(self, container: str, previous: bool) -> tuple[Path, bool] | None:
        """Return the log file of a container and whether more can come; None if there is none."""
        for each in [*self._init, *self._main]:
            if each.name == container and each.log is not None:
                if not previous:
                    return each.log, each.running is not None
                older = each.log.with_name(f"{each.restarts - 1}.log")
                return (older, False) if older.exists() else None
        return None

    # The pod's own thread.

    def run(self) -> None:
        """Take the pod from bound to gone."""
        try:
            try:
                self._live()
            except Exception as error:
                if isinstance(error, _StopError):
                    raise
                words = "".join(traceback.format_exception(error))
                self._node.complain(f"pod {self.name}: {words}")
                self._fail("AgentError", f"{type(error).__name__}: {error}")
                self._wait_for_deletion()
        except _StopError:
            self._terminate()
        self._release()
        unmount(self.folder / "volumes")
        shutil.rmtree(self.folder, ignore_errors=True)
        self._node.forget(self)

    def _live(self) -> None:
        status = self.object.get("status", {})
        if status.get("phase") in ("Succeeded", "Failed"):
            self._phase = status["phase"]
            self._heed(self.object)
            self._wait_for_deletion()
        if self._forget_earlier_life():
            self._heed(self.object)
            self._wait_for_deletion()
        self._heed(self.object)
        lacks = unsupported(self.object["spec"])
        if lacks:
            self._fail("Unsupported", lacks)
        else:
            try:
                self._prepare()
                if self._run_init():
                    self._run_main()
            except UnsupportedError as error:
                self._fail("Unsupported", str(error))
        self._release()
        self._wait_for_deletion()

    def _forget_earlier_life(self) -> bool:
        """Say that containers which ran before this node went down are lost; True if they end."""
        before = self.object.get("status", {}).get("containerStatuses", [])
        ran = any("running" in each["state"] for each in before)
        if not ran or self.object["spec"]["restartPolicy"] != "Never":
            return False
        words = "The container could not be located when the pod was terminated"
        for each in self._main:
            each.state = terminated(KILLED, "ContainerStatusUnknown", self._started_at, words)
            each.exit_code = KILLED
        self._phase = "Failed"
        self._report()
        return True

    def _wait_for_deletion(self) -> None:
        while True:
            self._next(None)

    def _next(self, timeout_seconds: float | None) -> None:
        """Take in one change; raises _StopError when the pod is to end."""
        try:
            change = self._changes.get(timeout=timeout_seconds)
        except queue.Empty:
            return
        if isinstance(change, _Instance):
            self._take_exit(change)
        else:
            self._heed(change)

    def _heed(self, found: Object | None) -> None:
        if found is None:
            self._is_removed = True
            raise _StopError
        self.object = found
        if "deletionTimestamp" in found["metadata"]:
            raise _StopError

    def _prepare(self) -> None:
        """Make the network and the volumes; wait for Secrets and ConfigMaps that are not there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sandbox = Sandbox()
        self.address, self.wire = self._node.connect(self._sandbox.process_id)
        self._node.write_hosts(self)
        self._report()
        volumes = Volumes(self._node.api, self.object, self.address, self.folder / "volumes")
        complained = ""
        while True:
            try:
                self._volumes = volumes.make()
                return
            except NotMountedError as error:
                if str(error) != complained:
                    complained = str(error)
                    self._node.event(self.object, "FailedMount", complained)
            self._next(_MOUNT_RETRY_SECONDS)

    def _run_init(self) -> bool:
        for each in self._init:
            self._start(each)
            never = self.object["spec"]["restartPolicy"] == "Never"
            self._run_until_over([each], "Never" if never else "OnFailure")
            if each.exit_code != 0:
                self._phase = "Failed"
                self._report()
                return False
        return True

    def _run_main(self) -> None:
        for each in self._main:
            self._start(each)
        self._run_until_over(self._main, self.object["spec"]["restartPolicy"])
        codes = [each.exit_code for each in self._main]
        self._phase = "Failed" if any(codes) else "Succeeded"
        self._report()

    def _run_until_over(self, containers: list[_Instance], policy: str) -> None:
        """Wait until containers ended for good; start again what the policy wants again."""
        while True:
            for each in containers:
                self._consider_restart(each, policy)
            if all(each.running is None and each.start_at is None for each in containers):
                return
            due = [each.start_at for each in containers if each.start_at is not None]
            self._next(max(0.0, min(due) - time.monotonic()) if due else None)

    def _consider_restart(self, each: _Instance, policy: str) -> None:
        if each.running is not None:
            return
        again = policy == "Always" or (policy == "OnFailure" and each.exit_code != 0)
        if again and each.start_at is None:
            delay = _BACK_OFF_SECONDS[min(each.restarts, len(_BACK_OFF_SECONDS) - 1)]
            each.start_at = time.monotonic() + delay
            if delay:
                words = f"back-off {delay}s restarting failed container={each.name}"
                self._hold(each, "CrashLoopBackOff", words)
        if each.start_at is not None and each.start_at <= time.monotonic():
            each.restarts += 1
            self._start(each)

    def _start(self, each: _Instance) -> None:
        """Start a container, or wait in the state that says why it cannot be."""
        each.exit_code, each.start_at = None, None
        self._pull(each)
        while each.running is None and each.exit_code is None:
            try:
                container = self._container(each)
            except fields.NotFoundError as error:
                self._hold(each, "CreateContainerConfigError", str(error))
                self._next(_RETRY_SECONDS)
                continue
            group = self._group(each)
            limits = each.spec.get("resources", {}).get("limits", {})
            group.make(
                int(fields.quantity(limits["memory"])) if "memory" in limits else None,
                fields.quantity(limits["cpu"]) if "cpu" in limits else None,
            )
            started_at = now()
            assert self._sandbox
            assert each.log
            try:
                running = Running(container, self._sandbox, each.log, group)
            except StartError as error:
                group.remove()
                each.exit_code = 128
                each.state = terminated(128, "StartError", started_at, str(error))
                self._report()
                return
            each.running = running
            each.state = {"running": {"startedAt": started_at}}
            watched = (each, running, group, started_at)
            threading.Thread(target=self._watch, args=watched, daemon=True).start()
            if all(one.running or one.exit_code is not None for one in self._main):
                self._phase = "Running"
            self._report()

    def _watch(
        self, each: _Instance, running: Running, group: ControlGroup, started_at: str
    ) -> None:
        """Wait for a container's end, in a thread of its own."""
        code = running.wait()
        out_of_memory = code == KILLED and running.ran_out_of_memory()
        group.remove()
        reason = "OOMKilled" if out_of_memory else "Error" if code else "Completed"
        each.state = terminated(code, reason, started_at, self._last_words(each, code))
        each.exit_code = code
        self._changes.put(each)

    def _take_exit(self, each: _Instance) -> None:
        each.running = None
        self._report()

    def _pull(self, each: _Instance) -> None:
        """Wait for ever with the kubelet's words if the image cannot be pulled."""
        name = each.spec["image"]
        if image(name) is not None:
            return
        words = f'failed to pull and unpack image "{name}": no such host'
        self._node.event(self.object, "Failed", f'Failed to pull image "{name}": {words}')
        self._hold(each, "ErrImagePull", words)
        self._next(_RETRY_SECONDS)
        self._node.event(self.object, "BackOff", f'Back-off pulling image "{name}"')
        self._hold(each, "ImagePullBackOff", f'Back-off pulling image "{name}": {words}')
        self._wait_for_deletion()

    def _hold(self, each: _Instance, reason: str, words: str) -> None:
        if each.state != waiting(reason, words):
            each.state = waiting(reason, words)
            self._report()

    def _container(self, each: _Instance) -> Container:
        """Work out what a container is: its command, rights and mounts."""
        about, spec, pod_context = self._parts()
        context = pod_context | each.spec.get("securityContext", {})
        user = context.get("runAsUser", 0)
        if context.get("runAsNonRoot") and user == 0:
            why = "container has runAsNonRoot and image will run as root"
            raise fields.NotFoundError(f"{why} (pod: {self.name}, container: {each.name})")
        if not each.spec.get("command"):
            raise fields.NotFoundError("no command specified, and the images here have none")
        found = image(each.spec["image"])
        assert found
        given = {**found.environment, "HOSTNAME": about["name"], "HOME": "/"}
        given |= self._node.environment
        environment = fields.environment(self.object, each.spec, self.address, self._keys, given)
        words = [*each.spec["command"], *each.spec.get("args", [])]
        places = self.folder / "containers" / each.name
        (places / "root").mkdir(parents=True, exist_ok=True)
        each.log = places / f"{each.restarts}.log"
        each.log.touch()
        last_words = places / "termination-log"
        last_words.write_bytes(b"")
        last_words.chmod(0o666)
        own = [Mount(str(self.folder / "etc"), "/etc/.pod", True)]
        path = each.spec.get("terminationMessagePath", "/dev/termination-log")
        own.append(Mount(str(last_words), path, False))
        group = self._group(each)
        own_files = {f"/etc/{name}": f".pod/{name}" for name in self._node.pod_files}
        extra = pod_context.get("supplementalGroups", [])
        fs_group = pod_context.get("fsGroup")
        drops = context.get("capabilities", {}).get("drop", [])
        return Container(
            command=[fields.expand(word, environment) for word in words],
            environment=environment,
            hostname=spec.get("hostname", about["name"])[:63],
            root=str(places / "root"),
            mounts=[*found.mounts, *own, *self._mounts(each.spec)],
            links={**found.links, **own_files},
            control_groups=group.members,
            working_folder=each.spec.get("workingDir", "/"),
            user=user,
            group=context.get("runAsGroup", 0),
            groups=sorted({*extra, *([] if fs_group is None else [fs_group])}),
            read_only_root=context.get("readOnlyRootFilesystem", False),
            drops_capabilities="ALL" in drops,
            may_escalate=context.get("allowPrivilegeEscalation", True),
        )

    def _group(self, each: _Instance) -> ControlGroup:
        return ControlGroup(f"{self._node.control_group}/{self.folder.name}-{each.name}")

    def _parts(self) -> tuple[Object, Object, Object]:
        spec = self.object["spec"]
        return self.object["metadata"], spec, spec.get("securityContext", {})

    def _mounts(self, container: Object) -> list[Mount]:
        mounts = []
        for each in container.get("volumeMounts", []):
            source = self._volumes[each["name"]]
            inside = each.get("subPath")
            if inside:
                source = source / inside
                if not source.exists():
                    source.mkdir(parents=True)
            mounts.append(Mount(str(source), each["mountPath"], each.get("readOnly", False)))
        return sorted(mounts, key=lambda mount: mount.target)

    def _keys(self, collection: str, name: str) -> dict[str, bytes] | None:
        namespace = self.object["metadata"]["namespace"]
        try:
            found = self._node.api.get(f"/api/v1/namespaces/{namespace}/{collection}/{name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return contents(found)

    def _last_words(self, each: _Instance, code: int) -> str:
        assert each.log
        written = (each.log.parent / "termination-log").read_text(errors="replace")
        policy = each.spec.get("terminationMessagePolicy", "File")
        if written or policy == "File" or code == 0:
            return written[:4096]
        return each.log.read_text(errors="replace")[-_LAST_WORDS:]

    def _fail(self, reason: str, words: str) -> None:
        self._phase = "Failed"
        self._reason = (reason, words)
        self._report()

    def _report(self) -> None:
        """Write the status; the API server may be away for a while."""
        if self._is_removed:
            return
        body = status_of(
            self.object,
            phase=self._phase,
            address=self.address,
            host=self._node.network.host,
            started_at=self._started_at,
            init=[(each.spec, each.state, each.restarts) for each in self._init],
            main=[(each.spec, each.state, each.restarts) for each in self._main],
            reason=self._reason,
        )
        self._node.persist(lambda: self._node.api.patch(f"{self._path}/status", body))

    def _terminate(self) -> None:
        """Stop what runs within the grace period, write the last status, and delete the object."""
        alive = [each for each in [*self._init, *self._main] if each.running]
        for each in alive:
            if each.running:
                each.running.signal(signal.SIGTERM)
        began = time.monotonic()
        killed = False
        while any(each.running for each in alive):
            left = began + self._grace_seconds() - time.monotonic()
            if left <= 0 and not killed:
                killed = True
                for each in alive:
                    if each.running:
                        each.running.signal(signal.SIGKILL)
            try:
                # A shorter grace period, or an end by force, may still come.
                self._next(None if killed else max(left, 0.0))
            except _StopError:
                continue
        if self._phase not in ("Succeeded", "Failed"):
            ran = [each for each in self._main if each.exit_code is not None]
            good = len(ran) == len(self._main) and not any(each.exit_code for each in ran)
            self._phase = "Succeeded" if good else "Failed"
            self._report()
        if not self._is_removed:
            uid = self.object["metadata"]["uid"]
            self._node.persist(lambda: self._node.api.delete(self._path, grace_seconds=0, uid=uid))

    def _grace_seconds(self) -> float:
        about = self.object["metadata"]
        stated = about.get("deletionGracePeriodSeconds")
        if stated is None:
            stated = self.object["spec"].get("terminationGracePeriodSeconds", 30)
        return float(stated)

    def _release(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None
            self._node.disconnect(self)
