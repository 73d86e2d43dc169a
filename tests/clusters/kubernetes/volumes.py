"""Makes a pod's volumes: folders with the files that the pod's containers see."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .api import Api, ApiError, Object
from .fields import field

_OWNER_MAY_READ = 0o600


class NotMountedError(Exception):
    """A volume cannot be made now; the text says what is missing. It is tried again."""


class UnsupportedError(Exception):
    """This cluster does not play what the pod asks for."""


@dataclass(frozen=True)
class File:
    """A file of a volume that is made from objects of the API."""

    path: str
    content: bytes
    mode: int


@dataclass(frozen=True)
class Volumes:
    """The volumes of one pod, in `folder`; `pod` is the object."""

    api: Api
    pod: Object
    address: str
    folder: Path

    def make(self) -> dict[str, Path]:
        """Return where each volume lies on the host.

        Raises:
            NotMountedError: A Secret, ConfigMap, claim or host path is not there (yet).
            UnsupportedError: A kind of volume that is not played here.
        """
        return {each["name"]: self._make(each) for each in self.pod["spec"].get("volumes", [])}

    def _make(self, volume: Object) -> Path:
        name, kind, source = _parse(volume)
        makers: dict[str, Callable[[str, Any], Path]] = {
            "configMap": self._from_objects,
            "secret": self._from_objects,
            "downwardAPI": self._from_objects,
            "projected": self._from_objects,
            "emptyDir": self._empty,
            "hostPath": lambda _, path: _host_path(path["path"], path.get("type", "")),
            "persistentVolumeClaim": lambda _, claim: self._claimed(claim["claimName"]),
        }
        if kind not in makers:
            raise UnsupportedError(f"volume {name}: {kind} is not played by this cluster")
        try:
            return makers[kind](name, volume if kind in _OF_OBJECTS else source)
        except ApiError as error:
            words = f"MountVolume.SetUp failed for volume {name!r}: {error}"
            raise NotMountedError(words) from None

    def _empty(self, name: str, source: Object) -> Path:
        place = self.folder / name
        if place.exists():
            return place
        place.mkdir(parents=True)
        if source.get("medium") == "Memory":
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        place.chmod(0o777)
        self._give_to_group(place, 0o660)
        return place

    def _claimed(self, claim_name: str) -> Path:
        namespace = self.pod["metadata"]["namespace"]
        claim = self.api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim_name}")
        volume_name = claim["spec"].get("volumeName")
        if not volume_name or claim["status"].get("phase") != "Bound":
            raise NotMountedError(f"claim {claim_name!r} is not bound")
        spec = self.api.get(f"/api/v1/persistentvolumes/{volume_name}")["spec"]
        source = spec.get("hostPath") or spec.get("local")
        if source is None:
            raise UnsupportedError(f"PersistentVolume {volume_name}: only hostPath and local")
        place = _host_path(source["path"], source.get("type", ""))
        if "local" in spec:
            self._give_to_group(place, 0o660)
        return place

    def _from_objects(self, name: str, volume: Object) -> Path:
        """Write files as the kubelet does: behind links, so that all change at once."""
        place = self.folder / name
        if place.exists():
            return place
        partial = self.folder / f"{name}.partial"
        data = partial / "..2026_01_01"
        subprocess.run(["rm", "-rf", partial], check=True)
        data.mkdir(parents=True)
        for file in self._files(volume):
            path = data / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            path.chmod(file.mode)
        (partial / "..data").symlink_to(data.name)
        for entry in data.iterdir():
            (partial / entry.name).symlink_to(f"..data/{entry.name}")
        self._give_to_group(partial, 0o440)
        partial.rename(place)
        return place

    def _files(self, volume: Object) -> list[File]:
        if "projected" not in volume:
            _, kind, source = _parse(volume)
            return self._files_of(kind, source, source.get("defaultMode", 0o644))
        default = volume["projected"].get("defaultMode", 0o644)
        return [
            file
            for each in volume["projected"].get("sources", [])
            for kind, source in each.items()
            for file in self._files_of(kind, source, default)
        ]

    def _files_of(self, kind: str, source: Object, default_mode: int) -> list[File]:
        if kind == "serviceAccountToken":
            return [self._token(source, default_mode)]
        if kind == "downwardAPI":
            return [
                File(
                    item["path"],
                    field(self.pod, item["fieldRef"]["fieldPath"], self.address).encode(),
                    item.get("mode", default_mode),
                )
                for item in source.get("items", [])
            ]
        if kind == "secret":
            return self._keys("secrets", source, default_mode)
        if kind == "configMap":
            return self._keys("configmaps", source, default_mode)
        raise UnsupportedError(f"projected source {kind} is not played by this cluster")

    def _keys(self, collection: str, source: Object, default_mode: int) -> list[File]:
        name = source.get("secretName") or source["name"]
        optional = source.get("optional", False)
        namespace = self.pod["metadata"]["namespace"]
        try:
            found = self.api.get(f"/api/v1/namespaces/{namespace}/{collection}/{name}")
        except ApiError as error:
            if error.code == 404 and optional:
                return []
            raise
        content = contents(found)
        items = source.get("items") or [{"key": key, "path": key} for key in content]
        lacks = [item["key"] for item in items if item["key"] not in content]
        if lacks and not optional:
            raise NotMountedError(f"references non-existent keys of {name!r}: {', '.join(lacks)}")
        return [
            File(item["path"], content[item["key"]], item.get("mode", default_mode))
            for item in items
            if item["key"] in content
        ]

    def _token(self, source: Object, default_mode: int) -> File:
        about = self.pod["metadata"]
        account = self.pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{about['namespace']}/serviceaccounts/{account}/token"
        bound = {"kind": "Pod", "apiVersion": "v1", "name": about["name"], "uid": about["uid"]}
        spec: Object = {"boundObjectRef": bound}
        spec["expirationSeconds"] = source.get("expirationSeconds", 3600)
        spec["audiences"] = [source["audience"]] if source.get("audience") else []
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = self.api.create(path, request)["status"]["token"]
        user = self.pod["spec"].get("securityContext", {}).get("runAsUser")
        grouped = self.pod["spec"].get("securityContext", {}).get("fsGroup") is not None
        mode = _OWNER_MAY_READ if user is not None or grouped else default_mode
        return File(source["path"], token.encode(), mode)

    def _give_to_group(self, place: Path, mode: int) -> None:
        """Let the pod's user, by its fsGroup, at the files."""
        context = self.pod["spec"].get("securityContext", {})
        group = context.get("fsGroup")
        user = context.get("runAsUser")
        for path in [place, *place.rglob("*")]:
            if path.is_symlink():
                continue
            if group is not None:
                os.chown(path, -1, group)
                extra = 0o2110 | mode if path.is_dir() else mode
                path.chmod(path.stat().st_mode & 0o7777 | extra)
            elif user is not None and path.is_file() and _is_private(path):
                os.chown(path, user, -1)


