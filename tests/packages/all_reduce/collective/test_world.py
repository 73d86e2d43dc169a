"""Worlds, and the rings that they form in threads of one process."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from elasticdl._core import RingListener
from elasticdl.errors import RingError
from elasticdl.job import Role
from elasticdl.packages.all_reduce.collective import WorldView, form_ring
from elasticdl.runtime.credentials.authority import Authority, Identity

TOKEN = b"a secret of thirty-two bytes ...."


def listeners(size, **settings):
    return [RingListener("127.0.0.1", 0, TOKEN, **settings) for _ in range(size)]


def in_ring(listeners, work, rendezvous_id=1, **settings):
    """Run `work(ring, rank)` in each rank of a ring; return what each returned, or raised."""
    members = tuple(listener.address for listener in listeners)

    def run(rank):
        world = WorldView(rendezvous_id, rank, members)
        ring = form_ring(world, listeners[rank], timeout_seconds=20, **settings)
        try:
            return work(ring, rank)
        finally:
            ring.close()

    with ThreadPoolExecutor(len(listeners)) as threads:
        return list(threads.map(run, range(len(listeners))))


def mean_of(ring, gradients, weight, **settings):
    out = [np.empty_like(gradient) for gradient in gradients]
    total = ring.all_reduce(gradients, out, weight, timeout_seconds=20, **settings)
    return total, out


def test_a_world_is_frozen_and_holds_each_member_once():
    world = WorldView(3, 1, ("a:1", "b:2"))
    assert world.size == 2
    with pytest.raises(FrozenInstanceError):
        world.rank = 0
    with pytest.raises(ValueError, match="rank 2, expected 0 to 1"):
        WorldView(3, 2, ("a:1", "b:2"))
    with pytest.raises(ValueError, match="expected each once"):
        WorldView(3, 0, ("a:1", "a:1"))


@pytest.mark.parametrize("shared_memory", [False, True])
def test_uneven_minibatches_give_the_mean_over_all_samples(shared_memory):
    samples = [np.arange(n * 5, dtype=np.float32).reshape(n, 5) + n for n in (64, 64, 3)]

    def work(ring, rank):
        assert ring.transport == ("shared memory" if shared_memory else "unix")
        own = samples[rank].mean(axis=0)
        return mean_of(ring, [own[:2].copy(), own[2:].copy()], len(samples[rank]))

    results = in_ring(listeners(3), work, shared_memory=shared_memory)
    for total, (first, last) in results:
        assert total == 131
        np.testing.assert_allclose(
            np.concatenate([first, last]), np.concatenate(samples).mean(axis=0), rtol=1e-6
        )
        np.testing.assert_array_equal(first, results[0][1][0])
        np.testing.assert_array_equal(last, results[0][1][1])


def test_a_sum_and_bfloat16_are_had_on_request():
    gradients = np.full(100_000, 1.5, np.float32)

    def work(ring, rank):
        _, [summed] = mean_of(ring, [gradients], rank + 1, mean=False)
        _, [rounded] = mean_of(ring, [gradients], 1, wire_dtype="bfloat16")
        return summed, rounded

    for summed, rounded in in_ring(listeners(2), work, shared_memory=False, unix_sockets=False):
        np.testing.assert_array_equal(summed, 4.5)
        np.testing.assert_array_equal(rounded, 1.5)


def test_arrays_that_cannot_be_used_are_refused_and_the_ring_goes_on():
    def work(ring, rank):
        gradients = np.ones(4, np.float32)
        for out, words in [
            (gradients, "no other argument's"),
            (np.ones(3, np.float32), "expected"),
            (np.ones(8, np.float32)[::2], "not C-contiguous"),
        ]:
            with pytest.raises(ValueError, match=words):
                ring.all_reduce([gradients], [out], 1, timeout_seconds=20)
        with pytest.raises(TypeError, match="expected an array of float32"):
            ring.all_reduce([gradients], [np.ones(4)], 1, timeout_seconds=20)
        with pytest.raises(ValueError, match="expected float32 or bfloat16"):
            mean_of(ring, [gradients], 1, wire_dtype="float16")
        return mean_of(ring, [gradients], 1)[1][0].tolist()

    assert in_ring(listeners(2), work) == [[1.0] * 4] * 2


def test_a_closed_ring_says_so_and_its_end_is_told_to_the_others():
    def work(ring, rank):
        gradients = np.ones(4, np.float32)
        mean_of(ring, [gradients], 1)
        if rank == 0:
            ring.close()
            with pytest.raises(ValueError, match="the ring is closed"):
                mean_of(ring, [gradients], 1)
            return
        with pytest.raises(RingError, match="rank 0 has left the ring") as caught:
            mean_of(ring, [gradients], 1)
        assert caught.value.rank == 0

    in_ring(listeners(2), work)


def test_a_rank_that_does_not_join_is_named():
    here, there = listeners(2)
    world = WorldView(1, 0, (here.address, there.address))
    with pytest.raises(RingError, match=r"has not joined within 0\.3 s") as caught:
        form_ring(world, here, timeout_seconds=0.3)
    assert caught.value.rank == 1


def test_a_stranger_is_refused():
    here, stranger = listeners(1)[0], RingListener("127.0.0.1", 0, b"another token")
    world = WorldView(1, 0, (here.address, stranger.address))
    with pytest.raises(RingError, match="refused this job's token") as caught:
        form_ring(world, here, timeout_seconds=20)
    assert caught.value.rank == 1


def test_ranks_speak_tls_with_certificates_of_workers_only(tmp_path):
    authority = Authority.create(tmp_path, "job")

    def files(role, index):
        path = tmp_path / f"{role}-{index}.pem"
        path.write_bytes(authority.make(Identity("job", role, index), 3600))
        return (str(tmp_path / "ca.pem"), str(path), str(path))

    workers = [
        RingListener("127.0.0.1", 0, TOKEN, tls=files(Role.WORKER, rank)) for rank in range(3)
    ]
    gradients = np.arange(100_000, dtype=np.float32)

    def work(ring, rank):
        assert ring.transport == "tls"
        small = mean_of(ring, [gradients[:10].copy()], 1)[1][0]
        return small, mean_of(ring, [gradients], 1)[1][0]

    for small, large in in_ring(workers, work, unix_sockets=False):
        np.testing.assert_allclose(small, gradients[:10], rtol=1e-6)
        np.testing.assert_allclose(large, gradients, rtol=1e-6)

    replica = RingListener("127.0.0.1", 0, TOKEN, tls=files(Role.PS, 0))
    world = WorldView(2, 0, (workers[0].address, replica.address))
    with pytest.raises(RingError, match="certificate") as caught:
        form_ring(world, workers[0], timeout_seconds=20, unix_sockets=False)
    assert caught.value.rank == 1
