"""What a ring carries beside gradients: offers of all ranks, and the bytes of rank 0."""

import threading

import numpy as np
import pytest

from elasticdl._core import RingListener
from elasticdl.packages.all_reduce.collective import Group, WorldView, form_ring
from elasticdl.packages.all_reduce.collective.rounds import Offer, OfferedMinibatch

TOKEN = b"secret of this job"


def together(size, work):
    """Run `work(group, rank)` on each rank of a world; return what each returned, by rank."""
    listeners = [RingListener("127.0.0.1", 0, TOKEN) for _ in range(size)]
    addresses = tuple(listener.address for listener in listeners)
    results = [None] * size

    def run(rank):
        ring = form_ring(WorldView(1, rank, addresses), listeners[rank], timeout_seconds=100)
        results[rank] = work(Group(ring), rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)
    return results


@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_see_all_offers(size):
    offers = [Offer(9, OfferedMinibatch(rank, 1, rank, 70_000), 0.1 * rank) for rank in range(size)]
    found = together(size, lambda group, rank: group.exchange(offers[rank]))
    assert found == [offers] * size


@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_bytes", [0, 1, 40_000, 1_000_001])
def test_bytes_of_rank_0_come_to_all_as_they_are(num_bytes):
    data = np.random.default_rng(1).bytes(num_bytes)
    found = together(3, lambda group, rank: group.give(data if rank == 0 else None))
    assert found == [data] * 3


@pytest.mark.timeout(300)
def test_bytes_in_several_pieces_are_kept_by_those_who_want_them(monkeypatch):
    monkeypatch.setattr("elasticdl.packages.all_reduce.collective.group._PIECE_BYTES", 100)
    data = np.random.default_rng(1).bytes(1_001)
    found = together(3, lambda group, rank: group.give(data if rank == 0 else None, rank == 2))
    assert found == [b"", b"", data]


@pytest.mark.timeout(300)
def test_one_with_nothing_has_no_part_in_the_mean():
    def reduce(group, rank):
        values = [np.full(3, [1.0, 5.0, np.nan][rank], np.float32)]
        out = [np.empty(3, np.float32)]
        group.mean(values, out, weight=[1, 3, 0][rank])
        return out[0].tolist()

    assert together(3, reduce) == [[4.0] * 3] * 3
