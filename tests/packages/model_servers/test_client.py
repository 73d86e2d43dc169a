"""Workers and model servers talk over sockets: whom a worker asks, and whom a server answers."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

from elasticdl.errors import AuthenticationError, ElasticdlError, ModelError
from elasticdl.packages.model_servers import client
from elasticdl.packages.model_servers.client import ModelServers
from elasticdl.packages.model_servers.messages import check_size
from elasticdl.packages.model_servers.service import TowerService, make_server
from elasticdl.packages.model_servers.tower_rows import Question, TowerGradients
from elasticdl.rpc.security import add_port
from elasticdl.worker.row_source import SiteGradient

TOKEN = b"0" * 32
NOBODY = "127.0.0.1:1"


class Tower:
    name, dim, dense, tables = "tens", 2, [slice(0, 3)], []


class Tens:
    """Computes ids times ten; the gradient of its variables is the sum of what it is given."""

    def __init__(self):
        self.computed, self.brought = [], []

    def forward(self, tower, training, ids, brought):
        self.computed.append(ids.tolist())
        self.brought.append(brought)
        return np.stack([ids, ids * 10], 1).astype(np.float32), len(self.computed)

    def backward(self, tower, ids, gradients, window, brought):
        self.brought.append(brought)
        site = SiteGradient(4, ids, gradients)
        return TowerGradients(np.full(3, gradients.sum(), np.float32), [site])


@contextlib.contextmanager
def served(computer):
    """Serve in a thread of its own; yields the address."""
    loop, started, found = asyncio.new_event_loop(), threading.Event(), []

    async def serve():
        server = make_server(TowerService([Tower()], computer, 0.001), TOKEN)
        found.append(f"127.0.0.1:{add_port(server, '127.0.0.1:0', None)}")
        await server.start()
        found.append(asyncio.Event())
        started.set()
        await found[1].wait()
        await server.stop(grace=None)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(found[1].set)
        thread.join(20)
        loop.close()


def asking(*addresses, token=TOKEN):
    return contextlib.closing(ModelServers([Tower()], lambda: addresses, token, None))


def question(*numbers, dense=None):
    return Question(0, np.array(numbers, np.int64), True, dense)


def test_ids_are_dealt_to_servers_and_answers_come_in_the_order_of_the_ids():
    one, other = Tens(), Tens()
    with served(one) as a, served(other) as b, asking(a, b) as servers:
        asked = question(*range(40))
        (answer,) = servers.forward([asked])
        assert answer.values.tolist() == [[k, 10 * k] for k in range(40)]
        assert sorted(one.computed[0] + other.computed[0]) == list(range(40))
        assert len(answer.windows) == 2
        (found,) = servers.backward([(asked, answer, np.ones((40, 2), np.float32))])
        assert found.dense.tolist() == [80.0] * 3
        assert sorted(np.concatenate([site.ids for site in found.sites])) == list(range(40))


def test_dense_parameters_that_a_worker_has_come_with_its_questions():
    computer, dense = Tens(), np.array([1, 2, 3], np.float32)
    with served(computer) as a, asking(a) as servers:
        for brought in (dense, None):
            asked = question(4, dense=brought)
            (answer,) = servers.forward([asked])
            servers.backward([(asked, answer, np.ones((1, 2), np.float32))])
        of_forward, of_backward, *without = computer.brought
        np.testing.assert_array_equal([of_forward, of_backward], [dense, dense])
        assert without == [None, None]
        with pytest.raises(ElasticdlError, match="expected 3 dense parameters, found 6"):
            servers.forward([question(4, dense=np.tile(dense, 2))])


def test_a_server_that_is_away_or_lost_is_replaced_by_the_next_one():
    one = Tens()
    with served(one) as a:
        for lost in ("", NOBODY):
            with asking(lost, a) as servers:
                (answer,) = servers.forward([question(*range(9))])
                assert answer.values[:, 0].tolist() == list(range(9))


def test_a_server_that_is_gone_leaves_no_connection():
    with served(Tens()) as a, served(Tens()) as b:
        known = [a]
        with contextlib.closing(ModelServers([Tower()], lambda: known, TOKEN, None)) as servers:
            servers.forward([question(1)])
            known[:] = [b]
            servers._look()  # as when one does not answer
            servers.forward([question(1)])
            assert servers._channels.keys() == {b}


def test_a_server_that_is_back_is_asked_again(monkeypatch):
    monkeypatch.setattr(client, "_LOOK_SECONDS", 0.0)
    one, other = Tens(), Tens()
    with served(one) as a, served(other) as b:
        known = ["", b]
        with contextlib.closing(ModelServers([Tower()], lambda: known, TOKEN, None)) as servers:
            servers.forward([question(*range(9))])
            assert one.computed == []
            known[0] = a
            servers.forward([question(*range(9))])
            assert sorted(one.computed[0] + other.computed[-1]) == list(range(9))


def test_a_server_answers_nobody_without_the_job_s_token():
    with (
        served(Tens()) as a,
        asking(a, token=b"1" * 32) as servers,
        pytest.raises(AuthenticationError, match="expected the token of this job"),
    ):
        servers.forward([question(1)])


@pytest.mark.parametrize("asked", [question(2, 1), question(1, 1), question()])
def test_ids_that_are_not_in_order_are_refused(asked):
    with served(Tens()) as a, asking(a) as servers:
        if not len(asked.ids):
            assert servers.forward([asked])[0].values.shape == (0, 2)
            return
        with pytest.raises(ElasticdlError, match="in order, each once"):
            servers.forward([asked])


def test_what_is_wrong_with_a_tower_is_told_to_the_worker():
    class Wrong(Tens):
        def forward(self, tower, training, ids, brought):
            raise ModelError("the tower is wrong")

    with (
        served(Wrong()) as a,
        asking(a) as servers,
        pytest.raises(ModelError, match="a model server: the tower is wrong"),
    ):
        servers.forward([question(1)])


def test_a_tower_whose_gradients_fit_no_message_is_refused():
    large = Tower()
    large.dense = [slice(0, 40_000_000)]
    with pytest.raises(ModelError, match="160,000,000 bytes of variables"):
        check_size(large)
