"""The pods of a job are followed without a gap and without a step back."""

import json
import threading

from elasticdl.packages.kubernetes.client import ApiError
from elasticdl.packages.kubernetes.watch import PodWatch


class BrokenStream:
    """A watch that brings one change, and then breaks off."""

    def __init__(self, version):
        self._version = version

    def __iter__(self):
        yield json.dumps({"type": "MODIFIED", "object": {"metadata": self._version}})
        raise ApiError(0, "the API server broke off")

    def close(self):
        pass


class PlayedApi:
    """Notes from which version on each watch begins."""

    def __init__(self):
        self.begun_at = []
        self.has_seen_three = threading.Event()

    def path(self, kind):
        return kind

    def get(self, path, **query):
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    def stream(self, path, **query):
        self.begun_at.append(query["resourceVersion"])
        if len(self.begun_at) == 3:
            self.has_seen_three.set()
        return BrokenStream({"resourceVersion": str(len(self.begun_at) + 1)})


def test_a_watch_that_breaks_off_goes_on_after_the_last_change_that_it_brought():
    api = PlayedApi()
    watch = PodWatch(api, "", lambda: None, lambda pods, before: None, lambda pod, is_deleted: None)
    watch.start()
    assert api.has_seen_three.wait(100.0)
    watch.close()
    assert api.begun_at[:3] == ["1", "2", "3"]
