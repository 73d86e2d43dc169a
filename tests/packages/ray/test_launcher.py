"""The launcher, the keeper of a job and the command, with a Ray that is played."""

import asyncio
import itertools
import signal
import threading
from types import SimpleNamespace

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessSpec, Started
from elasticdl.packages.ray import cluster, keepers
from elasticdl.packages.ray import job as command
from elasticdl.packages.ray import launcher as room
from elasticdl.packages.ray.keepers import JobKeeper, Surroundings
from elasticdl.packages.ray.launcher import RayLauncher
from elasticdl.packages.ray.resources import RayNode
from elasticdl.runtime import process

SECONDS = 30.0
CONFIG = build_config(
    "train", {"model_def": "a.forward", "training_data": "/data", "launcher": "ray"}
)


class RayError(Exception):
    pass


class ActorUnavailableError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class Reference:
    """An answer that may come; an answer that is an error is raised."""

    def __init__(self, answer=None):
        self.answer = answer


class Actor:
    """Says where it is when it is told; of its process it says nothing."""

    def __init__(self):
        self.where, self.ended = Reference(), Reference()
        self.place = SimpleNamespace(remote=lambda: self.where)
        self.end = SimpleNamespace(remote=lambda: self.ended)
        self.stop = SimpleNamespace(remote=lambda seconds: None)


class PlayedRay:
    """What the package uses of Ray."""

    def __init__(self):
        self.exceptions = SimpleNamespace(
            RayError=RayError,
            ActorUnavailableError=ActorUnavailableError,
            GetTimeoutError=GetTimeoutError,
        )
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
        self.killed, self.nodes = [], []
        self._pause = threading.Event()

    def wait(self, references, num_returns, timeout):
        self._pause.wait(min(timeout, 0.01))
        return [each for each in references if each.answer is not None], []

    def get(self, reference, timeout=None):
        if isinstance(reference.answer, BaseException):
            raise reference.answer
        return reference.answer

    def kill(self, actor, no_restart):
        self.killed.append(actor)

    def get_runtime_context(self):
        return SimpleNamespace(
            current_actor=None, get_node_id=lambda: "a", was_current_actor_reconstructed=False
        )


@pytest.fixture
def ray(monkeypatch):
    played = PlayedRay()
    monkeypatch.setattr(cluster, "library", lambda: played)
    monkeypatch.setattr(cluster, "connect", lambda address: None)
    monkeypatch.setattr(cluster, "actors_below", lambda prefix: [])
    monkeypatch.setattr(cluster, "draining_nodes", dict)
    monkeypatch.setattr(cluster, "nodes", lambda: [RayNode(node, {}) for node in played.nodes])
    monkeypatch.setattr(cluster, "kill_actor", played.killed.append)
    return played


def test_the_node_of_one_lost_actor_is_not_waited_for_before_the_next_is_told(
    ray, tmp_path, monkeypatch
):
    """The first actor has died alone, of which Ray may say later that its node has died too."""
    actors, events, news = [], [], threading.Condition()

    def take(event):
        with news:
            events.append(event)
            news.notify_all()

    def until(kind, number):
        with news:
            found = lambda: [each for each in events if isinstance(each, kind)]  # noqa: E731
            assert news.wait_for(lambda: len(found()) >= number, SECONDS)
            return found()

    def make(*words):
        actors.append(Actor())
        return actors[-1]

    monkeypatch.setattr(room, "as_actor", lambda *words, **others: SimpleNamespace(remote=make))
    monkeypatch.setattr(room, "_NODE_SECONDS", 3600.0)
    ray.nodes = ["a", "b"]
    launcher = RayLauncher(CONFIG, tmp_path, take)
    try:
        handles = [launcher.start(ProcessSpec(Role.WORKER, index, ("run",))) for index in (0, 1)]
        for actor, node in zip(actors, "ab", strict=True):
            actor.where.answer = node
        until(Started, 2)
        ray.nodes = ["a"]
        for actor in actors:
            actor.ended.answer = RayError("the actor died")
        assert until(Exited, 1) == [Exited(handles[1], ExitReason.NODE_LOST, None, "node b")]
        monkeypatch.setattr(room, "_NODE_SECONDS", 0.0)
        assert until(Exited, 2)[1] == Exited(handles[0], ExitReason.KILLED, None)
    finally:
        launcher.leave(0.0)


class PlayedRoot:
    """A root of a job, which ends when it is told."""

    def __init__(self):
        self.code, self.signals = None, []

    def poll(self):
        return self.code

    def send_signal(self, number):
        self.signals.append(number)


