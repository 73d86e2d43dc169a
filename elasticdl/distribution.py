"""The name under which elasticdl is installed, which is not that of the package.

`elasticdl` on the public package index is another program, ElasticDL 0.2.0rc3 of 2020.
"""

from importlib import metadata

DISTRIBUTION = "elasticdl-train"
WHEEL_PREFIX = "elasticdl_train-"  # of the file names of its wheels


def version() -> str:
    """Return the version that is installed."""
    return metadata.version(DISTRIBUTION)


def install(extra: str) -> str:
    """Return the command that installs what an extra of elasticdl has, for a message."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
