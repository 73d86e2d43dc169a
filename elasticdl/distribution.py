"""The name under which elasticdl is installed, which is not that of the package.

`elasticdl` on the public package index is another program, ElasticDL 0.2.0rc3 of 2020. This one is
on no index: it is installed from its wheel, or from a clone.
"""

import importlib.util
import re
from importlib import metadata

DISTRIBUTION = "elasticdl-train"
WHEEL_PREFIX = "elasticdl_train-"  # of the file names of its wheels


def version() -> str:
    """Return the version that is installed."""
    return metadata.version(DISTRIBUTION)


def requirements_of(extra: str) -> list[str]:
    """Return what an extra of elasticdl needs, as pip takes it: `pyarrow>=26,<27`.

    Raises:
        KeyError: There is no such extra.
    """
    mark = re.compile(rf"\bextra\s*==\s*(['\"]){re.escape(extra)}\1")
    found = [
        requirement.partition(";")[0].strip()
        for requirement in metadata.requires(DISTRIBUTION) or ()
        if mark.search(requirement)
    ]
    if not found:
        raise KeyError(f"{DISTRIBUTION} has no extra {extra!r}")
    return found


def install(extra: str) -> str:
    """Return the command that installs what an extra of elasticdl has, for a message.

    It names the packages themselves, so that it works wherever elasticdl came from.
    """
    return " ".join(["pip install", *(f"'{package}'" for package in requirements_of(extra))])


def is_missing(module: str) -> bool:
    """Whether a module is not installed; it is not imported, only what it is a part of."""
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # what it is a part of
        return True


_EXTRA_OF_FRAMEWORK = {
    "jax": "jax",
    "keras": "tensorflow",
    "tensorflow": "tensorflow",
    "torch": "torch",
}
_NEWEST_FOR_TENSORFLOW = (3, 13)


def how_to_get(module: str, python: tuple[int, int]) -> str:
    """Return how a module that a model file imports is got, for a message; empty if not known.

    Args:
        module: The name of the module, such as `keras`.
        python: The version of Python, major and minor.
    """
    extra = _EXTRA_OF_FRAMEWORK.get(module.partition(".")[0])
    if extra is None:
        return ""
    if extra == "tensorflow" and python > _NEWEST_FOR_TENSORFLOW:
        newest = ".".join(map(str, _NEWEST_FOR_TENSORFLOW))
        return (
            f"TensorFlow has no wheel for Python {python[0]}.{python[1]}: use Python 3.11 to "
            f"{newest}, or a model in PyTorch ({install('torch')}) or on NumPy"
        )
    return install(extra)
