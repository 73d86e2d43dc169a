"""What a pod is told about itself: fields, resources, and environment variables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from .api import Object

_SUFFIXES = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
}
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")

FindKeys = Callable[[str, str], dict[str, bytes] | None]
"""(`configmaps` or `secrets`, name) -> what the object holds; None if there is none."""


class NotFoundError(Exception):
    """A container's environment refers to what is not there."""


def quantity(text: str | int | float) -> float:
    """Return a quantity such as `500m` or `2Gi` as a number."""
    found = re.fullmatch(r"([0-9.]+(?:[eE][0-9]+)?)([a-zA-Z]*)", str(text))
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is no quantity of Kubernetes, such as 500m or 2Gi")
    return float(found[1]) * _SUFFIXES[found[2]]


def field(pod: Object, path: str, address: str) -> str:
    """Return a field of the downward API, such as `metadata.labels['job']`."""
    about, spec = pod["metadata"], pod["spec"]
    mapped = re.fullmatch(r"metadata\.(labels|annotations)(?:\['(.+)'\])?", path)
    if mapped:
        entries = about.get(mapped[1]) or {}
        if mapped[2]:
            return str(entries.get(mapped[2], ""))
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    plain = {
        "metadata.name": about["name"],
        "metadata.namespace": about["namespace"],
        "metadata.uid": about["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": pod.get("status", {}).get("hostIP", ""),
    }
    if path not in plain:
        raise NotFoundError(f"fieldRef {path} is not played by this cluster")
    return str(plain[path])


def environment(
    pod: Object, container: Object, address: str, find: FindKeys, given: Mapping[str, str]
) -> dict[str, str]:
    """Return a container's environment; `given` is what the image and the node set.

    Raises:
        NotFoundError: It refers to an object or a key that is not there.
    """
    result = dict(given)
    for source in container.get("envFrom", []):
        for reference, collection in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if reference in source:
                entries = _object(find, collection, source[reference])
                prefix = source.get("prefix", "")
                result |= {prefix + key: value.decode() for key, value in entries.items()}
    for each in container.get("env", []):
        if "valueFrom" not in each:
            result[each["name"]] = expand(each.get("value", ""), result)
            continue
        value = _value_from(pod, container, address, find, each["valueFrom"])
        if value is not None:
            result[each["name"]] = value
    return result


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable, if there is one; `$$` stands for one `$`."""

    def replacement(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return variables.get(found[1], found[0])

    return _REFERENCE.sub(replacement, text)


def _value_from(
    pod: Object, container: Object, address: str, find: FindKeys, source: Object
) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"], address)
    if "resourceFieldRef" in source:
        return _resource(container, source["resourceFieldRef"])
    for reference, collection in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if reference in source:
            selector = source[reference]
            entries = _object(find, collection, selector)
            if selector["key"] in entries:
                return entries[selector["key"]].decode()
            if selector.get("optional"):
                return None
            raise NotFoundError(f"couldn't find key {selector['key']} in {selector['name']}")
    raise NotFoundError(f"valueFrom {', '.join(source)} is not played by this cluster")


def _object(find: FindKeys, collection: str, reference: Object) -> dict[str, bytes]:
    entries = find(collection, reference["name"])
    if entries is None and not reference.get("optional"):
        kind = "configmap" if collection == "configmaps" else "secret"
        raise NotFoundError(f'{kind} "{reference["name"]}" not found')
    return entries or {}


def _resource(container: Object, reference: Any) -> str:
    kind, name = reference["resource"].split(".", 1)
    value = container.get("resources", {}).get(kind, {}).get(name)
    if value is None:
        raise NotFoundError(f"resourceFieldRef {reference['resource']}: the container states none")
    divisor = quantity(reference.get("divisor", 1)) or 1  # "0" stands for none
    return str(math.ceil(quantity(value) / divisor))
