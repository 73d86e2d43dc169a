"""Jobs from Python, without a shell: `elasticdl.train(...)` starts one and returns it."""

from elasticdl.registry import Package

_JOB = "elasticdl.packages.notebooks.job"

_FILE = "elasticdl.packages.notebooks.functions_file"

PACKAGE = Package(
    names={"train": f"{_JOB}:train", "Job": f"{_JOB}:Job"},
    modules={"elasticdl.runtime.functions_file": _FILE},
    process_starts={"functions": f"{_FILE}:trust"},
    job_folders={"functions": f"{_FILE}:prove_all"},
)
