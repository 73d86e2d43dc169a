"""The services of a cluster: names, addresses, and the pods that are ready behind them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .api import Api, ApiError, Object

_RETRY_SECONDS = 0.5
_SERVICES = "/api/v1/services"
_SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
_SERVICE_OF = "kubernetes.io/service-name"

Address = tuple[str, int]
"""IP address and port."""


@dataclass(frozen=True)
class Services:
    """Services and their endpoint slices, as the API has them, by namespace and name."""

    services: Mapping[str, Object] = field(default_factory=dict)
    slices: Mapping[str, Object] = field(default_factory=dict)

    def hosts(self, namespace: str) -> list[str]:
        """Return the lines of a hosts file for a pod of a namespace.

        The name of a headless service leads to the pods that are ready, any other to the cluster
        address of the service.
        """
        result = set()
        for service in self.services.values():
            about, address = service["metadata"], service["spec"].get("clusterIP")
            names = _names(about["name"], about["namespace"], namespace)
            if address and address != "None":
                result.add(" ".join([address, *names]))
                continue
            for _, endpoint in self._ready(service):
                hostname = endpoint.get("hostname")
                own = [f"{hostname}.{name}" for name in names] if hostname else []
                for address in endpoint["addresses"]:
                    result.add(" ".join([address, *own, *names]))
        return sorted(result)

    def routes(self) -> dict[Address, list[Address]]:
        """Return where a connection to a service's cluster address and port may lead."""
        result: dict[Address, list[Address]] = {}
        for service in self.services.values():
            address = service["spec"].get("clusterIP")
            if not address or address == "None":
                continue
            for port in service["spec"].get("ports", []):
                if port.get("protocol", "TCP") != "TCP":
                    continue
                result[address, port["port"]] = [
                    (ip, target["port"])
                    for each, endpoint in self._ready(service)
                    for target in each.get("ports") or []
                    if (target.get("name") or "") == port.get("name", "")
                    for ip in endpoint["addresses"]
                ]
        return result

    def _ready(self, service: Object) -> Iterable[tuple[Object, Object]]:
        """Yield (slice, endpoint) of the pods that are ready behind a service."""
        about = service["metadata"]
        for each in self.slices.values():
            labels = each["metadata"].get("labels", {})
            mine = each["metadata"]["namespace"] == about["namespace"]
            if mine and labels.get(_SERVICE_OF) == about["name"]:
                for endpoint in each.get("endpoints") or []:
                    if endpoint.get("conditions", {}).get("ready") is not False:
                        yield each, endpoint


class Follower:
    """Follows the services of all namespaces; calls `changed` after each change."""

    def __init__(self, api: Api, changed: Callable[[], object]):
        self._api = api
        self._changed = changed
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, Object]] = {_SERVICES: {}, _SLICES: {}}

    def start(self) -> None:
        """Follow them, in threads that end with the process."""
        for path in self._found:
            threading.Thread(target=self._follow_for_ever, args=(path,), daemon=True).start()

    def now(self) -> Services:
        """Return them as they are known now."""
        with self._lock:
            return Services(dict(self._found[_SERVICES]), dict(self._found[_SLICES]))

    def _follow_for_ever(self, path: str) -> None:
        while True:
            try:
                self._follow(path)
            except (ApiError, OSError, ValueError):
                time.sleep(_RETRY_SECONDS)

    def _follow(self, path: str) -> None:
        listed = self._api.get(path)
        with self._lock:
            self._found[path] = {_key(each): each for each in listed["items"]}
        self._changed()
        for kind, each in self._api.watch(path, listed["metadata"]["resourceVersion"]):
            if kind == "BOOKMARK":
                continue
            with self._lock:
                if kind == "DELETED":
                    self._found[path].pop(_key(each), None)
                else:
                    self._found[path][_key(each)] = each
            self._changed()


def _key(found: Object) -> str:
    return f"{found['metadata']['namespace']}/{found['metadata']['name']}"


def _names(service: str, namespace: str, asked_from: str) -> list[str]:
    whole = f"{service}.{namespace}"
    names = [whole, f"{whole}.svc", f"{whole}.svc.cluster.local"]
    return [service, *names] if namespace == asked_from else names
