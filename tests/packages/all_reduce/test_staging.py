"""Both ends of the way on which a joiner gets the parameters, without a ring."""

import itertools
import json

import numpy as np
import pytest

from elasticdl._core import PsClient, Store
from elasticdl.errors import ElasticdlError
from elasticdl.packages.all_reduce.collective.transfer import Layout
from elasticdl.packages.all_reduce.staging import Giver, StagedParameters

LAYOUT = Layout(dense=50, state=3, slots=2)


@pytest.fixture
def open_store():
    """Make a store of 50 dense values, which Adam trains, and 3 of a state."""

    def open_one():
        store = Store()
        client = PsClient.in_process(store)
        model = {
            "tables": [],
            "optimizer": {
                "kind": "adam",
                "params": {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0},
            },
            "seed": 0,
            "dense": [{"name": "w", "shape": [50], "offset": 0}],
            "state": [{"name": "mean", "shape": [3], "offset": 0}],
        }
        client.declare(json.dumps(model), np.ones(50, np.float32), np.zeros(3, np.float32))
        return store, client

    return open_one


def update(store, index):
    gradient = np.cos(np.arange(50, dtype=np.float32) * (index + 1))
    return store.apply_round([(7, 1, index, 1, 8)], 0.01, gradient, np.full(3, index, np.float32))


def content(store):
    out = np.empty(50 * 3 + 3, np.float32)
    store.read_part(0, 53, out)
    return out.tobytes(), store.outline()


def give_all(giver, stage, most_bytes, between):
    is_last, num_pieces = False, 0
    while not is_last:
        num_bytes, is_last = giver.next_piece(most_bytes)
        between()
        stage.room_for(num_bytes)[:] = giver.piece()
        stage.take(num_bytes, is_last)
        num_pieces += 1
    return num_pieces


@pytest.mark.parametrize("most_bytes", [1, 50, 200, 10_000])
def test_a_joiner_has_the_same_bits_after_updates_between_pieces(open_store, most_bytes):
    (store, _), (own, client) = open_store(), open_store()
    versions = [update(store, index) for index in range(3)]
    own.take_outline(store.outline())
    stage = StagedParameters(own, client, LAYOUT)

    def update_both():
        versions.append(update(store, len(versions)))
        assert update(own, len(versions) - 1) == versions[-1]

    num_pieces = give_all(Giver(store, LAYOUT), stage, most_bytes, update_both)
    assert stage.is_whole
    assert len(versions) == 3 + num_pieces
    assert content(own) == content(store)


def test_a_joiner_that_has_missed_an_update_has_other_bits(open_store):
    (store, _), (own, client) = open_store(), open_store()
    update(store, 0)
    own.take_outline(store.outline())
    stage = StagedParameters(own, client, LAYOUT)
    indices = itertools.count(1)
    give_all(Giver(store, LAYOUT), stage, 100, lambda: update(store, next(indices)))
    assert content(own)[0] != content(store)[0]


def test_a_joiner_has_nothing_before_the_last_piece(open_store):
    (store, _), (own, client) = open_store(), open_store()
    stage = StagedParameters(own, client, LAYOUT)
    giver = Giver(store, LAYOUT)
    num_bytes, is_last = giver.next_piece(100)
    stage.room_for(num_bytes)[:] = giver.piece()
    stage.take(num_bytes, is_last)
    assert (is_last, stage.is_whole) == (False, False)


def test_a_piece_that_is_no_part_of_the_model_is_refused(open_store):
    stage = StagedParameters(*open_store(), LAYOUT)
    stage.room_for(20)
    with pytest.raises(ElasticdlError, match=r"given 20 bytes .* from number 0 of 53, expected 12"):
        stage.take(20, is_last=False)
