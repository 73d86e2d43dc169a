"""What a worker asks towers for, what comes back, and that a minibatch is pushed as one."""

import numpy as np
import pytest

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    StepResult,
    TableDescription,
    VariableDescription,
)
from elasticdl.errors import ModelError, NonFiniteLossError
from elasticdl.job import Lease, Shard, Task, TaskKind
from elasticdl.packages.model_servers.computer import FrozenRows, TowerComputer
from elasticdl.packages.model_servers.tower_rows import TowerAnswer, TowerGradients, TowerRows
from elasticdl.worker.exchange import Exchange, half_of_stores
from elasticdl.worker.parameters import ComputedMinibatch, OwnParameters, Step
from elasticdl.worker.stores import StoreExchange

ZEROS, SGD = Initializer("constant", {"value": 0.0}), OptimizerSpec("sgd")
OUTER, INNER, TOWER = 0, 1, 2
NOTHING = np.zeros(0, np.float32)
MODEL = ModelDescription(
    tables=(TableDescription("outer", 1, ZEROS, SGD), TableDescription("inner", 2, ZEROS, SGD)),
    dense=(VariableDescription("rest", (3,), 0), VariableDescription("within", (2,), 3)),
    state=(),
    optimizer=SGD,
    seed=0,
)


class SumTower:
    """Gives for each id its row in `inner` plus its variable."""

    name, dim, dense, tables = "sums", 2, [slice(3, 5)], [INNER]

    def __init__(self):
        self.shift = 0.0

    def ids(self, ids):
        return [ids]

    def forward(self, ids, rows, dense, training):
        return rows[0] + dense + self.shift * len(ids)

    def backward(self, ids, gradients, rows, dense):
        return [gradients], gradients.sum(0)


class Trainer:
    """A model that looks the tower up, then `outer`, then the tower."""

    def id_sites(self):
        return [TOWER, OUTER, TOWER]

    def initial_values(self):
        return np.array([1, 2, 3, 10, 20], np.float32), np.zeros(0, np.float32)

    def given_rows(self):
        return []


class Servers:
    """The model servers, in this process."""

    def __init__(self, computer):
        self.computer, self.asked, self.lose = computer, [], False

    def forward(self, questions):
        self.asked += [q.ids.tolist() for q in questions]
        answers = [self.computer.forward(q.tower, q.training, q.ids, q.dense) for q in questions]
        return [TowerAnswer(values, [window]) for values, window in answers]

    def backward(self, questions):
        return [
            self.computer.backward(
                q.tower, q.ids, grad, 0 if self.lose else answer.windows[0], q.dense
            )
            for q, answer, grad in questions
        ]


class Job(Exchange):
    """A worker's exchange with a store and with towers, and the parts of it that tests look at."""

    def __init__(self, ring=None):
        client, trainer, tower = PsClient.in_process(Store()), Trainer(), SumTower()
        of_server = StoreExchange(client, trainer)
        self.servers = Servers(TowerComputer([tower], [True, True], of_server.look_up))
        self.tower = tower
        super().__init__(StoreExchange(client, trainer), ring, [TowerRows(self.servers, [tower])])
        self.declare(MODEL)
        of_server.declare(MODEL if ring is None else half_of_stores(MODEL))


class Ring:
    """The dense parameters of this worker, which nobody updates."""

    def __init__(self):
        self.dense, self.pushed = np.array([1, 2, 3, 5, 7], np.float32), []

    def declare(self, model):
        pass

    def start_index(self, lease):
        return 0

    def pull(self, step=None):
        return OwnParameters(self.dense, NOTHING, 0, 0)

    def push(self, given, result, *numbers):
        self.pushed.append(result.dense_grad.tolist())
        return 0


@pytest.fixture
def job():
    return Job()


def ids(*numbers):
    return np.array(numbers, np.int64)


LEASE = Lease(Task(0, TaskKind.TRAINING, Shard("data", 0, 8), 0), 1)


def ones(pulled):
    rows = [np.ones_like(part) for part in pulled.rows]
    return StepResult(0.0, rows, np.array([1, 1, 1, 0, 0], np.float32), np.zeros(0, np.float32))


def completed(job, given):
    return job.completed(ComputedMinibatch(given, ones(given), 1))


def step(job, index, *sites):
    done = completed(job, job.pull(sites, Step(LEASE, index)))
    job.push(done.given, done.result, 1.0, LEASE, index, 1)


SITES = ids(7, 5, 7), ids(1, 7), ids(5)


def test_each_id_is_asked_for_once_and_each_place_gets_its_output(job):
    job.start_index(LEASE)
    pulled = job.pull(SITES, Step(LEASE, 0))
    assert job.servers.asked == [[5, 7]]
    assert [rows.tolist() for rows in pulled.rows] == [[[10, 20]] * 3, [[0], [0]], [[10, 20]]]


