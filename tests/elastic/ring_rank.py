"""One rank of a ring, as a process of its own: worlds come by stdin, events go to stdout."""

import hashlib
import json
import sys
import time

import numpy as np

from elasticdl._core import RingListener
from elasticdl.errors import RingError
from elasticdl.packages.all_reduce.collective import WorldView, form_ring

TIMEOUT_SECONDS = 120


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def say(**event):
    print(json.dumps(event), flush=True)


def gradients_of(member, step, size):
    return np.random.default_rng([member, step]).standard_normal(size, np.float32)


def main():
    settings = json.loads(sys.argv[1])
    member, size = settings["member"], settings["size"]
    listener = RingListener("127.0.0.1", 0, b"a token of this test")
    say(address=listener.address)
    step, gradients = 0, gradients_of(member, 0, size)
    for line in sys.stdin:
        world = json.loads(line)
        ring = form_ring(
            WorldView(world["id"], world["rank"], tuple(world["members"])),
            listener,
            timeout_seconds=TIMEOUT_SECONDS,
            silence_seconds=settings["silence_seconds"],
            unix_sockets=settings["unix_sockets"],
            shared_memory=settings["shared_memory"],
        )
        say(formed=world["id"], transport=ring.transport)
        out = np.empty_like(gradients)
        if step != world["step"]:
            step, gradients = world["step"], gradients_of(member, world["step"], size)
        for _ in range(world["steps"]):
            before = digest(gradients)
            began = time.monotonic()
            say(begins=step)
            try:
                ring.all_reduce([gradients], [out], member + 1, timeout_seconds=TIMEOUT_SECONDS)
            except RingError as error:
                seconds = time.monotonic() - began
                same = digest(gradients) == before
                say(error=str(error), rank=error.rank, seconds=seconds, step=step, same=same)
                break
            say(step=step, sum=digest(out), head=out[:5].tolist())
            step += 1
            gradients = gradients_of(member, step, size)
        else:
            say(done=world["id"])
        ring.close()


if __name__ == "__main__":
    main()
