"""A log on a cluster is followed to its end, however often the API server breaks the stream off."""

import itertools

import pytest

from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.packages.kubernetes import job as room
from elasticdl.packages.kubernetes.client import ApiError
from elasticdl.packages.kubernetes.job import KubernetesJob
from tests.packages.kubernetes.test_events import Api

LINES = [f"2026-01-01T00:00:0{second}.{part}00000000Z " for second in range(3) for part in (1, 2)]


class LoggedApi(Api):
    """The log of a pod, which is given out in streams of a few lines."""

    def __init__(self, breaks):
        super().__init__(None)
        self.num_written, self.breaks, self.asked = 0, list(breaks), []
        self.add_pod(1)

    def stream(self, path, seconds, **query):
        self.asked.append(query)
        since = query.get("sinceTime", "")[: len("2026-01-01T00:00:00")]
        error = self.breaks.pop(0) if self.breaks else None
        if isinstance(error, ApiError) and error.code:
            raise error
        self.num_written += 2  # what the process has printed meanwhile
        if self.num_written >= len(LINES):
            self.end([])
        for number, stamp in enumerate(LINES[: self.num_written]):
            if stamp >= since:  # the server counts whole seconds
                yield f"{stamp}line {number}" if query.get("timestamps") else f"line {number}"
        if error is not None:
            raise error


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(room, "_LOOK_SECONDS", 0.0)


@pytest.mark.parametrize(
    "breaks",
    [
        (),
        (None, None, None),
        (ApiError(0, "broke off"), ApiError(0, "broke off")),
        (ApiError(502, "bad gateway"), ApiError(0, "broke off"), ApiError(404, "not found")),
    ],
)
def test_a_log_goes_on_after_its_stream_was_broken_off(breaks):
    api = LoggedApi(breaks)
    said = list(KubernetesJob(api, "a").logs(Role.MASTER, 0, follow=True))
    assert said == [f"line {number}" for number in range(len(LINES))]


def test_who_may_not_read_a_log_is_told_so():
    api = LoggedApi(itertools.repeat(ApiError(403, "forbidden"), 3))
    with pytest.raises(LaunchError, match="cannot be read: forbidden"):
        list(KubernetesJob(api, "a").logs(Role.MASTER, 0, follow=True))


def test_a_log_goes_on_after_the_api_server_was_away(monkeypatch):
    api = LoggedApi([])
    get, faults = api.get, iter([ApiError(503, "away"), ApiError(0, "reset")] * 2)

    def get_or_fail(path, **query):
        if (fault := next(faults, None)) is not None:
            raise fault
        return get(path, **query)

    monkeypatch.setattr(api, "get", get_or_fail)
    said = list(KubernetesJob(api, "a").logs(Role.MASTER, 0, follow=True))
    assert said == [f"line {number}" for number in range(len(LINES))]
