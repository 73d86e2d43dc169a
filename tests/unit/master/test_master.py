"""The master's event loop over real sockets, with processes and ps replicas played by the test."""

import json
import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticdl.errors import ConfigError, ElasticdlError
from elasticdl.job import (
    Finished,
    Label,
    Lease,
    Outcome,
    Progress,
    PsRoute,
    Role,
    TaskKind,
    TaskReport,
    Usage,
    Wait,
)
from elasticdl.launchers.base import ExitReason
from elasticdl.master import patience
from elasticdl.observe.events import read_events
from elasticdl.observe.kinds import typed
from elasticdl.observe.usage import kind_of
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import messages
from elasticdl.rpc.client import JobClient
from elasticdl.rpc.elasticdl_pb2_grpc import MasterStub
from elasticdl.rpc.messages import status_from_json


def work_off(client, worker_id, running, until=lambda done: False):
    """Play a worker until it is let go; return the ids of the tasks it did."""
    done = []
    version = 0
    while not isinstance(lease := client.lease(worker_id), Finished):
        if not isinstance(lease, Lease):
            continue
        task, records = lease.task, lease.task.shard.num_records
        values = {}
        if task.kind is TaskKind.TRAINING:
            version += 3
            running.replicas.applied[task.id] = (3, records)
            values = {"num_records": records, "num_minibatches": 3, "model_version": version}
        client.report(worker_id, TaskReport(task.id, lease.number, Outcome.DONE, **values))
        done.append(task.id)
        if until(done):
            break
    return done


def test_job_runs_to_its_end(run, connect, tmp_path):
    running = run(num_ps=1, checkpoint_dir=tmp_path / "c", output=tmp_path / "out")
    ps, worker = connect(running), connect(running)
    ps.register_ps(0, "host:1", 1)
    worker.register_worker(0, 2)
    assert worker.ps_route() == PsRoute(0, ("host:1",))
    assert work_off(worker, 0, running) == [*range(10), 10]
    running.launcher.exits(Role.WORKER, 0, ExitReason.FINISHED, 0)
    last = list(connect(running, JobClient).watch())[-1]
    assert running.join() == 0
    assert (last.status, last.message, last.checkpoints) == ("finished", "", (30,))
    assert [line.trained_once for line in last.ledger] == [300]
    manifest = json.loads((tmp_path / "c" / "version-00000030" / "manifest.json").read_text())
    assert manifest.pop("checksum")
    assert manifest == {
        "job": running.master._job.id,
        "written": pytest.approx(time.time(), abs=600),
        "format": 3,
        "version": 30,
        "model": "zoo.model.forward",
        "replicas": [{"replica": 0}],
    }
    phases = [e["phase"] for e in read_events(tmp_path) if "phase" in e]
    assert phases == ["training", "exporting", "checkpointing", "auditing", "finished"]


def test_commands_are_told_of_members_events_and_the_end(run, connect, tmp_path):
    running = run(num_ps=1, num_workers=1)
    ps, worker, command = connect(running), connect(running), connect(running, JobClient)
    running.launcher.wait_for(Role.WORKER, 0)
    assert command.status().members == ()
    states = {(m.role, m.index): m.state for m in command.status(with_members=True).members}
    assert states == {(Role.WORKER, 0): "starting", (Role.PS, 0): "starting"}
    ps.register_ps(0, "host:1", 11)
    worker.register_worker(0, 22)
    work_off(worker, 0, running, until=lambda done: len(done) == 2)
    of_worker, of_ps = command.status(with_members=True).members
    assert (of_worker.state, of_worker.pid, of_worker.tasks_done) == ("alive", 22, 2)
    assert (of_ps.state, of_ps.pid, of_ps.address) == ("alive", 11, "host:1")
    command.set_num_workers(2)
    so_far = list(command.events(follow=False))
    assert "worker 0 is here" in [event.get("text") for event in so_far]
    later = command.events(follow=True, since=math.nextafter(so_far[-1]["time"], math.inf))
    pictures = connect(running, JobClient).watch()
    next(pictures)  # the master waits for who watches, and for nobody else, once it was told
    command.stop("no longer wanted")
    texts = [event.get("text") for event in later]
    assert list(pictures)[-1].message == "stopped: no longer wanted"
    assert texts[-1] == "the job failed: stopped: no longer wanted"
    assert running.join() == 1
    left = status_from_json((tmp_path / "status.json").read_text())
    assert (left.status, left.message) == ("failed", "stopped: no longer wanted")


