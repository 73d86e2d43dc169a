"""Returns the text of the Dockerfile that `elasticdl zoo init` writes, and of its .dockerignore."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from elasticdl.distribution import WHEEL_PREFIX

USER = "1000:1000"  # of the pods too; a number, so that a cluster sees that it is not root
MODEL_DIR = "/model_zoo"
CLUSTER_SPEC_DIR = "/cluster_spec"
_PACKAGES_DIR = "/packages"
EXTRAS = "kubernetes,etcd,parquet,tensorflow"


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an image. Paths are relative to the folder of the Dockerfile, with "/".

    base_image: The image that the Dockerfile begins with.
    model_zoo: The folder of model files; "." is the folder of the Dockerfile.
    has_requirements: Whether the model folder has a requirements.txt.
    extra_pypi_index: URL of a package index that is asked beside PyPI; empty for none.
    cluster_spec: The file of `--cluster_spec`; empty for none.
    packages: Wheels to install.
    """

    base_image: str
    model_zoo: str = "."
    has_requirements: bool = False
    extra_pypi_index: str = ""
    cluster_spec: str = ""
    packages: tuple[str, ...] = ()


def dockerfile(contents: Contents, stock_image: str) -> str:
    """Return the Dockerfile; docker, podman and buildah can build it."""
    return "\n".join(_lines(contents, stock_image)) + "\n"


def _lines(contents: Contents, stock_image: str) -> Iterator[str]:
    yield "# Written by `elasticdl zoo init`, and yours to change."
    yield "# `elasticdl zoo build --image=NAME .` builds it."
    yield f"FROM {contents.base_image}"
    yield ""
    yield "# Packages are installed by root, and run by another user."
    yield "USER root"
    if contents.extra_pypi_index:
        yield ""
        yield "# Asked by pip beside PyPI, while the image is built."
        yield f"ARG PIP_EXTRA_INDEX_URL={shlex.quote(contents.extra_pypi_index)}"
    if contents.packages:
        yield from _of_packages(contents.packages)
    yield from _of_model_zoo(contents)
    if contents.cluster_spec:
        name = contents.cluster_spec.rsplit("/", 1)[-1]
        yield ""
        yield "# elasticdl train reads --cluster_spec where it is run; this is for the record."
        yield f"COPY --chown={USER} {contents.cluster_spec} {CLUSTER_SPEC_DIR}/{name}"
    yield ""
    yield "RUN command -v elasticdl > /dev/null || { \\"
    yield f"      echo 'error: {contents.base_image} has no elasticdl: elasticdl zoo init \\"
    yield f"takes --base_image={stock_image}, or a wheel of it by --local_pkg_path' >&2; exit 1; }}"
    yield ""
    yield "# --model_zoo=model_zoo is found from here. The root file system may be read-only."
    yield "WORKDIR /"
    yield "ENV HOME=/tmp USER=elasticdl"
    yield f"USER {USER}"


def _of_packages(packages: tuple[str, ...]) -> Iterator[str]:
    installed = [f"{_PACKAGES_DIR}/{path.rsplit('/', 1)[-1]}" for path in packages]
    words = [f'"{path}[$EXTRAS]"' if is_elasticdl(path) else path for path in installed]
    yield ""
    yield "# Wheels of --local_pkg_path."
    yield f"COPY {' '.join(packages)} {_PACKAGES_DIR}/"
    if any(is_elasticdl(path) for path in packages):
        yield f"ARG EXTRAS={EXTRAS}"
    yield "# The second command is for wheels of a version that the base image has too."
    yield f"RUN python -m pip install --no-cache-dir {' '.join(words)} \\"
    yield (
        " && python -m pip install --no-cache-dir --no-deps --force-reinstall "
        + " ".join(installed)
    )


def _of_model_zoo(contents: Contents) -> Iterator[str]:
    folder = contents.model_zoo
    requirements = "requirements.txt" if folder == "." else f"{folder}/requirements.txt"
    yield ""
    if contents.has_requirements:
        yield "# What the model files need. Installed again only when this file changes."
        yield f"COPY {requirements} {MODEL_DIR}/requirements.txt"
        yield f"RUN python -m pip install --no-cache-dir --requirement {MODEL_DIR}/requirements.txt"
    else:
        yield f"# There was no {requirements}: nothing more is installed."
    yield ""
    yield f"COPY --chown={USER} {folder} {MODEL_DIR}"


def is_elasticdl(wheel: str) -> bool:
    """Return whether a wheel is elasticdl's own."""
    return wheel.rsplit("/", 1)[-1].startswith(WHEEL_PREFIX)


def is_for(machine: str, wheel: str) -> bool:
    """Return whether a wheel installs on a processor.

    Args:
        machine: The processor's name in the kernel: `x86_64`, `aarch64`.
        wheel: The wheel's file name.
    """
    return wheel.removesuffix(".whl").endswith(("-any", f"_{machine}"))


def dockerignore(contents: Contents) -> str:
    """Return the .dockerignore that keeps all else out of the image: data, keys, hidden files."""
    lines = ["# Written by `elasticdl zoo init`: what the Dockerfile may not copy."]
    if contents.model_zoo == ".":
        lines += ["Dockerfile"]
    else:
        wanted = [contents.model_zoo, *contents.packages, contents.cluster_spec]
        lines += ["*", *(f"!{path}" for path in wanted if path)]
    lines += ["**/.*", "**/__pycache__", "**/*.pyc"]
    return "\n".join(lines) + "\n"
