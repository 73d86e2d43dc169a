"""Keeps a list of pods up to date: list, watch, and list again when the server says so."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from elasticdl.packages.kubernetes.client import Api, ApiError, LineStream
from elasticdl.packages.kubernetes.resource import Resource
from elasticdl.packages.kubernetes.retry import Backoff

_GONE = 410  # what we have seen last is too old for the server
_WATCH_SECONDS = 300  # after which the server ends a watch

log = logging.getLogger(__name__)

Pod = Resource


class PodWatch:
    """Follows the pods that a selector selects, in a thread.

    It calls `changed(pod, is_deleted)` for each pod and change. It calls `listed(pods)` with all
    pods whenever it had to begin anew: pods that are missing then are gone. It calls
    `before_list()` just before the list, and gives its result to `listed`. Several calls may say
    the same.
    """

    def __init__(
        self,
        api: Api,
        selector: str,
        before_list: Callable[[], Any],
        listed: Callable[[list[Pod], Any], None],
        changed: Callable[[Pod, bool], None],
    ) -> None:
        self._api = api
        self._selector = selector
        self._before_list = before_list
        self._listed = listed
        self._changed = changed
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: LineStream | None = None
        self._version = ""  # that was seen last; "": the pods are to be listed
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        """Begin to follow the pods."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; no function is called after this has returned."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def _run(self) -> None:
        backoff = Backoff(self._closed)
        while not self._closed.is_set():
            try:
                if not self._version:
                    self._list()
                self._follow()
                backoff.reset()
            except ApiError as error:
                if error.code == _GONE:
                    self._version = ""
                    continue
                log.warning("the pods cannot be watched: %s", error)
                backoff.pause(error.retry_after)
            except Exception:  # of a line that was cut short, or a pod of a form never seen
                log.exception("what the API server says of pods cannot be read; they are listed")
                self._version = ""
                backoff.pause()

    def _list(self) -> None:
        before = self._before_list()
        answer = self._api.get(self._api.path("pods"), labelSelector=self._selector)
        self._listed(answer["items"], before)
        self._version = str(answer["metadata"]["resourceVersion"])

    def _follow(self) -> None:
        """Watch from the last version on until the server ends the watch.

        A watch that breaks off goes on after the last change, so no pod falls back to an old state.
        """
        stream = self._api.stream(
            self._api.path("pods"),
            watch=True,
            labelSelector=self._selector,
            resourceVersion=self._version,
            allowWatchBookmarks=True,
            timeoutSeconds=_WATCH_SECONDS,
        )
        with self._lock:
            self._stream = stream
            if self._closed.is_set():
                stream.close()
        for line in stream:
            if self._closed.is_set():
                break
            event = json.loads(line)
            found = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(int(found.get("code", 0)), str(found.get("message", found)))
            if event["type"] != "BOOKMARK":
                self._changed(found, event["type"] == "DELETED")
            self._version = found["metadata"]["resourceVersion"]
