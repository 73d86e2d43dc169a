"""Kubernetes: the master is a Job, and its processes are pods that it starts and watches.

With it come images with model files, and queues of Kueue.
"""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.kubernetes"

PACKAGE = Package(
    commands={"zoo": f"{_HERE}.zoo:zoo", "rbac": f"{_HERE}.commands:rbac"},
    sections={"kubernetes": f"{_HERE}.settings:KubernetesSection"},
    launchers={"kubernetes": f"{_HERE}.settings:LAUNCHER"},
)
