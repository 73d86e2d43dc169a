"""The Python classes of the parameter store: in process, and over sockets of two replicas."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from elasticdl._core import Progress, PsClient, PsServer, Store
from elasticdl.backends.base import (
    ClipSpec,
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from elasticdl.errors import (
    AuthenticationError,
    LaunchError,
    ModelMismatchError,
    StaleLeaseError,
    StoreError,
    UnavailableError,
    UnknownTableError,
)

TOKEN = b"the token of this job"
DENSE = np.arange(35, dtype=np.float32)
STATE = np.array([2.0, 4.0], np.float32)
MODEL = ModelDescription(
    tables=(
        TableDescription("one", 1, Initializer("constant", {"value": 1.0}), OptimizerSpec("sgd")),
        TableDescription(
            "wide",
            5,
            Initializer("uniform", {"low": -1.0, "high": 1.0}),
            OptimizerSpec("adagrad", {"epsilon": 1e-7, "initial_accumulator": 0.1}),
        ),
    ),
    dense=(VariableDescription("w", (5, 7), 0),),
    state=(VariableDescription("mean", (2,), 0),),
    optimizer=OptimizerSpec("sgd"),
    seed=5,
)


def connect(servers, **options):
    settings = {"token": TOKEN, "worker_id": 0, "timeout_seconds": 60.0} | options
    return PsClient.connect([server.address for server in servers], **settings)


@pytest.fixture
def servers():
    running = [PsServer(Store(i, 2), "127.0.0.1", 0, TOKEN) for i in range(2)]
    yield running
    for server in running:
        server.stop()


@pytest.fixture(params=["in process", "two replicas"])
def client(request):
    if request.param == "in process":
        client = PsClient.in_process(Store())
    else:
        client = connect(request.getfixturevalue("servers"))
    client.declare(json.dumps(asdict(MODEL)), DENSE, STATE)
    return client


def pull(client, *sites, training=True, dense=True):
    arrays = [(table, np.asarray(ids, np.int64)) for table, ids in sites]
    return client.pull(arrays, training, dense)


def test_rows_of_16_bits_are_rounded_on_the_wire(servers):
    tables = (MODEL.tables[0], replace(MODEL.tables[1], wire_dtype="bfloat16"))
    client, exact = connect(servers), PsClient.in_process(Store())
    client.declare(json.dumps(asdict(replace(MODEL, tables=tables))), DENSE, STATE)
    exact.declare(json.dumps(asdict(MODEL)), DENSE, STATE)
    near, far = (pull(c, (1, np.arange(50))).rows[0] for c in (client, exact))
    bits = far.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    np.testing.assert_array_equal(near, rounded.view(np.float32))


def push(client, pulled, row_grads, index=0, lease=1, dense_grad=None, state_delta=None):
    if dense_grad is None:
        dense_grad = np.zeros(35, np.float32)
    if state_delta is None:
        state_delta = np.zeros(2, np.float32)
    return client.push(
        pulled,
        row_grads,
        dense_grad,
        state_delta,
        learning_rate=0.5,
        task_id=9,
        lease=lease,
        index=index,
        num_records=4,
    )


def test_rows_have_the_shape_of_their_ids_and_equal_ids_equal_rows(client):
    ids = np.array([[7, -1, 7], [3, 2**62, -(2**63)]])
    pulled = pull(client, (1, ids), (0, ids), (1, ids[0]), (1, np.zeros((0, 4))))
    assert [rows.shape for rows in pulled.rows] == [(2, 3, 5), (2, 3, 1), (3, 5), (0, 4, 5)]
    assert all(rows.dtype == np.float32 and rows.flags.c_contiguous for rows in pulled.rows)
    wide, one, again, _ = pulled.rows
    np.testing.assert_array_equal(wide[0], again)
    np.testing.assert_array_equal(wide[0, 0], wide[0, 2])
    assert len(np.unique(wide.reshape(6, 5), axis=0)) == 5
    assert (one == 1.0).all()


@pytest.mark.parametrize("kind", ["norm", "global_norm", "value"])
def test_a_gradient_is_clipped_as_a_whole_before_it_is_split_between_replicas(servers, kind):
    ids = np.arange(40) // 2  # each twice
    grads = np.linspace(-3.0, 5.0, 200, dtype=np.float32).reshape(40, 5)
    model = json.dumps(asdict(replace(MODEL, clip=ClipSpec(kind, 2.0))))
    merged = grads.reshape(20, 2, 5).sum(1)
    norms = np.array([np.linalg.norm(merged), np.linalg.norm(DENSE)])
    clipped, dense = {
        "norm": (2.0 * merged / norms[0], 2.0 * DENSE / norms[1]),
        "global_norm": (part * 2.0 / np.linalg.norm(norms) for part in (merged, DENSE)),
        "value": (np.clip(merged, -2.0, 2.0), np.clip(DENSE, -2.0, 2.0)),
    }[kind]
    # Adagrad from 0.1 at a rate of one half.
    step = 0.5 * clipped / np.sqrt(0.1 + clipped**2 + 1e-7)

    for client in (connect(servers), PsClient.in_process(Store())):
        client.declare(model, DENSE, STATE)
        client.begin_task(9, 1)
        pulled = pull(client, (1, ids))
        push(client, pulled, [grads], dense_grad=DENSE)
        after = pull(client, (1, np.arange(20)))
        np.testing.assert_allclose(after.rows[0], pulled.rows[0][::2] - step, atol=1e-5)
        np.testing.assert_allclose(after.dense, DENSE - 0.5 * dense, rtol=1e-5)


def test_a_push_and_pull_in_one_gives_what_a_pull_after_the_push_would(client):
    client.begin_task(9, 1)
    ids = np.array([[4, 5], [5, 6]])
    pulled = client.pull([(0, ids)], True, step=(9, 1, 0))
    following = np.array([6, 5, 7])
    version, staleness, next_pulled = client.push_pull(
        pulled,
        [np.ones((2, 2, 1), np.float32)],
        np.ones(35, np.float32),
        np.ones(2, np.float32),
        learning_rate=0.5,
        task_id=9,
        lease=1,
        index=0,
        num_records=4,
        sites=[(0, following), (1, following)],
        step=(9, 1, 1),
    )
    assert (version, staleness, next_pulled.version) == (1, 0, 1)
    np.testing.assert_array_equal(next_pulled.rows[0][:, 0], [0.5, 0.0, 1.0])
    again = pull(client, (0, following), (1, following))
    for rows, expected in zip(next_pulled.rows, again.rows, strict=True):
        np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(next_pulled.dense, DENSE - 0.5)
    np.testing.assert_array_equal(next_pulled.state, STATE + 1)


def test_dense_and_state_come_whole_or_not_at_all(client):
    pulled = pull(client)
    np.testing.assert_array_equal(pulled.dense, DENSE)
    np.testing.assert_array_equal(pulled.state, STATE)
    without = pull(client, (0, [1]), dense=False)
    assert without.dense.shape == without.state.shape == (0,)
    assert without.dense.dtype == np.float32


def test_gradients_of_equal_ids_are_summed_over_all_sites(client):
    assert client.begin_task(9, 1) == 0
    pulled = pull(client, (0, [[1, 2], [1, 1]]), (0, [2, 3]))
    grads = [np.ones((2, 2, 1), np.float32), np.full((2, 1), 10.0, np.float32)]
    version, staleness = push(
        client, pulled, grads, dense_grad=DENSE, state_delta=np.array([1, -1], np.float32)
    )
    assert (version, staleness) == (1, 0)
    after = pull(client, (0, [1, 2, 3]))
    assert after.version == 1
    np.testing.assert_allclose(after.rows[0][:, 0], 1.0 - 0.5 * np.array([3.0, 11.0, 10.0]))
    np.testing.assert_allclose(after.dense, 0.5 * DENSE)
    np.testing.assert_array_equal(after.state, [3.0, 3.0])


def test_a_pull_is_pushed_after_later_pulls_and_its_staleness_counted(client):
    client.begin_task(9, 1)
    early, late = pull(client, (0, [1])), pull(client, (0, [1, 2]))
    assert push(client, late, [np.ones((2, 1), np.float32)], index=0) == (1, 0)
    assert push(client, early, [np.ones((1, 1), np.float32)], index=1) == (2, 1)


def test_a_repeated_push_is_applied_once_and_the_audit_says_so(client):
    client.begin_task(9, 1)
    pulled = pull(client, (0, [1]))
    for _ in range(3):
        assert push(client, pulled, [np.ones((1, 1), np.float32)])[0] == 1
    client.skip(9, 1, 1)
    assert all(audit.tolist() == [[9, 2, 4]] for audit in client.audit())
    assert client.begin_task(9, 2) == 2
    assert pull(client, (0, [1])).rows[0].item() == 0.5


def test_an_old_lease_is_refused(client):
    client.begin_task(9, 2)
    pulled = pull(client, (0, [1]))
    with pytest.raises(StaleLeaseError, match="lease 1 of task 9"):
        push(client, pulled, [np.ones((1, 1), np.float32)], lease=1)
    with pytest.raises(StaleLeaseError):
        client.begin_task(9, 1)
    with pytest.raises(StaleLeaseError):
        client.skip(9, 1, 0)


def test_evaluation_creates_no_rows(client):
    pulled = pull(client, (0, [1, 2]), (1, [1]), training=False)
    np.testing.assert_array_equal(pulled.rows[1], np.zeros((1, 5)))
    assert [keys for keys, _ in client.scan(0)] == []


def test_a_scan_yields_every_trained_row_once(client):
    ids = np.arange(-3000, 3000)
    expected = pull(client, (1, ids)).rows[0]
    chunks = list(client.scan(1))
    keys = np.concatenate([keys for keys, _ in chunks])
    rows = np.concatenate([rows for _, rows in chunks])
    assert keys.dtype == np.int64
    assert rows.dtype == np.float32
    order = np.argsort(keys)
    np.testing.assert_array_equal(keys[order], ids)
    np.testing.assert_array_equal(rows[order], expected)


def test_stats_are_json_of_every_replica(client):
    pull(client, (0, np.arange(100)))
    stats = json.loads(client.stats())
    assert sum(replica["tables"][0]["rows"] for replica in stats) == 100
    assert [replica["replica"] for replica in stats] == list(range(len(stats)))


def test_another_model_is_refused_with_the_difference(client):
    other = replace(MODEL, tables=(MODEL.tables[0], replace(MODEL.tables[1], dim=6)))
    with pytest.raises(ModelMismatchError, match="table 'wide' has dim 6 here, 5 was declared"):
        client.declare(json.dumps(asdict(other)), DENSE, STATE)
    client.declare(json.dumps(asdict(MODEL)), DENSE + 1, STATE)
    np.testing.assert_array_equal(pull(client).dense, DENSE)


def test_an_unknown_table_is_named(client):
    with pytest.raises(UnknownTableError, match="no table 2: the model has 2 tables"):
        pull(client, (2, [1]))
    with pytest.raises(UnknownTableError, match="no table 2"):
        client.scan(2)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1, 2], TypeError, "ids of site 0: expected a NumPy array, found .*list"),
        (np.array([1.0]), TypeError, "ids of site 0: expected an array of int64, found float64"),
        (np.array([1], np.int32), TypeError, "expected an array of int64, found int32"),
        (np.arange(8)[::2], ValueError, "ids of site 0: the array is not C-contiguous"),
        (np.arange(8).reshape(2, 4).T, ValueError, "not C-contiguous"),
    ],
)
def test_ids_of_the_wrong_kind_are_named(client, ids, error, message):
    with pytest.raises(error, match=message):
        client.pull([(0, ids)], True)


def test_gradients_that_do_not_fit_are_named(client):
    client.begin_task(9, 1)
    pulled = pull(client, (1, [[1, 2], [3, 4]]))
    good = np.zeros((2, 2, 5), np.float32)
    with pytest.raises(ValueError, match=r"row_grads\[0\] has shape \[4, 5\], expected \[2, 2, 5"):
        push(client, pulled, [good.reshape(4, 5)])
    with pytest.raises(TypeError, match=r"row_grads\[0\]: expected an array of float32, found f"):
        push(client, pulled, [good.astype(np.float64)])
    with pytest.raises(ValueError, match="gradients of 2 sites, 1 were pulled"):
        push(client, pulled, [good, good])
    with pytest.raises(ValueError, match="the dense gradient has 3 elements, expected 35"):
        push(client, pulled, [good], dense_grad=np.zeros(3, np.float32))
    assert push(client, pulled, [good]) == (1, 0)


def test_a_model_that_does_not_parse_is_refused():
    client = PsClient.in_process(Store())
    with pytest.raises(StoreError, match="the model description does not parse"):
        client.declare("{}", DENSE, STATE)
    with pytest.raises(StoreError, match="no model has been declared"):
        pull(client, (0, [1]))


def test_a_checkpoint_is_restored_to_another_number_of_replicas(servers, tmp_path):
    client = connect(servers)
    client.declare(json.dumps(asdict(MODEL)), DENSE, STATE)
    client.begin_task(9, 1)
    ids = np.arange(50)
    push(client, pull(client, (1, ids)), [np.ones((50, 5), np.float32)])
    entries = client.checkpoint(str(tmp_path))
    manifest = {"format": 1, "replicas": [json.loads(entry) for entry in entries]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))

    progress = Progress()
    whole = PsClient.in_process(Store.restore(str(tmp_path), progress=progress))

    after, before = pull(whole, (1, ids)), pull(client, (1, ids))
    np.testing.assert_array_equal(after.rows[0], before.rows[0])
    np.testing.assert_array_equal(after.dense, before.dense)
    assert [audit.tolist() for audit in whole.audit()] == [[[9, 1, 4]]]
    assert progress.pieces > 0


def test_a_wrong_token_is_refused_by_name(servers):
    with pytest.raises(AuthenticationError, match=servers[0].address):
        connect(servers, token=b"another")


def test_a_taken_port_is_named(servers):
    host, port = servers[0].address.split(":")
    with pytest.raises(LaunchError, match=f"cannot listen at {servers[0].address}"):
        PsServer(Store(), host, int(port), TOKEN)


def test_a_replica_that_is_gone_is_named_and_one_that_moved_is_found(servers):
    client = connect(servers, timeout_seconds=60.0)
    impatient = connect(servers, timeout_seconds=2.0)
    address = servers[1].address
    servers[1].stop()
    with pytest.raises(UnavailableError, match=f"ps replica 1 at {address} could not be reached"):
        impatient.stats()
    moved = PsServer(Store(1, 2), "127.0.0.1", 0, TOKEN)
    client.set_address(1, moved.address)
    assert len(json.loads(client.stats())) == 2
    moved.stop()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_timeout_that_is_none_is_refused(servers, seconds):
    with pytest.raises(ValueError, match="timeout_seconds is"):
        connect(servers, timeout_seconds=seconds)


def test_an_empty_token_is_refused():
    with pytest.raises(ValueError, match="the token is empty"):
        PsServer(Store(), "127.0.0.1", 0, b"")


@pytest.mark.parametrize(("replica", "num_replicas"), [(1, 1), (0, 0), (0, 65537)])
def test_replicas_that_cannot_be_are_refused(replica, num_replicas):
    with pytest.raises(ValueError, match=f"replica {replica} of {num_replicas}"):
        Store(replica, num_replicas)


def test_a_part_of_a_model_has_no_client_in_process():
    with pytest.raises(ValueError, match="this store is replica 1 of 2"):
        PsClient.in_process(Store(1, 2))
