"""The names of services, for the hosts files of pods.

There is no DNS server and no kube-proxy: a service's name leads to the pods that are ready behind
it, on their own ports. `targetPort` must therefore equal `port`, and a client that keeps an address
must look the name up again when it connects again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .api import Api, ApiError, Object

_RETRY_SECONDS = 0.5
_SERVICES = "/api/v1/services"
_SLICES = "/apis/discovery.k8s.io/v1/endpointslices"


class Names:
    """Follows the services of all namespaces; calls `changed` when their addresses change."""

    def __init__(self, api: Api, api_host: str, changed: Callable[[], None]):
        self._api = api
        self._api_host = api_host
        self._changed = changed
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, Object]] = {_SERVICES: {}, _SLICES: {}}

    def start(self) -> None:
        """Follow them, in threads that end with the process."""
        for path in (_SERVICES, _SLICES):
            threading.Thread(target=self._follow_for_ever, args=(path,), daemon=True).start()

    def lines(self, namespace: str) -> list[str]:
        """Return the lines of a hosts file for a pod of a namespace."""
        with self._lock:
            slices = list(self._found[_SLICES].values())
            services = set(self._found[_SERVICES])
        result = [f"{self._api_host} kubernetes.default.svc kubernetes.default.svc.cluster.local"]
        for each in slices:
            about = each["metadata"]
            service = about.get("labels", {}).get("kubernetes.io/service-name", "")
            if f"{about['namespace']}/{service}" not in services:
                continue
            for endpoint in each.get("endpoints") or []:
                if endpoint.get("conditions", {}).get("ready") is not False:
                    names = _names(service, about["namespace"], namespace)
                    if endpoint.get("hostname"):
                        names = [f"{endpoint['hostname']}.{name}" for name in names] + names
                    result += [" ".join([address, *names]) for address in endpoint["addresses"]]
        return sorted(set(result))

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
