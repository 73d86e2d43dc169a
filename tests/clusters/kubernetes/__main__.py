"""Runs a Kubernetes cluster on this machine until Ctrl-C, for tests and for trying kubectl.

    python -m tests.clusters.kubernetes --nodes 3 --cpus 8 --memory 16Gi

Pods run as processes of this machine, each with a network, a root and a process namespace of its
own; docs/designs/kubernetes.md says what is played and what is not. Needs root and, once,
`make kubernetes-tools`.
"""

from __future__ import annotations

import argparse
import signal
import sys

from .cluster import Cluster, Shape, missing

assert __doc__


def main() -> int:
    """Parse the command line, run the cluster, say where it is."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.clusters.kubernetes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--cpus", type=float, default=8, help="of each node (default: 8)")
    parser.add_argument("--memory", default="16Gi", help="of each node (default: 16Gi)")
    arguments = parser.parse_args()
    lacks = missing()
    if lacks:
        print(lacks, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shape = Shape(cpus=arguments.cpus, memory=arguments.memory)
    try:
        with Cluster([shape] * arguments.nodes) as cluster:
            print(f"export KUBECONFIG={cluster.kubeconfig}", flush=True)
            print(f"{arguments.nodes} nodes are ready; Ctrl-C ends them.", file=sys.stderr)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
