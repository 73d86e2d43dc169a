"""Calls the API server: the official client's configuration and transport, with plain JSON."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from elasticdl.distribution import install
from elasticdl.errors import ConfigError, ElasticdlError
from elasticdl.packages.kubernetes.resource import Resource

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_SILENCE_SECONDS = 120.0  # of a watch; the server sends a bookmark about once a minute
_MOST_WORDS = 200  # characters of an answer that the API server has not written
_QUOTA = "exceeded quota"
_TRANSIENT = {401, 408, 425, 429, 500, 502, 503, 504}  # 401: the token was renewed just now
_PATCH = "application/strategic-merge-patch+json"

Query = dict[str, str | int | bool]


class ApiError(ElasticdlError):
    """The API server did not do what it was asked to do.

    code: The HTTP status; 0 if the server could not be reached. message: The server's own words.
    retry_after: The seconds for which the server wants no request.
    """

    def __init__(self, code: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """Return whether the same request may succeed later although nobody changes anything."""
        return self.code == 0 or self.code in _TRANSIENT or self.is_over_quota

    @property
    def words(self) -> str:
        """The server's message; for a quota, without the name of the requested object."""
        return self.message[self.message.find(_QUOTA) :] if self.is_over_quota else self.message

    @property
    def is_over_quota(self) -> bool:
        """Return whether the namespace has no room for the request."""
        return self.code == 403 and _QUOTA in self.message


def library() -> ModuleType:
    """Return the Python client of Kubernetes, which an extra installs.

    Raises:
        ConfigError: The client is not installed.
    """
    try:
        import kubernetes
        import kubernetes.client
        import kubernetes.config
    except ImportError as error:
        raise ConfigError(
            f"jobs on Kubernetes need its Python client: {install('kubernetes')} ({error})"
        ) from error
    return kubernetes