def test_a_command_without_the_files_of_the_job_is_told_of_all_that_happens(run, connect):
    running = run(num_ps=1, num_workers=1)
    ps, worker, command = connect(running), connect(running), connect(running, JobClient)
    ps.register_ps(0, "host:1", 11)
    assert worker.register_worker(0, 22) == 1.0
    usage = Usage(5.0, Label.TRAIN, {"starting": 2.0, "train": 1.0}, 0.5, 1000, 10, 20)
    worker.heartbeat(Role.WORKER, 0, Progress(num_records=7), usage=usage)
    page = command.events_page(limit=2)
    events = list(page.events)
    while page.has_more:
        page = command.events_page(page, limit=2)
        events += page.events
        assert not page.has_gap
    said = {event["event"]: event for event in events if event["role"] == "worker"}
    assert said["progress"]["num_records"] == 7
    assert typed(said["usage"]) == kind_of(usage)
    assert {"phase", "registered"} <= {event["event"] for event in events}
    members = command.status(with_members=True).members
    assert [m.usage for m in members if m.role is Role.WORKER] == [usage]
    beats = [e for e in command.events(follow=False, with_beats=True) if e["event"] == "usage"]
    assert usage.label_seconds in [beat["label_seconds"] for beat in beats]
    assert all(e["event"] != "usage" for e in command.events(follow=False))


def test_the_next_master_remembers_the_facts_of_the_one_before(run, connect):
    running = run(num_ps=1, num_workers=1)
    connect(running).register_ps(0, "host:1", 11)
    before = connect(running, JobClient).events_page()
    running.crash()
    again = connect(run(state=running.state, num_ps=1, num_workers=1), JobClient)
    page = again.events_page(before)
    assert page.has_gap  # another master, with numbers of its own
    names = [event["event"] for event in page.events]
    assert "resumed" in names
    assert "registered" in names


def test_the_labels_of_the_master_add_up_to_its_time(run, connect, tmp_path):
    running = run(num_ps=1, num_workers=1, heartbeat_seconds=0.05)
    connect(running).register_ps(0, "host:1", 11)
    worker = connect(running)
    worker.register_worker(0, 22)
    work_off(worker, 0, running)
    running.launcher.exits(Role.WORKER, 0, ExitReason.FINISHED, 0)
    assert list(connect(running, JobClient).watch())[-1].status == "finished"
    running.join()
    usages = [e for e in read_events(tmp_path) if e["event"] == "usage" and e["role"] == "master"]
    # On a busy machine it may be held between its looks at the two clocks.
    apart = [e["time"] - e["began"] - sum(e["label_seconds"].values()) for e in usages]
    assert statistics.median(map(abs, apart)) < 0.1
    assert {"starting", "train"} <= usages[-1]["label_seconds"].keys()


def test_pictures_come_after_each_task(run, connect):
    running = run(num_ps=1)
    connect(running).register_ps(0, "host:1", 1)
    worker = connect(running)
    worker.register_worker(0, 2)
    pictures = connect(running, JobClient).watch()
    assert next(pictures).records_done == 0
    work_off(worker, 0, running, until=lambda done: len(done) == 1)
    assert next(p for p in pictures if p.records_done).records_done == 30
    pictures.close()


def test_replacement_of_a_lost_worker_is_started(run, connect):
    running = run(num_ps=1, num_workers=2)
    running.launcher.wait_for(Role.WORKER, 1)
    running.launcher.exits(Role.WORKER, 1)
    running.launcher.wait_for(Role.WORKER, 2)


def test_workers_are_added_while_the_job_runs(run, connect):
    running = run(num_ps=1)
    connect(running, JobClient).set_num_workers(3)
    running.launcher.wait_for(Role.WORKER, 2)
    with pytest.raises(ElasticdlError, match="at least one worker, found -1"):
        connect(running, JobClient).set_num_workers(-1)


def test_cancelled_job_stops_all_and_fails(run, connect):
    running = run(num_ps=1, num_workers=2)
    running.launcher.wait_for(Role.WORKER, 1)
    client = connect(running, JobClient)
    client.stop("enough")
    assert list(client.watch())[-1].message == "stopped: enough"
    assert running.join() == 1
    assert running.launcher.running == {}


def test_a_patient_worker_is_answered_when_there_is_a_task_or_it_is_to_leave(run, connect):
    running = run(num_ps=1, num_workers=2)
    clients = [connect(running), connect(running)]
    for index, client in enumerate(clients):
        client.register_worker(index, 2)
        assert client.lease(index) == Wait(0.0)
    with ThreadPoolExecutor() as pool:
        first, second = (pool.submit(c.lease, n, is_patient=True) for n, c in enumerate(clients))
        clients[1].leave(Role.WORKER, 1, 60.0)
        assert second.result() == Finished()
        assert not first.done()
        clients[0].register_ps(0, "host:1", 1)
        assert isinstance(first.result(), Lease)


