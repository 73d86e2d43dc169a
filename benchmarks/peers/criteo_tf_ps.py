"""The Criteo DeepFM with TensorFlow's ParameterServerStrategy on this machine.

    PYTHONPATH=model_zoo python benchmarks/peers/criteo_tf_ps.py --optimizer=sgd

prints the records/s as JSON. There are a coordinator (this process), 2 workers and 2 parameter
servers, each in its own process. The servers share the tables and look up and update rows. `--pack`
runs several steps in one scheduled closure. Minibatches come from memory.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from criteo_tensorflow import DIM, Updates, loss, make_dense, minibatches

from criteo.fields import NUM_IDS


def main() -> None:
    """Run the coordinator, or one server of its cluster."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", choices=("sgd", "adagrad", "adam"), default="sgd")
    parser.add_argument("--minibatch_size", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--pack", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help="be the server TF_CONFIG names")
    args = parser.parse_args()
    if args.serve:
        serve()
    else:
        print(json.dumps({"records_per_second": coordinate(args)}))


def serve() -> None:
    """Serve until killed."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    settings = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=2, inter_op_parallelism_threads=4
    )
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=settings,
        start=True,
    )
    server.join()


def coordinate(args: argparse.Namespace) -> float:
    """Start the cluster, train for some seconds, end it."""
    ports = free_ports(args.workers + args.ps)
    addresses = [f"localhost:{port}" for port in ports]
    cluster = {"worker": addresses[: args.workers], "ps": addresses[args.workers :]}
    with ExitStack() as stack:
        for job, servers in cluster.items():
            for index in range(len(servers)):
                task = {"cluster": cluster, "task": {"type": job, "index": index}}
                process = subprocess.Popen(
                    [sys.executable, __file__, "--serve"],
                    env={**os.environ, "TF_CONFIG": json.dumps(task)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                stack.callback(process.wait)
                stack.callback(process.kill)
        return train(args, cluster)


def train(args: argparse.Namespace, cluster: dict[str, list[str]]) -> float:
    """Return the records/s of scheduled steps after the first ones."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc"
    )
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(args.ps)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        vectors = tf.Variable(
            lambda: tf.random.uniform([NUM_IDS, DIM], -0.05, 0.05), shape=[NUM_IDS, DIM]
        )
        weights = tf.Variable(lambda: tf.zeros([NUM_IDS, 1]), shape=[NUM_IDS, 1])
    strategy.extended._variable_partitioner = None  # small variables stay whole
    with strategy.scope():
        dense = make_dense()
        variables = [*dense, *vectors.variables, *weights.variables]
        updates = Updates(args.optimizer, variables)

    def replica(numbers, ids, labels):  # type: ignore[no-untyped-def]
        with tf.GradientTape() as tape:
            rows = [tf.nn.embedding_lookup(table, ids) for table in (vectors, weights)]
            value = loss(dense, numbers, *rows, labels)
        updates.apply(tape.gradient(value, variables))
        return value

    @tf.function
    def step(iterator):  # type: ignore[no-untyped-def]
        for _ in range(args.pack):
            value = strategy.run(replica, args=next(iterator))
        return value

    def dataset():  # type: ignore[no-untyped-def]
        parts = zip(*minibatches(40, args.minibatch_size), strict=True)
        columns = tuple(np.concatenate(part) for part in parts)
        records = tf.data.Dataset.from_tensor_slices(columns)
        return records.batch(args.minibatch_size, drop_remainder=True).cache().repeat().prefetch(2)

    iterator = iter(coordinator.create_per_worker_dataset(dataset))

    def steps(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        return count * args.pack * args.minibatch_size / (time.perf_counter() - started)

    steps(5 * args.workers)
    guess = steps(8 * args.workers)
    per_closure = args.pack * args.minibatch_size
    return steps(max(args.workers, int(guess * args.seconds / per_closure)))


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at; TensorFlow's servers must be told theirs."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


if __name__ == "__main__":
    main()
