"""The page of a job, metrics for Prometheus, and `elasticdl report`, `top` and `profile`."""

from elasticdl.registry import Package

_FOLDER = "elasticdl.packages.page"

PACKAGE = Package(
    commands={
        "top": f"{_FOLDER}.top_command:top",
        "report": f"{_FOLDER}.report_command:report",
        "profile": f"{_FOLDER}.profile_command:profile",
    },
    profilers={
        "worker": f"{_FOLDER}.worker_profile:look_of",
        "ps": f"{_FOLDER}.ps_profile:look_of",
    },
    pages={"page": f"{_FOLDER}.made:PAGES"},
)