def unmount(folder: Path) -> None:
    """Give back the memory of the volumes in a pod's folder that are held in it."""
    for place in folder.iterdir() if folder.exists() else ():
        if place.is_mount():
            subprocess.run(["umount", place], check=True)


def contents(found: Object) -> dict[str, bytes]:
    """Return what a Secret or ConfigMap holds, by key."""
    if found["kind"] == "Secret":
        return {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}
    texts = {key: text.encode() for key, text in (found.get("data") or {}).items()}
    raw = {key: base64.b64decode(text) for key, text in (found.get("binaryData") or {}).items()}
    return texts | raw


_OF_OBJECTS = ("configMap", "secret", "downwardAPI", "projected")


def _parse(volume: Object) -> tuple[str, str, Any]:
    kind = next(key for key in volume if key != "name")
    return volume["name"], kind, volume[kind]


def _is_private(path: Path) -> bool:
    return path.stat().st_mode & 0o777 == _OWNER_MAY_READ


def _host_path(path: str, kind: str) -> Path:
    place = Path(path)
    if kind == "DirectoryOrCreate":
        place.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        place.touch()
    if kind in ("Directory", "DirectoryOrCreate") and not place.is_dir():
        raise NotMountedError(f"hostPath type check failed: {path} is not a directory")
    if not place.exists():
        place.mkdir(parents=True)  # a container runtime makes a folder of what is not there
    return place