def test_a_signal_between_two_roots_is_for_the_next_one(ray, tmp_path, monkeypatch):
    roots = []

    def start_root(*words):
        roots.append(PlayedRoot())
        return roots[-1]

    monkeypatch.setattr(JobKeeper, "_keep", lambda self: None)
    monkeypatch.setattr(keepers, "start_root", start_root)
    keeper = JobKeeper(Surroundings("a", str(tmp_path), str(tmp_path)))
    keeper._start_root()
    roots[0].code = -signal.SIGKILL
    asyncio.run(keeper.send([signal.SIGTERM]))
    keeper._start_root()
    assert [root.signals for root in roots] == [[], [signal.SIGTERM]]


@pytest.mark.parametrize(
    ("answers", "num_sent", "is_killed"),
    [
        (["sent"], 1, False),
        ([ActorUnavailableError(), "sent"], 2, False),
        ([GetTimeoutError()], 1, True),  # it waits for a node
        ([RayError("it is gone")], 1, False),
    ],
)
def test_a_keeper_between_two_nodes_is_asked_again(
    ray, tmp_path, monkeypatch, answers, num_sent, is_killed
):
    sent, left = [], iter(answers)

    def send(numbers):
        sent.append(numbers)
        return Reference(next(left))

    actor = SimpleNamespace(send=SimpleNamespace(remote=send))
    monkeypatch.setattr(cluster, "find_actor", lambda name: actor)
    monkeypatch.setattr(command, "_ANSWER_SECONDS", SECONDS)
    command._Keeper(CONFIG, tmp_path).end(at_once=False)
    assert sent == [[signal.SIGTERM]] * num_sent
    assert bool(ray.killed) == is_killed


def test_a_keeper_that_stays_away_is_killed(ray, tmp_path, monkeypatch):
    away = itertools.repeat(ActorUnavailableError())
    send = SimpleNamespace(remote=lambda numbers: Reference(next(away)))
    monkeypatch.setattr(cluster, "find_actor", lambda name: SimpleNamespace(send=send))
    monkeypatch.setattr(command, "_ANSWER_SECONDS", 0.05)
    command._Keeper(CONFIG, tmp_path).end(at_once=False)
    assert ray.killed == [cluster.keeper_name(CONFIG.cluster.job_name)]


@pytest.fixture
def submit(ray, tmp_path, monkeypatch):
    """Submit a job whose keeper is made by a function."""

    def submit(make):
        maker = SimpleNamespace(remote=make)
        monkeypatch.setattr(command, "as_actor", lambda *words, **others: maker)
        flags = {"model_def": "a.forward", "training_data": "/data", "launcher": "ray"}
        config = build_config("train", flags | {"job_dir": str(tmp_path / "job")})
        return command.RaySubmitter().submit(config, is_tied=False)

    return submit


def test_a_command_that_is_interrupted_while_a_job_begins_leaves_no_keeper(
    ray, submit, monkeypatch
):
    begun = SimpleNamespace(remote=lambda: Reference(KeyboardInterrupt()))
    keeper = SimpleNamespace(begun=begun)
    monkeypatch.setattr(cluster, "find_actor", lambda name: None)
    with pytest.raises(KeyboardInterrupt):
        submit(lambda *words: keeper)
    assert ray.killed == [keeper]


@pytest.mark.parametrize(
    ("later", "message"),
    [(object(), "there is a job job on this Ray cluster already"), (None, "cannot be made: taken")],
)
def test_a_keeper_that_ray_does_not_make_is_told_in_words(ray, submit, monkeypatch, later, message):
    """Another command may have made one of the same name just now; it stays."""
    found = iter([None, later])
    monkeypatch.setattr(cluster, "find_actor", lambda name: next(found))

    def make(*words):
        raise ValueError("taken")

    with pytest.raises(LaunchError, match=message):
        submit(make)
    assert not ray.killed


@pytest.mark.parametrize(
    ("answer", "waits"),
    [("", False), (ActorUnavailableError(), True), (GetTimeoutError(), True), (RayError(), False)],
)
def test_a_keeper_that_goes_to_another_node_waits_though_a_master_has_left_its_address(
    ray, tmp_path, monkeypatch, answer, waits
):
    actor = SimpleNamespace(begun=SimpleNamespace(remote=lambda: Reference(answer)))
    monkeypatch.setattr(cluster, "find_actor", lambda name: actor)
    monkeypatch.setattr(cluster, "free", dict)
    (tmp_path / process.ADDRESS_FILE).write_text('{"address": "10.0.0.2:4711"}')
    config = build_config(
        "train",
        {
            "model_def": "a.forward",
            "training_data": "/data",
            "launcher": "ray",
            "master_resource_request": "cpu=4",
        },
    )
    why = command._Keeper(config, tmp_path).waiting()
    assert ("no node of the Ray cluster is large enough" in why) == waits
