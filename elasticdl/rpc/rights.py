"""Decides which role may call which method, by the role in the caller's certificate.

Every process of a job has the job's token. The table here decides what a process may do with it. If
the certificate is not from the job's own authority, it names no role of a job, and the token alone
decides (`--tls=files`, `--tls=off`).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from elasticdl.rpc import elasticdl_pb2 as pb

WORKER, PS, MODEL_SERVER, USER = "worker", "ps", "modelserver", "user"

_SERVICE = "/elasticdl.v1.Master/"
_CERTIFICATES = "/elasticdl.v1.Certificates/"
_MODEL_SERVERS = "/elasticdl.v1.ModelServers/"
_MODEL_SERVER = "/elasticdl.v1.ModelServer/"

RIGHTS: Mapping[str, frozenset[str]] = {
    _SERVICE + "RegisterWorker": frozenset({WORKER}),
    _SERVICE + "HasCallbacks": frozenset({WORKER}),
    _SERVICE + "ModelProgram": frozenset({WORKER}),
    _SERVICE + "CheckData": frozenset({WORKER}),
    _SERVICE + "RestorePoint": frozenset({PS}),
    _SERVICE + "RegisterPs": frozenset({PS}),
    _SERVICE + "GetPsRoute": frozenset({WORKER, PS, MODEL_SERVER}),
    _SERVICE + "Lease": frozenset({WORKER}),
    _SERVICE + "Report": frozenset({WORKER}),
    _SERVICE + "Announce": frozenset({WORKER}),
    _SERVICE + "Heartbeat": frozenset({WORKER, PS, MODEL_SERVER}),
    _SERVICE + "Attend": frozenset({WORKER}),
    _SERVICE + "Leave": frozenset({WORKER, PS}),
    _SERVICE + "HandOver": frozenset({WORKER, PS}),
    _SERVICE + "GetStatus": frozenset({USER}),
    _SERVICE + "WatchStatus": frozenset({USER}),
    _SERVICE + "WatchEvents": frozenset({USER}),
    _SERVICE + "GetEvents": frozenset({USER}),
    _SERVICE + "SetNumWorkers": frozenset({USER}),
    _SERVICE + "SetNumPs": frozenset({USER}),
    _SERVICE + "Stop": frozenset({USER}),
    _CERTIFICATES + "Renew": frozenset({WORKER, PS, MODEL_SERVER}),
    _MODEL_SERVERS + "RegisterModelServer": frozenset({MODEL_SERVER}),
    _MODEL_SERVERS + "GetModelServers": frozenset({WORKER}),
    _MODEL_SERVER + "Forward": frozenset({WORKER}),
    _MODEL_SERVER + "Backward": frozenset({WORKER}),
}
"""Method -> the roles that may call it."""

_METHODS = {
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
assert set(RIGHTS) == _METHODS, f"who may call {_METHODS ^ set(RIGHTS)}?"


def role_of(uris: list[str]) -> str | None:
    """Return the role in the names of a certificate; None if it is not a job's own."""
    for uri in uris:
        parts = urlsplit(uri)
        if parts.scheme == "elasticdl":
            return parts.path.strip("/").partition("/")[0]
    return None


def may(role: str | None, method: str) -> bool:
    """Return whether a caller of a role may call a method."""
    return role is None or role in RIGHTS.get(method, ())
