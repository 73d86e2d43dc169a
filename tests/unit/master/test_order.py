"""The order of tasks, which is computed and not held."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data.order import Order
from elasticdl.master.order import TaskCursor

SEEDS = st.integers(0, 2**63 - 1)


@settings(deadline=None)
@given(n=st.integers(1, 3000), seed=SEEDS, epoch=st.integers(0, 99))
def test_each_number_comes_once_and_all_at_once_is_the_same_as_one_by_one(n, seed, epoch):
    order = Order(n, seed, epoch)
    numbers = [order.at(place) for place in range(n)]
    assert sorted(numbers) == list(range(n))
    assert order.first(n).tolist() == numbers
    assert order.first(n // 2).tolist() == numbers[: n // 2]


def test_without_shuffling_numbers_come_in_their_order():
    order = Order(5, seed=1, epoch=0, shuffle=False)
    assert [order.at(place) for place in range(5)] == order.first(5).tolist() == [0, 1, 2, 3, 4]


def test_no_tasks_have_an_order_too():
    assert Order(0, seed=1, epoch=0).first(0).tolist() == []


def test_a_large_order_looks_drawn():
    n = 1_000_000
    numbers = Order(n, seed=7, epoch=3).first(n)
    assert np.bincount(numbers).max() == 1
    places = np.arange(n)
    assert abs(np.corrcoef(places, numbers)[0, 1]) < 0.005
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.005
    # Neighbours of a drawn order are as far from each other as any two numbers: n / 3.
    assert np.abs(np.diff(numbers)).mean() == pytest.approx(n / 3, rel=0.01)
    blocks = np.bincount(numbers[: n // 10] // (n // 100), minlength=100)
    assert blocks.min() > 800
    assert blocks.max() < 1200


def test_each_order_of_few_is_about_as_likely_as_any_other():
    seen = Counter(tuple(Order(4, seed, 0).first(4).tolist()) for seed in range(4800))
    assert len(seen) == 24
    assert min(seen.values()) > 100  # of 200 expected
    assert max(seen.values()) < 320


@settings(deadline=None)
@given(per_epoch=st.integers(1, 40), count=st.integers(0, 120), shuffle=st.booleans())
def test_a_master_that_takes_over_knows_what_was_handed_out(per_epoch, count, shuffle):
    before = TaskCursor(per_epoch, 3, shuffle)
    ids = []
    for _ in range(count):
        ids.append(before.next_id)
        before.hand_out()
    after = TaskCursor(per_epoch, 3, shuffle)
    after.restore(count)
    for handed in (before, after):
        tells = handed.teller()
        assert [id for id in range(120 + per_epoch) if tells(id)] == sorted(ids)
    assert after.next_id == before.next_id
    assert after.of_epoch(after.epoch).tolist() == before.of_epoch(before.epoch).tolist()
