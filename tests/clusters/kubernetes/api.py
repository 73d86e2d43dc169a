"""A small client of the Kubernetes API: plain dictionaries in and out."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]
"""An object of the API, as in its JSON."""

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_TIMEOUT_SECONDS = 30
_WATCH_SECONDS = 300
_LOST = (ConnectionError, ssl.SSLError, http.client.HTTPException)


class ApiError(Exception):
    """The API server refused. `code` is the HTTP status, the text is the server's own."""

    def __init__(self, code: int, message: str):
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True)
class Access:
    """Where an API server is, and who asks."""

    server: str
    ca_file: str
    token: str


class Api:
    """Calls the API server. Methods may be called from any thread."""

    def __init__(self, access: Access):
        self.access = access
        self._idle: list[http.client.HTTPSConnection] = []  # taken and given back by any thread

    def close(self) -> None:
        """Close its connections."""
        while (kept := self._take_idle()) is not None:
            kept.close()

    def get(self, path: str, **query: str) -> Object:
        """Return an object or a list."""
        return self._json("GET", path, query)

    def create(self, path: str, body: Object, **query: str) -> Object:
        """Create an object in the collection at `path`."""
        return self._json("POST", path, query, body)

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object."""
        return self._json("PUT", path, {}, body)

    def patch(self, path: str, body: Object, content_type: str = STRATEGIC) -> Object:
        """Change parts of an object."""
        return self._json("PATCH", path, {}, body, content_type)

    def delete(
        self, path: str, grace_seconds: int | None = None, uid: str | None = None, **options: Any
    ) -> Object:
        """Delete an object; with a `uid`, only that one and no successor of its name."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        return self._json("DELETE", path, {}, body)

    def text(self, path: str, **query: str) -> str:
        """Return what is not JSON: a log, or `ok`."""
        return self._request("GET", path, query, None, "application/json").decode()

    def watch(self, path: str, resource_version: str, **query: str) -> Iterator[tuple[str, Object]]:
        """Yield (type, object) of each change until the server ends the watch.

        Raises:
            ApiError: 410 if `resource_version` is too old: list again.
            OSError: The connection was lost, or silent for too long.
        """
        query |= {"watch": "1", "resourceVersion": resource_version}
        query |= {"timeoutSeconds": str(_WATCH_SECONDS), "allowWatchBookmarks": "true"}
        with closing(self._connect(_WATCH_SECONDS + _TIMEOUT_SECONDS)) as connection:
            self._send(connection, "GET", path, query, None, "application/json")
            response = connection.getresponse()
            if response.status != 200:
                raise _error(response.status, response.read())
            for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"]["code"], event["object"]["message"])
                yield event["type"], event["object"]

    def _json(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        answer: Object = json.loads(self._request(method, path, query, body, content_type))
        return answer

    def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None,
        content_type: str,
    ) -> bytes:
        kept = self._take_idle()
        connection = kept or self._connect(_TIMEOUT_SECONDS)
        try:
            self._send(connection, method, path, query, body, content_type)
            response = connection.getresponse()
            answer = response.read()
        except _LOST as error:
            connection.close()
            if kept is None:
                raise ConnectionError(f"{method} {path}: {error!r}") from error
            # The server closed a connection that was idle: once more, by a new one.
            return self._request(method, path, query, body, content_type)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if response.status >= 300:
            raise _error(response.status, answer)
        return answer

    def _take_idle(self) -> http.client.HTTPSConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self, timeout_seconds: float) -> http.client.HTTPSConnection:
        address = urlsplit(self.access.server)
        context = ssl.create_default_context(cafile=self.access.ca_file)
        return http.client.HTTPSConnection(
            address.hostname or "", address.port, timeout=timeout_seconds, context=context
        )

    def _send(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None,
        content_type: str,
    ) -> None:
        headers = {"Authorization": f"Bearer {self.access.token}", "Content-Type": content_type}
        payload = None if body is None else json.dumps(body).encode()
        target = f"{path}?{urlencode(query)}" if query else path
        connection.request(method, target, payload, headers)


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        yield from response
    except http.client.HTTPException as error:
        raise ConnectionError(f"the watch broke off: {error!r}") from error


def _error(code: int, answer: bytes) -> ApiError:
    try:
        message = json.loads(answer)["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.decode(errors="replace")
    return ApiError(code, message)
