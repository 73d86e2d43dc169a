"""A running master whose journal is slow, away, taken over, or cannot be written."""

import contextlib
import threading
import time

from elasticdl.errors import StateError, TakenOverError, UnavailableError
from elasticdl.job import Role
from elasticdl.master import master as master_module
from elasticdl.master import reporter
from elasticdl.observe.events import read_events
from elasticdl.rpc.client import JobClient
from elasticdl.runtime.process import STOPPED_EXIT_CODE


def test_master_whose_journal_cannot_be_written_ends(run, connect):
    running = run(num_ps=1)

    def full(_):
        raise StateError("state.sqlite: the job's journal cannot be written: disk full")

    running.state.append = full
    client = connect(running)

    def register():
        # The answer would come from the next master; there is none, and the test ends the call.
        with contextlib.suppress(UnavailableError):
            client.register_worker(0, 1)

    worker = threading.Thread(target=register)
    worker.start()
    running.join()
    client.close()
    worker.join()
    assert isinstance(running.error, StateError)


def test_picture_is_not_shown_before_it_is_written(run, connect):
    running = run(num_ps=1)
    running.launcher.wait_for(Role.PS, 0)
    client, may_write, append = connect(running, JobClient), threading.Event(), running.state.append

    def slow(facts):
        may_write.wait()
        append(facts)

    running.state.append = slow
    stopped = threading.Thread(target=client.stop, args=("enough",), daemon=True)
    stopped.start()
    pictures = connect(running, JobClient).watch()
    first = threading.Thread(target=lambda: shown.extend(pictures), daemon=True)
    shown = []
    first.start()
    while not running.master.core.has_ended:
        time.sleep(0.001)
    assert not any(picture.status == "failed" for picture in shown)
    assert running.launcher.running  # nor is anything done about it
    may_write.set()
    stopped.join()
    first.join()
    assert shown[-1].message == "stopped: enough"
    assert running.join() == 1


def test_journal_that_is_away_is_told_and_waited_for(run, connect, monkeypatch, tmp_path):
    monkeypatch.setattr(reporter, "PATIENCE_WITH_JOURNAL_SECONDS", 0.05)
    running = run(num_ps=1, heartbeat_timeout_seconds=5.0)
    running.launcher.wait_for(Role.PS, 0)
    worker, may_write, append = connect(running), threading.Event(), running.state.append

    def away(facts):
        running.state.trouble = "etcd at host:1: connection refused"
        may_write.wait()
        running.state.append, running.state.trouble = append, ""
        append(facts)

    running.state.append = away
    registered = threading.Thread(target=worker.register_worker, args=(0, 1), daemon=True)
    registered.start()

    def notes():
        return [e["text"] for e in read_events(tmp_path) if e["event"] == "journal"]

    while not notes():
        time.sleep(0.01)
    assert "(etcd at host:1: connection refused); still trying" in notes()[0]
    may_write.set()
    registered.join()
    while notes()[-1] != "the job's journal can be written again":
        time.sleep(0.01)
    assert not running.master.core.members.find(Role.WORKER, 0).gone


def test_master_of_a_job_that_another_has_taken_over_leaves_its_processes_alone(run, connect):
    running = run(num_ps=1)
    running.launcher.wait_for(Role.WORKER, 0)
    running.launcher.wait_for(Role.PS, 0)

    def taken_over(_):
        raise TakenOverError("etcd://host/job: another master has taken over the job")

    running.state.append = taken_over
    client = connect(running)
    caller = threading.Thread(target=suppressed, args=(client.register_worker, 0, 1), daemon=True)
    caller.start()
    running.join()
    assert isinstance(running.error, TakenOverError)
    assert set(running.launcher.running) == {(Role.WORKER, 0), (Role.PS, 0)}
    client.close()
    caller.join()


def suppressed(call, *arguments):
    with contextlib.suppress(UnavailableError):
        call(*arguments)


def test_master_can_leave_while_its_journal_is_away(run, connect, monkeypatch):
    monkeypatch.setattr(master_module, "_LEAVE_JOURNAL_SECONDS", 0.05)
    running = run(num_ps=1)
    running.launcher.wait_for(Role.PS, 0)
    client, may_write = connect(running), threading.Event()
    running.state.append = lambda _: may_write.wait()
    caller = threading.Thread(target=suppressed, args=(client.register_worker, 0, 1), daemon=True)
    caller.start()
    while not running.master._commit.is_behind:
        time.sleep(0.001)
    running._loop.call_soon_threadsafe(running.master.leave, "asked to")
    assert running.join() == STOPPED_EXIT_CODE
    may_write.set()
    client.close()
    caller.join()
