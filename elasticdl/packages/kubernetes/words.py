"""Reads the words with which users describe pods: limits, volumes, priorities and the like.

Each function takes the value of a flag and returns what it means. It raises ValueError with the
expected and the found value; the caller names the flag.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from elasticdl.settings.resources import pairs, parse_quantity

HIDDEN = "***"
HIGH, LOW = "high", "low"
"""The PriorityClasses of workers."""

_LABEL_NAME = re.compile(
    r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_SECRET = "secret:"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_VOLUME_SOURCES = ("host_path", "claim_name", "secret_name")
_HOST_PATH_TYPES = (
    "",
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume, and its path in every pod of the job.

    One of `host_path`, `claim_name` and `secret_name` is given and decides the kind.
    """

    mount_path: str
    host_path: str = ""
    claim_name: str = ""
    secret_name: str = ""
    sub_path: str = ""
    host_path_type: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable, with its value, or with a Secret and the key of its value."""

    name: str
    value: str = ""
    secret: str = ""
    key: str = ""

    def __str__(self) -> str:
        """Return it in a form that anybody may see, without its value."""
        return f"{self.name}={f'{_SECRET}{self.secret}/{self.key}' if self.secret else HIDDEN}"


def limits_of(request: dict[str, str], limit: dict[str, str]) -> dict[str, str]:
    """Return the limits of a pod: the requests, replaced by limits that were given."""
    for name, quantity in limit.items():
        asked = request.get(name)
        if asked is not None and parse_quantity(asked) > parse_quantity(quantity):
            raise ValueError(
                f"expected at least what is requested, {name}={asked}, found {name}={quantity}"
            )
    return request | limit


def parse_volumes(text: str) -> tuple[Volume, ...]:
    """Read "host_path=/a,mount_path=/b;claim_name=c,mount_path=/d,sub_path=e"."""
    volumes = tuple(_volume(part) for part in text.split(";") if part.strip())
    paths = [volume.mount_path for volume in volumes]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"expected each mount_path once, found {path} twice")
    return volumes


def _volume(text: str) -> Volume:
    names = (*_VOLUME_SOURCES, "mount_path", "sub_path", "type")
    words: dict[str, str] = {}
    for name, value in pairs(text, "claim_name=data,mount_path=/data"):
        if name not in names:
            raise ValueError(f"expected {', '.join(names)}, found {name!r}")
        if name in words:
            raise ValueError(f"expected each setting of a volume once, found {name} twice")
        words[name] = value
    if sum(source in words for source in _VOLUME_SOURCES) != 1:
        raise ValueError(f"expected one of {', '.join(_VOLUME_SOURCES)}, found {text.strip()!r}")
    if not words.get("mount_path", "").startswith("/"):
        raise ValueError(f"expected a mount_path that begins with /, found {text.strip()!r}")
    kind = words.get("type", "")
    if kind and "host_path" not in words:
        raise ValueError(f"type is that of a host_path: expected none, found {text.strip()!r}")
    if kind not in _HOST_PATH_TYPES:
        raise ValueError(f"expected the type {', '.join(_HOST_PATH_TYPES[1:])}, found {kind!r}")
    return Volume(
        # Equal paths must be equal texts, since each may occur once.
        mount_path=words["mount_path"].rstrip("/") or "/",
        host_path=words.get("host_path", ""),
        claim_name=words.get("claim_name", ""),
        secret_name=words.get("secret_name", ""),
        sub_path=words.get("sub_path", ""),
        host_path_type=kind,
    )


def parse_variables(text: str) -> tuple[Variable, ...]:
    """Read "A=1,B=2,3,C=secret:NAME/KEY"; a value may hold commas, but no "="."""
    pieces: list[str] = []
    # A comma belongs to the value if no "=" follows, so values may have commas.
    for piece in text.split(","):
        if "=" in piece or not pieces:
            pieces.append(piece)
        else:
            pieces[-1] += f",{piece}"
    variables: dict[str, Variable] = {}
    for piece in pieces if text.strip() else []:
        name, equals, value = (word.strip() for word in piece.partition("="))
        if not equals or not _VARIABLE.fullmatch(name):
            raise ValueError(
                f"expected NAME=VALUE,NAME=VALUE, found something else as item {len(variables) + 1}"
            )
        if "=" in value:
            raise ValueError(
                f"{name}: expected a value without '=', found one; {name}=secret:SECRET/KEY may "
                "have any"
            )
        if name in variables:
            raise ValueError(f"expected each variable once, found {name} twice")
        variables[name] = _variable(name, value)
    return tuple(variables.values())


def shown_variables(text: str) -> str:
    """Return variables in a form that anybody may see: names, and *** for their values."""
    try:
        return ",".join(map(str, parse_variables(text)))
    except ValueError:
        return HIDDEN


def values_of(text: str) -> dict[str, str]:
    """Return the values that the words contain themselves, by the name of their variable."""
    return {each.name: each.value for each in parse_variables(text) if not each.secret}


def from_secret(text: str, secret: str) -> str:
    """Return variables with each value replaced by a reference to a key of a Secret."""
    return ",".join(
        str(each if each.secret else Variable(each.name, secret=secret, key=each.name))
        for each in parse_variables(text)
    )


def _variable(name: str, value: str) -> Variable:
    if not value.startswith(_SECRET):
        return Variable(name, value)
    secret, slash, key = value.removeprefix(_SECRET).partition("/")
    if not (secret and slash and key):
        raise ValueError(f"{name}: expected secret:NAME/KEY, found secret: and something else")
    return Variable(name, secret=secret, key=key)


def parse_labels(text: str) -> dict[str, str]:
    """Read "team=ads,tier=batch" into labels."""
    labels = dict(pairs(text, "team=ads,tier=batch"))
    for name, value in labels.items():
        _check_label_name(name)
        if not _LABEL_VALUE.fullmatch(value) or len(value) > 63:
            raise ValueError(
                f"{name}: expected at most 63 letters, digits, '-', '_' and '.', found {value!r}"
            )
    return labels


def parse_annotations(text: str) -> dict[str, str]:
    """Read "example.com/owner=ads" into annotations; their values may be any text."""
    annotations = dict(pairs(text, "example.com/owner=ads"))
    for name in annotations:
        _check_label_name(name)
    return annotations


def _check_label_name(name: str) -> None:
    # The limit of Kubernetes is for the name after the prefix; the prefix does not count.
    if not _LABEL_NAME.fullmatch(name) or len(name.rpartition("/")[2]) > 63:
        raise ValueError(f"expected a name such as team or example.com/team, found {name!r}")


def parse_names(text: str) -> tuple[str, ...]:
    """Read "a,b" into names."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_tolerations(text: str) -> tuple[dict[str, Any], ...]:
    """Read "spot=true:NoSchedule,gpu:NoExecute,*", in the form of `kubectl taint`.

    A key without a value tolerates any value. A key without an effect tolerates any effect. "*"
    tolerates any taint.
    """
    return tuple(_toleration(word) for word in parse_names(text))


def _toleration(word: str) -> dict[str, Any]:
    taint, colon, effect = word.partition(":")
    if colon and effect not in _EFFECTS:
        raise ValueError(f"expected one of the effects {', '.join(_EFFECTS)}, found {word!r}")
    key, equals, value = taint.partition("=")
    toleration: dict[str, Any] = {"operator": "Equal" if equals else "Exists"}
    if key != "*":
        _check_label_name(key)
        toleration["key"] = key
    if equals:
        toleration["value"] = value
    if effect:
        toleration["effect"] = effect
    return toleration


def parse_worker_priority(text: str) -> str | float:
    """Read "high", "low", another PriorityClass, or the share of workers that are high."""
    try:
        share = float(text)
    except ValueError:
        return text
    if not 0 < share <= 1:
        raise ValueError(
            f"expected a PriorityClass, or a share of the workers above 0 and up to 1, found {text}"
        )
    return share


def next_worker_is_high(share: float, num_high: int, num_workers: int) -> bool:
    """Return whether a worker that joins others shall have high priority.

    So ceil(share x workers) of them have it at any time, for any number of workers.
    """
    # The new worker counts too, so the first worker of a job always has high priority.
    return num_high < math.ceil(share * (num_workers + 1))