class Api:
    """Calls of one namespace. Any thread may use it."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    @classmethod
    def connect(cls, namespace: str = "") -> Api:
        """Find the cluster of the kubeconfig or, if there is no such file, the cluster of this pod.

        Args:
            namespace: The namespace; "" for the namespace of the kubeconfig's context, or of the
                pod.

        Raises:
            ConfigError: There is neither a kubeconfig nor a pod.
        """
        config = library().config
        configuration = library().client.Configuration()
        # Asked for here: the library reads KUBECONFIG once, when it is first imported.
        file = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        if not any(map(os.path.exists, file.split(os.pathsep))):
            with contextlib.suppress(ConfigError):
                return cls.in_pod(namespace)
        try:
            config.load_kube_config(file, client_configuration=configuration)
            _, context = config.list_kube_config_contexts(file)
        except (config.ConfigException, OSError, TypeError, ValueError, _yaml_error()) as error:
            raise ConfigError(
                f"no Kubernetes cluster is known: {error}; expected the file that kubectl uses "
                "(~/.kube/config, or KUBECONFIG)"
            ) from error
        return cls._of(configuration, namespace or context["context"].get("namespace") or "default")

    @classmethod
    def in_pod(cls, namespace: str = "") -> Api:
        """Find the cluster of this pod, whatever kubeconfig the user's image or settings bring.

        Raises:
            ConfigError: This process is in no pod, or may not use the API.
        """
        config = library().config
        configuration = library().client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
            found = _namespace_of_pod()
        except (config.ConfigException, OSError) as error:
            raise ConfigError(f"expected to be in a pod with a service account: {error}") from error
        return cls._of(configuration, namespace or found)

    @classmethod
    def _of(cls, configuration: Any, namespace: str) -> Api:
        configuration.connection_pool_maxsize = 16
        return cls(library().client.ApiClient(configuration), namespace)

    def path(self, kind: str, name: str = "") -> str:
        """Return the path of objects of this namespace: `path("pods")`, `path("jobs", "a")`."""
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def get(self, path: str, **query: str | int | bool) -> Resource:
        """Return an object, or a list of them.

        Raises:
            ApiError: The request failed; every other call raises this too.
        """
        return self._answer("GET", path, query=query)

    def create(self, path: str, body: Resource) -> Resource:
        """Create an object."""
        return self._answer("POST", path, body)

    def patch(self, path: str, body: Resource) -> Resource:
        """Change an object by a strategic merge."""
        return self._answer("PATCH", path, body, content_type=_PATCH)

    def delete(self, path: str, grace_seconds: int | None = None) -> None:
        """Delete an object, and in the background what it owns; it may be gone already."""
        body: Resource = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self._answer("DELETE", path, body)
        except ApiError as error:
            if error.code != 404:
                raise

    def stream(
        self, path: str, seconds: float = _SILENCE_SECONDS, **query: str | int | bool
    ) -> LineStream:
        """Open a watch, or follow a log; the stream ends after a silence of `seconds`."""
        return LineStream(self._request("GET", path, None, query, "", seconds))

    def forward(self, pod_name: str, port: int) -> Any:
        """Open a connection to a port of a pod; its `socket(port)` is the near end."""
        from kubernetes.client import CoreV1Api
        from kubernetes.stream import portforward

        # The library changes the client during the call, so this call gets a client of its own.
        own = type(self._client)(self._client.configuration)
        method = CoreV1Api(own).connect_get_namespaced_pod_portforward
        return portforward(method, pod_name, self.namespace, ports=str(port))

    def _answer(
        self,
        method: str,
        path: str,
        body: Resource | None = None,
        query: Query | None = None,
        content_type: str = "application/json",
    ) -> Resource:
        response = self._request(method, path, body, query or {}, content_type, _ANSWER_SECONDS)
        try:
            answer: Resource = json.loads(response.data)
        except (ValueError, _http_error()) as error:
            raise ApiError(0, f"the API server's answer was cut short: {error}") from error
        return answer

    def _request(
        self,
        method: str,
        path: str,
        body: Resource | None,
        query: Query,
        content_type: str,
        seconds: float,
    ) -> Any:
        words = [
            (name, str(value).lower() if value is True else value) for name, value in query.items()
        ]
        request = self._client.param_serialize(
            method=method,
            resource_path=path,
            query_params=words,
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=(_CONNECT_SECONDS, seconds))
            if 200 <= answer.status < 300:
                return answer.response
            raise _refusal(answer.response)
        except ApiError:
            raise
        except (OSError, _http_error(), library().client.ApiException) as error:
            raise ApiError(0, f"the API server cannot be reached: {error}") from error


class LineStream:
    """Yields lines as they come, until the server ends the stream; any thread may call `close`."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._is_closed = False

    def __iter__(self) -> Iterator[str]:
        """Yield lines without their ends.

        Raises:
            ApiError: The stream broke off, or was silent for too long.
        """
        rest = b""
        try:
            for piece in self._response.stream(amt=None, decode_content=False):
                *lines, rest = (rest + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        except (OSError, ValueError, _http_error()) as error:
            if not self._is_closed:
                raise ApiError(0, f"the API server broke off: {error}") from error
        finally:
            self._response.release_conn()
        if rest:
            yield rest.decode(errors="replace")

    def close(self) -> None:
        """End the stream, even while another thread waits for a line."""
        self._is_closed = True
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError):
            return  # it has ended


def _refusal(response: Any) -> ApiError:
    text = response.data.decode(errors="replace")
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        # The page of a proxy, say; it comes with each try.
        said = " ".join(text.split())[:_MOST_WORDS]
        message = f"HTTP status {response.status}" + (f": {said}" if said else "")
    try:
        retry_after = float(response.headers.get("Retry-After", 0))
    except ValueError:
        retry_after = 0.0
    return ApiError(response.status, message, retry_after)


def _http_error() -> type[Exception]:
    from urllib3.exceptions import HTTPError

    return HTTPError


def _yaml_error() -> type[Exception]:
    from yaml import YAMLError

    return YAMLError


def _namespace_of_pod() -> str:
    with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
        return file.read().strip()
