"""All-reduce: workers that have the dense parameters, and average their gradients in a ring."""

from elasticdl.registry import Package

PACKAGE = Package(rings={"all_reduce": "elasticdl.packages.all_reduce.join:join"})