def test_a_request_for_a_task_ends_leases_first_and_may_be_repeated(run, connect):
    running = run(num_ps=1)
    running.launcher.wait_for(Role.PS, 0)
    client = connect(running)
    client.register_ps(0, "host:1", 1)
    client.register_worker(0, 2)
    held = [client.lease(0), client.lease(0)]
    assert all(lease.report_may_wait for lease in held)
    reports = [TaskReport(each.task.id, each.number, Outcome.DONE) for each in held]
    stale = TaskReport(held[0].task.id, 7, Outcome.FAILED)
    request = pb.LeaseRequest(
        worker_id=0,
        session=client.session,
        request=3,
        reports=map(messages.REPORT.pack, [*reports, stale]),
    )
    stub = client.connection.stub(MasterStub)
    given = [client.connection.call(stub.Lease, request).lease for _ in range(2)]
    assert given[0] == given[1]
    assert given[0].task.id not in [each.task.id for each in held]
    assert running.master.core.ledger.num_done == 2
    assert list(running.master.core.ledger.held_by(0)) == [given[0].task.id]


def test_restarted_master_goes_on_at_its_port_with_its_leases(run, connect):
    first = run(num_ps=1, num_workers=2)
    first.launcher.wait_for(Role.WORKER, 1)
    first.launcher.wait_for(Role.PS, 0)
    ps, workers = connect(first), [connect(first), connect(first)]
    ps.register_ps(0, "host:1", 1)
    for index, worker in enumerate(workers):
        worker.register_worker(index, 2)
    held = workers[0].lease(0)
    work_off(workers[1], 1, first, until=lambda done: len(done) == 3)
    first.crash()
    second = run(first.state, first.replicas, num_ps=1, num_workers=2)
    assert second.address == first.address
    assert {h.role for h in second.launcher.adopted} == {Role.PS, Role.WORKER}
    second.replicas.applied[held.task.id] = (3, 30)
    report = TaskReport(held.task.id, held.number, Outcome.DONE, num_records=30)
    workers[0].report(0, report)
    work_off(workers[1], 1, second)
    last = list(connect(second, JobClient).watch())[-1]
    assert last.status == "finished", last.message
    assert [(line.trained_once, line.repeated, line.lost) for line in last.ledger] == [(300, 0, 0)]


def test_heartbeat_tells_where_a_lost_ps_replica_came_back(run, connect):
    running = run(num_ps=1)
    running.launcher.wait_for(Role.PS, 0)
    worker = connect(running)
    connect(running).register_ps(0, "host:1", 1)
    assert worker.ps_route() == PsRoute(0, ("host:1",))
    assert worker.heartbeat(Role.WORKER, 0, generation=0).route is None
    running.launcher.exits(Role.PS, 0)
    running.launcher.wait_for(Role.PS, 0)
    assert connect(running).restore_point(0).checkpoint == ""
    connect(running).register_ps(0, "host:2", 2)
    assert worker.ps_route() == PsRoute(1, ("host:2",))
    assert worker.heartbeat(Role.WORKER, 0, generation=0).route == PsRoute(1, ("host:2",))


def test_full_disk_fails_the_last_checkpoint_and_keeps_the_one_before(
    run, connect, tmp_path, monkeypatch
):
    monkeypatch.setattr(patience, "_FEWEST_TRIES", 1)
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.0)
    running = run(num_ps=1, checkpoint_dir=tmp_path / "c", checkpoint_steps=3)
    connect(running).register_ps(0, "host:1", 1)
    worker, watcher = connect(running), connect(running, JobClient)
    worker.register_worker(0, 2)
    work_off(worker, 0, running, until=lambda done: len(done) == 1)
    next(picture for picture in watcher.watch() if picture.checkpoints)
    running.replicas.problem = "c/rows: No space left on device"
    work_off(worker, 0, running)
    last = list(watcher.watch())[-1]
    assert running.join() == 1
    assert last.status == "failed"
    assert "No space left on device" in last.message
    assert last.checkpoints == (3,)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["version-00000003"]


def test_process_that_cannot_be_started_fails_the_job(run, connect, master_kit):
    running = run(num_ps=1)
    running.launcher.wait_for(Role.WORKER, 0)
    running.launcher.refuses = True
    running.launcher.exits(Role.WORKER, 0, ExitReason.FAILED, 1)
    last = list(connect(running, JobClient).watch())[-1]
    assert "no more processes on this machine" in last.message


def test_port_that_is_taken_is_named(run, connect):
    first = run(num_ps=1)
    port = int(first.address.rpartition(":")[2])
    (first.job_dir / "master.json").unlink()
    second = run(num_ps=1, master_port=port)
    second.join()
    assert isinstance(second.error, ConfigError)
    assert f"--master_port={port}: the port is taken" in str(second.error)
