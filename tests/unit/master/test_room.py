"""Too little room for the whole job: workers give their places to the replicas they wait for."""

import pytest

from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, PendingProcess, ProcessHandle, Started
from elasticdl.master.actions import StartProcess, StopProcess
from elasticdl.master.status import picture

NUM_PS, NUM_WORKERS = 2, 3


class Cluster:
    """A cluster with so many places, that are had in the order in which processes came."""

    def __init__(self, play, num_places):
        self.play, self.num_places = play, num_places
        self.queue, self.running, self.ended = [], [], []
        self._number = 0

    def look(self, now):
        """Start and stop what the job wants, and say who waits."""
        for action in self.play.do(StartProcess):
            handle = ProcessHandle(action.role, action.index, f"{self._number}")
            self._number += 1
            self.play.core.processes.started(handle, now)
            self.queue.append(handle)
        for action in self.play.do(StopProcess):
            for handles in (self.queue, self.running):
                if action.handle in handles:
                    handles.remove(action.handle)
                    self.ended.append(action.handle)
                    end = Exited(action.handle, ExitReason.KILLED, None)
                    self.play.core.process_exited(end, now)
        while self.queue and len(self.running) < self.num_places:
            self.start(self.queue[0], now)
        for handle in self.queue:
            pending = PendingProcess(handle, "exceeded quota", lacks_room=True)
            self.play.core.processes.waits(pending, now)

    def start(self, handle, now):
        self.queue.remove(handle)
        self.running.append(handle)
        self.play.core.processes.runs(Started(handle), now)
        session = f"s{handle.ref}"
        if handle.role is Role.PS:
            self.play.core.register_ps(handle.index, session, 1, f"{handle.ref}:1", now)
        else:
            self.play.core.register_worker(handle.index, session, 1, now)

    def lose(self, handle, now):
        self.running.remove(handle)
        self.play.core.process_exited(Exited(handle, ExitReason.NODE_LOST, None), now)

    def pass_seconds(self, first, last):
        for now in range(first, last):
            self.look(float(now))
            self.play.core.tick(float(now))

    def of(self, role):
        return [handle.index for handle in self.running if handle.role is role]


@pytest.fixture
def play(master_kit):
    core = master_kit.core(master_kit.config(num_ps=NUM_PS, num_workers=NUM_WORKERS))
    core.begin(0.0)
    return master_kit.Play(core)


@pytest.mark.parametrize("num_places", [2, 3, 4])
def test_workers_that_came_first_give_their_places_to_replicas(play, num_places):
    cluster = Cluster(play, 0)
    cluster.look(0.0)
    cluster.queue.reverse()  # workers first
    cluster.num_places = num_places

    cluster.pass_seconds(1, 60)

    assert sorted(cluster.of(Role.PS)) == [0, 1]
    assert len(cluster.of(Role.WORKER)) == num_places - NUM_PS
    cluster.num_places, num_ended = 5, len(cluster.ended)
    cluster.pass_seconds(60, 120)
    assert len(cluster.of(Role.WORKER)) == NUM_WORKERS
    assert len(cluster.ended) == num_ended, "a place went back and forth"
    assert play.core.history.failures == 0


def test_a_replica_whose_place_is_lost_gets_that_of_a_worker(play):
    cluster = Cluster(play, 4)
    cluster.pass_seconds(1, 10)
    assert (len(cluster.of(Role.PS)), len(cluster.of(Role.WORKER))) == (2, 2)

    cluster.num_places = 3
    cluster.lose(next(h for h in cluster.running if h.role is Role.PS), 10.0)
    cluster.pass_seconds(10, 40)

    assert (len(cluster.of(Role.PS)), len(cluster.of(Role.WORKER))) == (2, 1)


def test_no_worker_ends_for_a_replica_that_waits_for_its_image(play):
    cluster = Cluster(play, 4)
    cluster.look(0.0)
    handle = cluster.running[0]
    cluster.lose(handle, 1.0)
    (again,) = play.do(StartProcess)
    play.core.processes.started(ProcessHandle(again.role, again.index, "again"), 1.0)
    pending = PendingProcess(ProcessHandle(again.role, again.index, "again"), "pulling its image")
    play.core.processes.waits(pending, 1.0)
    for now in range(2, 60):
        play.core.tick(float(now))
    assert play.do(StopProcess) == []


def test_what_the_next_master_finds_is_made_up_for(play, master_kit):
    cluster = Cluster(play, 0)
    cluster.look(0.0)
    cluster.pass_seconds(1, 20)
    assert play.core.processes.room.num_withheld == NUM_WORKERS

    core = master_kit.core(play.core.config)
    core.restore(play.core.snapshot())

    assert core.processes.room.num_withheld == NUM_WORKERS


def test_the_picture_of_a_job_says_why_processes_wait(play):
    Cluster(play, 1).look(0.0)
    message = picture(play.core, 1.0).message
    assert message.startswith("waiting for ")
    assert "ps replica 1 and 3 more are pending: exceeded quota" in message
