"""Builds etcd, Kubernetes and Kueue from their Go modules, and says where they lie.

`go/NAME/go.mod` and `go.sum` pin every module. What was built lies outside the tree, in a folder
named after the version and the hash of `go/NAME`, so that clones share it and a new version never
meets an old binary.

    python -m tests.clusters.kubernetes.binaries etcd kubernetes kubelet kueue
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_GO = Path(__file__).parent / "go"


@dataclass(frozen=True)
class Component:
    """What is built together from one Go module.

    Attributes:
        name: What the command line calls it.
        module: The folder of its go.mod below `go/`.
        requires: The module whose version names the build.
        packages: What is compiled; the last part of each is the name of the binary.
        folders: What is copied beside the binaries, of the module that it requires.
    """

    name: str
    module: str
    requires: str
    packages: tuple[str, ...]
    folders: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The version that go.mod requires, such as `v1.36.3`; `v0` for a program of our own."""
        if not self.requires:
            return "v0"
        text = (_GO / self.module / "go.mod").read_text()
        found = re.search(rf"{re.escape(self.requires)} (v\S+)", text)
        if found is None:
            raise RuntimeError(f"{_GO / self.module / 'go.mod'} does not require {self.requires}")
        return found[1]

    @property
    def folder(self) -> Path:
        """Where its binaries lie, or will lie."""
        digest = hashlib.sha256()
        for file in sorted((_GO / self.module).iterdir()):
            digest.update(file.read_bytes())
        return _cache() / f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"

    @property
    def is_built(self) -> bool:
        """Whether its binaries can be run."""
        return self.folder.is_dir()


COMPONENTS = {
    each.name: each
    for each in (
        Component("etcd", "etcd", "go.etcd.io/etcd/server/v3", (".",)),
        Component(
            "kubernetes",
            "kubernetes",
            "k8s.io/kubernetes",
            (
                "k8s.io/kubernetes/cmd/kube-apiserver",
                "k8s.io/kubernetes/cmd/kube-controller-manager",
                "k8s.io/kubernetes/cmd/kube-scheduler",
            ),
        ),
        Component(
            "kueue",
            "kueue",
            "sigs.k8s.io/kueue",
            ("sigs.k8s.io/kueue/cmd/kueue",),
            ("config/components/crd/bases", "config/components/webhook"),
        ),
        Component("pause", "pause", "", (".",)),
        Component("kubelet", "kubernetes", "k8s.io/kubernetes", ("k8s.io/kubernetes/cmd/kubelet",)),
    )
}


def binary(component: str, name: str) -> Path:
    """Return the path of a binary.

    Raises:
        FileNotFoundError: It has not been built; the message says how to.
    """
    path = COMPONENTS[component].folder / name
    if not path.exists():
        target = component if component in ("etcd", "kueue") else "kubernetes-tools"
        raise FileNotFoundError(f"{path}: not built yet; run `make {target}`")
    return path


def missing(*components: str) -> str:
    """Return why the components cannot be run, in words for a skipped test, or an empty string."""
    lacks = [name for name in components if not COMPONENTS[name].is_built]
    target = "kueue" if lacks == ["kueue"] else "test-kubernetes"
    return f"{', '.join(lacks)} not built: run `make {target}`" if lacks else ""


def build(component: Component) -> None:
    """Build a component into its folder, if it is not there; builds of one kind take turns."""
    folder = component.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if component.is_built:
            return
        print(f"Building {component.name} {component.version} into {folder} ...", flush=True)
        partial = Path(f"{folder}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", _flags(component)]
        command += ["-o", f"{partial}/", *component.packages]
        subprocess.run(command, cwd=_GO / component.module, check=True, env=_environment())
        for each in component.folders:
            shutil.copytree(_source(component) / each, partial / each)
        partial.rename(folder)


def _source(component: Component) -> Path:
    """Return where Go has the sources of the module that names the build."""
    command = ["go", "list", "-m", "-f", "{{.Dir}}", component.requires]
    where = _GO / component.module
    found = subprocess.run(command, cwd=where, check=True, capture_output=True, text=True)
    return Path(found.stdout.strip())


def _flags(component: Component) -> str:
    if component.name == "kueue":
        return "-s -w"  # it would take its own version for that of Kubernetes
    major, _, rest = component.version.removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    stamps = {"gitVersion": component.version, "gitMajor": major, "gitMinor": minor}
    version = "k8s.io/component-base/version"
    return " ".join(["-s", "-w", *(f"-X {version}.{key}={value}" for key, value in stamps.items())])


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0"}


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "elasticdl"


def main() -> int:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.clusters.kubernetes.binaries", description=__doc__
    )
    parser.add_argument("component", nargs="+", choices=sorted(COMPONENTS))
    arguments = parser.parse_args()
    if shutil.which("go") is None:
        print("go: not found; Kubernetes is built by Go 1.26 or newer: https://go.dev/dl/")
        return 1
    for name in arguments.component:
        build(COMPONENTS[name])
        print(COMPONENTS[name].folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
