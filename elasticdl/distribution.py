"""The name under which elasticdl is installed. It differs from the name of the module.

`elasticdl` on the public package index is another program, ElasticDL 0.2.0rc3 of 2020. This one is
on no index: users install it from its wheel, or from a clone.
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
    """Return the requirements of an extra of elasticdl in the form of pip: `pyarrow>=26,<27`.

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
    """Return the command that installs the packages of an extra of elasticdl, for a message.

    It names the packages and not the extra, because elasticdl is on no index.
    """
    return " ".join(["pip install", *(f"'{package}'" for package in requirements_of(extra))])


def is_missing(module: str) -> bool:
    """Whether a module is not installed. Only its parent packages are imported."""
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # its parent is not installed
        return True


_EXTRA_OF_FRAMEWORK = {
    "jax": "jax",
    "keras": "tensorflow",
    "tensorflow": "tensorflow",
    "torch": "torch",
}
_NEWEST_FOR_TENSORFLOW = (3, 13)


def how_to_get(module: str, python: tuple[int, int]) -> str:
    """Return how to install a module that a model file imports, for a message; "": not known.

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
