"""Tells `--state` of etcd."""

from __future__ import annotations

import re

from elasticdl.packages.etcd.access import EtcdAccess
from elasticdl.state.base import JournalKind, State

_ENDPOINT = r"(?:[^\s,/:\[\]@]+|\[[0-9A-Fa-f:.]+\]):\d+"
_URL = re.compile(
    rf"etcd://(?P<endpoints>{_ENDPOINT}(?:,{_ENDPOINT})*)/(?P<prefix>[^?#\s]+)"
    r"(?:\?(?P<query>[^#\s]+))?"
)


def _matches(url: str) -> bool:
    return _URL.fullmatch(url) is not None


def _check(url: str) -> list[str]:
    import elasticdl.packages.etcd.journal  # noqa: F401 - to see whether its client is installed

    endpoints, _, access = _parts(url)
    return access.notes(endpoints)


def _open(url: str) -> State:
    from elasticdl.packages.etcd.journal import EtcdState

    endpoints, prefix, access = _parts(url)
    return EtcdState(endpoints, prefix, access=access)


def _parts(url: str) -> tuple[list[str], str, EtcdAccess]:
    found = _URL.fullmatch(url)
    assert found is not None
    access = EtcdAccess.of_query(found["query"] or "")
    return found["endpoints"].split(","), found["prefix"], access


ETCD = JournalKind("etcd://HOST:PORT[,HOST:PORT]/PREFIX", _matches, _check, _open)
