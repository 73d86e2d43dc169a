"""The journal of a job in etcd, where a master on another machine finds it."""

from elasticdl.registry import Package

PACKAGE = Package(journals={"etcd": "elasticdl.packages.etcd.kind:ETCD"})
