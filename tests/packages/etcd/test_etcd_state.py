"""What a journal in etcd promises beyond the contract: who writes, and what becomes of etcd."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import grpc
import pytest

from elasticdl.errors import ConfigError, StateError, TakenOverError
from elasticdl.state.open import check_state, open_state, state_file

pytestmark = pytest.mark.etcd

LEASE_SECONDS = 5  # a master that is alive may be held for some of them


class Job:
    """A prefix of its own in a server."""

    def __init__(self, server):
        self.server = server
        self.prefix = f"jobs/{uuid.uuid4().hex}"

    def open(self, lease_seconds=LEASE_SECONDS):
        from elasticdl.packages.etcd.journal import EtcdState

        return EtcdState([self.server.endpoint], self.prefix, lease_seconds)

    @contextlib.contextmanager
    def start(self, code, lease_seconds=LEASE_SECONDS):
        """Run code in another process, with `state` open; it is gone when the context ends."""
        lines = (
            "import sys",
            "from elasticdl.packages.etcd.journal import EtcdState",
            f"state = EtcdState([sys.argv[1]], sys.argv[2], {lease_seconds})",
            "print('open', flush=True)",
            code,
        )
        with subprocess.Popen(
            [sys.executable, "-c", "\n".join(lines), self.server.endpoint, self.prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout.readline() == "open\n"
                yield process
            finally:
                process.kill()  # one that is stopped too

    def keys(self):
        """Return the keys below the prefix, without it."""
        from elasticdl.packages.etcd.client import EtcdClient, rpc

        client = EtcdClient([self.server.endpoint], "test")
        begin = f"{self.prefix}/".encode()
        request = rpc.RangeRequest(key=begin, range_end=begin + b"\xff", keys_only=True)
        try:
            return [kv.key[len(begin) :].decode() for kv in client.call("Range", request).kvs]
        finally:
            client.close()


@pytest.fixture
def job(etcd_server):
    return Job(etcd_server)


def test_master_that_slept_past_its_lease_is_fenced(job):
    code = (
        "state.append([['first']])\n"
        "print('written', flush=True)\n"
        "sys.stdin.readline()\n"
        "state.append([['too late']])\n"
    )
    with job.start(code) as older:
        assert older.stdout.readline() == "written\n"
        os.kill(older.pid, signal.SIGSTOP)
        newer = job.open()  # waits until the lease has ended
        newer.append([["second"]])
        os.kill(older.pid, signal.SIGCONT)
        _, problem = older.communicate("go on\n", timeout=200)
    assert older.returncode != 0
    assert "TakenOverError" in problem
    assert "another master" in problem.splitlines()[-1]
    assert "has taken over the job" in problem.splitlines()[-1]
    assert newer.load() == (None, [["first"], ["second"]])
    newer.close()


def test_master_is_fenced_by_one_that_came_and_went(job):
    older = job.open()
    older.append([["first"]])
    older._client.revoke(older._mastership._lease, 5.0)
    newer = job.open()
    newer.append([["second"]])
    newer.close()
    with pytest.raises(TakenOverError):
        older.append([["too late"]])
    with pytest.raises(TakenOverError):
        older.compact({})
    older.close()
    last = job.open()
    assert last.load() == (None, [["first"], ["second"]])
    last.close()


def test_a_lease_that_ended_before_it_was_used_has_a_successor(job, monkeypatch):
    from elasticdl.packages.etcd.journal import _Mastership

    grant, granted = _Mastership._grant, []

    def grant_and_lose(self):
        grant(self)
        if not granted:  # as if etcd were away for longer than the lease
            self._client.revoke(self._lease, 5.0)
        granted.append(self._lease)

    monkeypatch.setattr(_Mastership, "_grant", grant_and_lose)
    state = job.open()
    state.append([["first"]])
    state.close()
    assert len(granted) == 2


def test_master_whose_lease_has_lapsed_goes_on_if_nobody_came(job):
    state = job.open()
    state.append([["first"]])
    state._client.revoke(state._mastership._lease, 5.0)
    state.append([["second"]])
    with pytest.raises(StateError, match="another master has it open"):
        job.open()
    assert state.load() == (None, [["first"], ["second"]])
    state.close()


def test_master_that_is_known_to_be_gone_is_not_waited_for(job):
    with job.start("sys.stdin.readline()", lease_seconds=600) as older:
        os.kill(older.pid, signal.SIGKILL)
        older.wait()
    newer = job.open()
    newer.append([["here"]])
    newer.close()


def test_lease_is_kept_alive(job):
    with job.start("sys.stdin.readline()\nstate.append([['still here']])") as older:
        with pytest.raises(StateError, match="which is alive"):
            job.open()
        older.communicate("go on\n", timeout=200)
        assert older.returncode == 0


def test_journal_waits_for_an_etcd_that_was_killed(etcd_of_its_own):
    job = Job(etcd_of_its_own)
    state = job.open()
    state.append([["n", 0]])
    etcd_of_its_own.kill()
    writer = threading.Thread(target=lambda: [state.append([["n", n]]) for n in range(1, 100)])
    writer.start()
    while not state.trouble:
        time.sleep(0.01)
    assert etcd_of_its_own.endpoint in state.trouble
    etcd_of_its_own.start()
    writer.join()
    assert state.trouble == ""
    assert state.load() == (None, [["n", n] for n in range(100)])
    state.close()


def test_facts_are_exact_whenever_etcd_is_killed(etcd_of_its_own):
    state = Job(etcd_of_its_own).open()
    written = []

    def write():
        for n in range(2_000):
            state.append([["n", n]])
            written.append(n)

    writer = threading.Thread(target=write)
    writer.start()
    for kill_at in (300, 700, 1500):
        while len(written) < kill_at:
            time.sleep(0.001)
        etcd_of_its_own.kill()
        etcd_of_its_own.start()
    writer.join()
    assert state.load() == (None, [["n", n] for n in range(2_000)])
    state.close()


def test_journal_can_be_closed_while_etcd_is_away(etcd_of_its_own):
    state = Job(etcd_of_its_own).open()
    etcd_of_its_own.kill()
    problems = []

    def write():
        try:
            state.append([["n"]])
        except StateError as error:
            problems.append(str(error))

    writer = threading.Thread(target=write)
    writer.start()
    while not state.trouble:
        time.sleep(0.01)
    state.close()
    writer.join()
    assert "was closed while etcd could not be reached" in problems[0]


def test_next_endpoint_is_asked_when_one_is_away(job):
    from elasticdl.packages.etcd.journal import EtcdState

    state = EtcdState(["127.0.0.1:1", job.server.endpoint], job.prefix, 2)
    state.append([["n"]])
    assert state.load() == (None, [["n"]])
    state.close()


def test_what_a_snapshot_replaces_is_deleted(job):
    state = job.open()
    for number in range(3):
        for _ in range(30):
            state.append([["n"], ["x" * 1_500_000] if _ == 0 else ["y"]])
        state.compact({"n": number})
    state.close()
    assert job.keys() == ["current", "epoch", "snapshots/000000000003/000000"]


def test_what_crashes_left_is_not_read_and_deleted_by_the_next_snapshot(job):
    state = job.open()
    state.append([["n"]])
    for key in ("snapshots/000000000001/000000", "snapshots/000000000001/000007"):
        put(state, key, "torn")
    for part in range(9):
        put(state, f"parts/000000000002/{part:06d}", "torn")
    state.append([["large", "x" * 2_500_000]])
    assert state.load() == (None, [["n"], ["large", "x" * 2_500_000]])
    state.compact({"n": 1})
    put(state, "facts/000000000001", "old")  # replaced, and not deleted
    state.close()
    state = job.open()
    assert state.load() == ({"n": 1}, [])
    state.append([["m"]])
    assert state.load() == ({"n": 1}, [["m"]])
    state.compact({"n": 2})
    state.close()
    assert job.keys() == ["current", "epoch", "snapshots/000000000002/000000"]


def put(state, key, value):
    from elasticdl.packages.etcd.journal import _put

    state._write([_put(f"{state._prefix}{key}", value.encode())])


def test_etcd_forgets_what_the_journal_does_not_need(etcd_of_its_own):
    from elasticdl.packages.etcd.client import RefusedError, rpc

    state = Job(etcd_of_its_own).open()
    for number in range(3):
        state.append([["n", number]])
        state.compact({"n": number})
    old = rpc.RangeRequest(key=b"x", revision=3)
    with pytest.raises(RefusedError) as error:
        state._client.call("Range", old)
    assert error.value.code is grpc.StatusCode.OUT_OF_RANGE
    state.close()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("facts/000000000005", "[]", "expected the facts 2, found"),
        ("facts/000000000002", "{", "is damaged"),
        ("facts/000000000002", '{"parts": 2}', "expected 2 parts"),
    ],
)
def test_damaged_journal_is_refused(job, key, value, words):
    state = job.open()
    state.append([["n"]])
    put(state, key, value)
    state.close()
    state = job.open()
    with pytest.raises(StateError, match=words):
        state.load()
    state.close()


def test_journal_of_another_format_is_refused(job):
    state = job.open()
    put(state, "current", json.dumps({"format": 99}))
    state.close()
    with pytest.raises(StateError, match="format 1, found 99"):
        job.open()


def test_missing_client_names_its_extra():
    code = (
        "import sys; sys.modules['aetcd'] = None\n"
        "from elasticdl.state.open import check_state\n"
        "check_state('etcd://host:1/job')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'aetcd>=" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "url",
    ["", "etcd://host/job", "etcd://host:1", "etcd://host:1/", "sqlite://relative", "file:///x"],
)
def test_other_addresses_are_refused(url):
    with pytest.raises(ConfigError, match=r"--state: expected sqlite:///PATH or etcd://HOST:PORT"):
        check_state(url)


def test_state_is_a_file_of_the_job_unless_named(tmp_path, job):
    assert state_file(None, tmp_path) == tmp_path / "state.sqlite"
    open_state(f"sqlite://{tmp_path}/other", tmp_path).close()
    assert (tmp_path / "other").is_file()
    open_state(f"etcd://{job.server.endpoint}/{job.prefix}", tmp_path).close()
    assert job.keys() == ["epoch"]
