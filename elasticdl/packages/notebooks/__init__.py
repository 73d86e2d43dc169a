"""Jobs from Python, without a shell: `elasticdl.train(...)` starts one and returns it."""

from elasticdl.registry import Package

_JOB = "elasticdl.packages.notebooks.job"

PACKAGE = Package(names={"train": f"{_JOB}:train", "Job": f"{_JOB}:Job"})
