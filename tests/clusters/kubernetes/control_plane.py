"""The processes of Kubernetes' control plane: etcd, API server, controllers, scheduler."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import processes
from .api import Access, Api, ApiError
from .binaries import binary
from .network import Network

_PORT = 6443  # of an address that only this cluster has
_READY_SECONDS = 120
_LOOK_AGAIN_SECONDS = 0.05


class StartUpError(Exception):
    """A process of the control plane did not come up; the text has the end of its log."""


@dataclass(frozen=True)
class Timing:
    """How soon the cluster notices that a node is lost, in seconds.

    Attributes:
        node_lost: Without a heartbeat for this long a node is NotReady.
        eviction: This long after that its pods are deleted, unless they tolerate more.
    """

    node_lost: int = 8
    eviction: int = 2


@dataclass
class Service:
    """A process that can be killed and started again with the same command line."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Start it; returns at once."""
        self.process = processes.start(self.command, self.log)

    def kill(self) -> None:
        """Kill it with -9 and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Ask it to end and wait until it is gone."""
        if self.process is not None:
            processes.stop(self.process)
            self.process = None

    def check(self) -> None:
        """Raise StartUpError if it has ended."""
        if self.process is not None and self.process.poll() is not None:
            words = processes.last_lines(self.log)
            raise StartUpError(f"{self.name} ended with {self.process.returncode}:\n{words}")


class ControlPlane:
    """A whole control plane in a folder, on addresses of this machine."""

    def __init__(self, folder: Path, network: Network, timing: Timing):
        """Write keys and command lines; nothing is started.

        Args:
            folder: Takes data, keys and logs.
            network: Addresses that only this cluster has, so that its ports are free.
            timing: How soon lost nodes are noticed.
        """
        self.folder = folder
        self._loopback = network.loopback
        self.access = Access(f"https://{network.host}:{_PORT}", f"{folder}/apiserver.crt", _token())
        self.api = Api(self.access)
        self.log_certificate = (f"{folder}/logs.crt", f"{folder}/logs.key")
        self._make_keys()
        self._write("tokens.csv", f"{self.access.token},admin,admin,system:masters\n")
        kubeconfig = write_kubeconfig(folder / "kubeconfig", self.access)
        self.etcd = self._service("etcd", binary("etcd", "etcd"), self._etcd_flags())
        self.api_server = self._service(
            "kube-apiserver",
            binary("kubernetes", "kube-apiserver"),
            self._api_server_flags(network, timing),
        )
        self.controllers = self._service(
            "kube-controller-manager",
            binary("kubernetes", "kube-controller-manager"),
            [
                f"--kubeconfig={kubeconfig}",
                f"--service-account-private-key-file={folder}/accounts.key",
                f"--root-ca-file={folder}/apiserver.crt",
                "--leader-elect=false",
                "--secure-port=0",
                f"--node-monitor-grace-period={timing.node_lost}s",
                "--node-monitor-period=1s",
                "--node-eviction-rate=100",
            ],
        )
        self.scheduler = self._service(
            "kube-scheduler",
            binary("kubernetes", "kube-scheduler"),
            [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"],
        )
        self.kubeconfig = kubeconfig

    def start(self) -> None:
        """Start everything; returns when pods can be created.

        Raises:
            StartUpError: A process ended, or took longer than two minutes.
        """
        self.etcd.start()
        self.api_server.start()
        self.wait_for_api_server()
        self.controllers.start()
        self.scheduler.start()
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait(lambda: self.api.get(account) is not None)

    def wait_for_api_server(self) -> None:
        """Return when the API server answers."""
        self._wait(lambda: self.api.text("/readyz") == "ok")

    def stop(self) -> None:
        """Stop everything."""
        self.api.close()
        for each in (self.scheduler, self.controllers, self.api_server, self.etcd):
            each.stop()

    def _wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        why = "it did not become ready"
        while time.monotonic() < deadline:
            for each in (self.etcd, self.api_server, self.controllers, self.scheduler):
                each.check()
            try:
                if holds():
                    return
            except (ApiError, OSError) as error:
                why = str(error)
            time.sleep(_LOOK_AGAIN_SECONDS)
        words = processes.last_lines(self.api_server.log)
        raise StartUpError(f"not ready within {_READY_SECONDS} s: {why}\n{words}")

    def _service(self, name: str, path: Path, flags: list[str]) -> Service:
        return Service(name, [str(path), *flags], self.folder / f"{name}.log")

    def _etcd_flags(self) -> list[str]:
        peers = f"http://{self._loopback}:2380"
        return [
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={self._etcd_address}",
            f"--advertise-client-urls={self._etcd_address}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",  # a cluster lives no longer than this machine is up
        ]

    @property
    def _etcd_address(self) -> str:
        return f"http://{self._loopback}:2379"

    def _api_server_flags(self, network: Network, timing: Timing) -> list[str]:
        folder = self.folder
        return [
            f"--etcd-servers={self._etcd_address}",
            f"--cert-dir={folder}",
            f"--bind-address={network.host}",
            f"--advertise-address={network.host}",
            f"--secure-port={_PORT}",
            f"--service-cluster-ip-range={network.services}",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={folder}/accounts.key",
            f"--service-account-key-file={folder}/accounts.pub",
            "--allow-privileged",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self.log_certificate[0]}",
            f"--kubelet-client-key={self.log_certificate[1]}",
            f"--default-not-ready-toleration-seconds={timing.eviction}",
            f"--default-unreachable-toleration-seconds={timing.eviction}",
        ]

    def _make_keys(self) -> None:
        folder = self.folder
        private, public = f"{folder}/accounts.key", f"{folder}/accounts.pub"
        openssl("genrsa", "-out", private, "2048")
        openssl("rsa", "-in", private, "-pubout", "-out", public)
        certificate, key = self.log_certificate
        words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30"
        openssl(*words.split(), "-subj", "/CN=logs", "-out", certificate, "-keyout", key)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.touch(0o600)
        path.write_text(text)


def write_kubeconfig(path: Path, access: Access, namespace: str = "default") -> Path:
    """Write a file that `kubectl --kubeconfig` takes; JSON is YAML too."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [
            {
                "name": "test",
                "cluster": {"server": access.server, "certificate-authority": access.ca_file},
            }
        ],
        "users": [{"name": "test", "user": {"token": access.token}}],
        "contexts": [
            {
                "name": "test",
                "context": {"cluster": "test", "user": "test", "namespace": namespace},
            }
        ],
    }
    path.touch(0o600)
    path.write_text(json.dumps(config, indent=1))
    return path


def _token() -> str:
    return secrets.token_urlsafe(24)


def openssl(*arguments: str) -> None:
    """Run `openssl` with arguments."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