@pytest.mark.parametrize("lose", [False, True])
def test_gradients_of_equal_ids_add_up_within_a_tower_whichever_server_is_asked(job, lose):
    job.start_index(LEASE)
    job.servers.lose = lose
    step(job, 0, *SITES)
    inner = job.client.pull([(INNER, ids(5, 7))], training=False)
    assert inner.rows[0].tolist() == [[-2, -2], [-2, -2]]
    assert inner.dense.tolist() == [0, 1, 2, 6, 16]  # four occurrences
    outer = job.client.pull([(OUTER, ids(1, 7))], training=False).rows[0]
    assert outer.tolist() == [[-1], [-1]]


@pytest.mark.parametrize("lose", [False, True])
def test_dense_parameters_of_the_worker_are_brought_and_their_gradients_go_elsewhere(lose):
    ring = Ring()
    job = Job(ring)
    job.servers.lose = lose
    job.start_index(LEASE)
    pulled = job.pull(SITES, Step(LEASE, 0))
    assert job.servers.asked == []  # before the step's dense parameters are known
    given = job.take_dense(pulled, Step(LEASE, 0))
    assert [rows.tolist() for rows in given.rows] == [[[5, 7]] * 3, [[0], [0]], [[5, 7]]]
    done = completed(job, given)
    job.push(done.given, done.result, 1.0, LEASE, 0, 1)
    assert ring.pushed == [[1, 1, 1, 4, 4]]
    job.halves.push_rows(done.given, done.result, 1.0, LEASE, 0, 1)
    inner = job.client.pull([(INNER, ids(5, 7))], training=False)
    assert inner.rows[0].tolist() == [[-2, -2], [-2, -2]]
    assert inner.dense.size == 0
    ring.dense = np.zeros(5, np.float32)
    assert job.pull(SITES).rows[2].tolist() == [[-2, -2]]


def test_a_minibatch_that_is_pushed_again_is_counted_once(job):
    job.start_index(LEASE)
    step(job, 0, *SITES)
    step(job, 0, *SITES)
    assert job.client.pull([], training=False).dense.tolist() == [0, 1, 2, 6, 16]
    assert job.start_index(LEASE) == 1


def test_several_minibatches_are_pushed_as_one_update(job):
    job.start_index(LEASE)
    pulled = [job.pull(SITES, Step(LEASE, index)) for index in (0, 1)]
    job.stores.push_several([completed(job, one) for one in pulled], 1.0, LEASE, 0)
    assert job.client.pull([], training=False).dense.tolist() == [-1, 0, 1, 2, 12]


def test_an_evaluation_creates_no_rows(job):
    job.look_up([(TOWER, ids(3)), (OUTER, ids(4))], training=False)
    assert [list(job.client.scan(table)) for table in (INNER, OUTER)] == [[], []]


def test_a_gradient_that_is_not_finite_ends_the_job(job):
    job.start_index(LEASE)
    job.servers.backward = lambda questions: [TowerGradients(np.full(2, np.nan), [])]
    with pytest.raises(NonFiniteLossError, match="within the tower of Remote 'sums'"):
        step(job, 0, *SITES)


def test_a_tower_whose_outputs_depend_on_each_other_is_refused(job):
    job.tower.shift = 1.0
    for _ in range(2):  # a task that fails is tried again
        with pytest.raises(ModelError, match="computes each id for itself"):
            job.pull(SITES, Step(LEASE, 0))


def test_rows_of_a_table_that_is_not_trained_are_fetched_once(job):
    fetched = []

    def noting(sites, training):
        fetched.append([asked.tolist() for _, asked in sites])
        return job.stores.look_up(sites, training)

    server = TowerComputer([SumTower()], [True, False], noting)
    server.forward(0, True, ids(1, 2))
    server.forward(0, True, ids(2, 3))
    server.forward(0, False, ids(3, 4))  # an evaluation creates no rows
    outputs, _ = server.forward(0, True, ids(1, 4))
    assert fetched == [[[1, 2]], [[]], [[3]], [[4]], [[4]]]
    assert outputs.tolist() == [[10, 20]] * 2


def test_frozen_rows_beyond_the_limit_are_fetched_again():
    kept = FrozenRows(limit_bytes=3 * (4 * 2 + 110))  # 110 of an id and its place
    asked = ids(5, 1, 5, 9, 7)
    for expected in ([1, 5, 7, 9], [9]):
        missing = kept.missing(asked)
        assert missing.tolist() == expected
        rows = np.stack([missing, missing * 10], 1).astype(np.float32)
        assert kept.rows_of(asked, missing, rows)[:, 0].tolist() == [5, 1, 5, 9, 7]
        kept.keep(missing, rows)
