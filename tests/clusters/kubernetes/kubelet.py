"""A node of the cluster with a real kubelet and containerd, to compare our own nodes with.

Needs `python -m tests.clusters.kubernetes.binaries kubelet` and, on Debian,

    apt-get install --no-install-recommends containerd runc containernetworking-plugins

No image is pulled: one of empty folders is made here, and a pod mounts this machine's programs into
it (`host_programs`). Pods share the host's network.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from . import binaries, processes
from .api import Object
from .cluster import Cluster
from .control_groups import ControlGroup
from .sandbox import image

IMAGE = "elasticdl.test/host:1"
NAME = "kubelet"
_PAUSE = "registry.k8s.io/pause:3.6"
_PLUGINS = "/usr/lib/cni"
_SOCKET_SECONDS = 30


def missing() -> str:
    """Return why no kubelet can run here, in words for a skipped test, or an empty string."""
    lacks = [name for name in ("containerd", "ctr", "runc") if shutil.which(name) is None]
    if not Path(_PLUGINS, "loopback").exists():
        lacks.append(f"{_PLUGINS}/loopback")
    words = f"lacks {', '.join(lacks)}: see tests/clusters/kubernetes/kubelet.py" if lacks else ""
    return binaries.missing("kubelet", "pause") or words


def start(cluster: Cluster) -> None:
    """Add the node to a cluster, with which it ends; returns when it is ready.

    Raises:
        TimeoutError: It did not become ready.
    """
    folder = cluster.folder / NAME
    for name in ("", "images", "cni", "logs", "pods", "certificates"):
        (folder / name).mkdir(exist_ok=True)
    # Everything is in a control group of the cluster's, so that nothing outlives it: containers
    # are children of nobody that dies with this process.
    group = ControlGroup(f"{cluster.control_group}/{NAME}")
    group.make_everywhere()
    _write_configurations(cluster, folder, group)
    join = " && ".join(f"echo $$ > {file}" for file in group.members)
    joined = ["sh", "-c", f'{join} && exec "$@"', "sh"]
    containerd = ["containerd", "--config", f"{folder}/containerd.toml"]
    process = cluster.run(
        ["unshare", "--mount", "--", *joined, *containerd], folder / "containerd.log"
    )
    _import_images(folder)
    kubelet = [
        str(binaries.binary("kubelet", "kubelet")),
        f"--config={folder}/kubelet.json",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--root-dir={folder}/pods",
        f"--cert-dir={folder}/certificates",
        f"--hostname-override={NAME}",
        f"--node-ip={cluster.network.host}",
    ]
    beside = ["nsenter", "--target", str(process), "--mount", "--"]
    cluster.run([*beside, *joined, *kubelet], folder / "kubelet.log")
    try:
        cluster.wait_for(f"/api/v1/nodes/{NAME}", _is_ready)
    except TimeoutError as error:
        words = processes.last_lines(folder / "kubelet.log")
        raise TimeoutError(f"{error}\n{words}") from None


def host_programs() -> Object:
    """Return `volumes`, `volumeMounts` and `env` of a pod that runs this machine's programs."""
    found = image(IMAGE)
    assert found
    volumes, mounts = [], []
    for number, each in enumerate(mount for mount in found.mounts if os.path.isdir(mount.source)):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": each.source}})
        mounts.append({"name": f"host-{number}", "mountPath": each.target, "readOnly": True})
    variables = [{"name": name, "value": value} for name, value in found.environment.items()]
    return {"volumes": volumes, "volumeMounts": mounts, "env": variables}


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not node["spec"].get("taints")


def _import_images(folder: Path) -> None:
    pause = binaries.binary("pause", "pause").read_bytes()
    _archive(folder / "pause.tar", _PAUSE, {"pause": pause}, ["/pause"])
    _archive(folder / "host.tar", IMAGE, {}, ["/bin/sh"])
    control = ["ctr", "--address", f"{folder}/containerd.sock", "--namespace", "k8s.io"]
    control += ["--connect-timeout", f"{_SOCKET_SECONDS}s", "images", "import"]
    for name in ("pause.tar", "host.tar"):
        subprocess.run([*control, str(folder / name)], check=True, capture_output=True)


def _write_configurations(cluster: Cluster, folder: Path, group: ControlGroup) -> None:
    (folder / "containerd.toml").write_text(
        f"""version = 2
root = "{folder}/images"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{_PAUSE}"
  restrict_oom_score_adj = true  # a container here may not be root enough to lower it
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_PLUGINS}"
    conf_dir = "{folder}/cni"
"""
    )
    loopback = {"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}
    (folder / "cni" / "none.conflist").write_text(json.dumps(loopback))
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": cluster.network.host,
        "authentication": {
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": cluster.control_plane.log_certificate[0]},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group.name}",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzPort": 0,
        "localStorageCapacityIsolation": False,
        # It says that it is alive four times as often.
        "nodeLeaseDurationSeconds": cluster.timing.node_lost,
        "podLogsDir": f"{folder}/logs",
    }
    (folder / "kubelet.json").write_text(json.dumps(kubelet))


def _archive(path: Path, name: str, files: Mapping[str, bytes], entry: list[str]) -> None:
    """Write an image as `docker save` does: a layer with the folders that pods mount things on."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("dev", "etc", "proc", "sys", "tmp", "usr", "work"):
            _add(tar, folder, None)
        for link in ("bin", "sbin", "lib", "lib64"):
            about = tarfile.TarInfo(link)
            about.type, about.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(about)
        for file, content in files.items():
            _add(tar, file, content)
    digest = f"sha256:{sha256(layer.getvalue()).hexdigest()}"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entry, "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _add(tar: tarfile.TarFile, name: str, content: bytes | None) -> None:
    about = tarfile.TarInfo(name)
    about.mode = 0o755
    if content is None:
        about.type = tarfile.DIRTYPE
        tar.addfile(about)
    else:
        about.size = len(content)
        tar.addfile(about, io.BytesIO(content))
