"""Implements `elasticdl zoo`: makes an image with model files, and pushes it to a registry."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import rich_click as click

from elasticdl.errors import ConfigError
from elasticdl.packages.kubernetes import container_engine
from elasticdl.packages.kubernetes.dockerfile import (
    MODEL_DIR,
    Contents,
    dockerfile,
    dockerignore,
    is_elasticdl,
    is_for,
)
from elasticdl.packages.kubernetes.settings import STOCK_IMAGE

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@\[\]-]*")
_PLAIN_PATH = re.compile(r"[\w./@+=,~-]+")


@click.group(name="zoo")
def zoo() -> None:
    """Put model files into an image, build it, and push it to a registry."""


@zoo.command()
@click.option(
    "--base_image",
    default=STOCK_IMAGE,
    show_default=True,
    help="Base image of the Dockerfile. If it has no elasticdl, give --local_pkg_path.",
)
@click.option(
    "--model_zoo",
    type=click.Path(path_type=Path),
    default=".",
    show_default=True,
    help="Folder of model files, copied to /model_zoo; packages of its requirements.txt are "
    "installed.",
)
@click.option(
    "--extra_pypi_index", default="", help="URL of a package index beside PyPI, without a password."
)
@click.option(
    "--cluster_spec",
    type=click.Path(path_type=Path),
    help="The file for --cluster_spec of elasticdl train; copied to /cluster_spec.",
)
@click.option(
    "--local_pkg_path",
    "--local_pkg_dir",
    "local_pkg_path",
    type=click.Path(path_type=Path),
    help="A wheel or a folder of wheels to install, such as dist after `make wheel`.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing Dockerfile.")
def init(
    base_image: str,
    model_zoo: Path,
    extra_pypi_index: str,
    cluster_spec: Path | None,
    local_pkg_path: Path | None,
    overwrite: bool,
) -> None:
    """Write a Dockerfile for the model files into this folder.

    \b
    Example:
      elasticdl zoo init --model_zoo=model_zoo
      elasticdl zoo build --image=registry/elasticdl:ctr .
      elasticdl zoo push registry/elasticdl:ctr
    """  # noqa: D301 - the backspace is click's mark for lines that it must not join
    folder = Path.cwd()
    contents = _contents(
        folder, base_image, model_zoo, extra_pypi_index, cluster_spec, local_pkg_path
    )
    path = folder / "Dockerfile"
    text = dockerfile(contents, STOCK_IMAGE)
    # The user may have edited the Dockerfile, so it is not replaced silently.
    if path.exists() and path.read_text() != text and not overwrite:
        raise ConfigError(f"{path}: exists, with another content; give --overwrite to replace it")
    path.write_text(text)
    for link in _links_out_of(model_zoo):
        click.echo(
            f"note: {link} is a link to {link.readlink()}, which will not be in the image: only "
            "the link is copied; replace it by the files",
            err=True,
        )
    click.echo(f"wrote {path.name}, read it; elasticdl zoo build --image=NAME . builds the image")
    ignored = folder / ".dockerignore"
    # A .dockerignore of the user may have rules for other images, so it is never replaced.
    if not ignored.exists():
        ignored.write_text(dockerignore(contents))
        click.echo(f"wrote {ignored.name}: the files that the builder of the image does not get")
    elif ignored.read_text() != dockerignore(contents):
        click.echo(
            f"note: {ignored.name} exists and is kept; it must not exclude what the Dockerfile "
            "copies, and should exclude data and keys",
            err=True,
        )


@zoo.command()
@click.option("--image", required=True, help="Name of the image: registry/name:tag.")
@click.argument("path", type=click.Path(path_type=Path), default=".")
def build(image: str, path: Path) -> int:
    """Build an image from the Dockerfile in the folder PATH (by default, this folder).

    The command uses docker if it is installed, otherwise podman, otherwise buildah.
    """
    _check_image("--image", image)
    if not (path / "Dockerfile").is_file():
        raise ConfigError(
            f"{path}: expected a folder with a Dockerfile, found none; elasticdl zoo init writes it"
        )
    engine = container_engine.find()
    code = container_engine.run(container_engine.build_command(engine, image, path))
    if code == 0:
        click.echo(f"{engine} built {image}; elasticdl zoo push {image} sends it to its registry")
    return _ended(engine, "build", code)


@zoo.command()
@click.argument("image")
def push(image: str) -> int:
    """Push IMAGE to the registry in its name.

    The command uses the same engine as `zoo build`. First log in with the engine's own command,
    such as docker login REGISTRY.
    """
    _check_image("IMAGE", image)
    engine = container_engine.find()
    code = container_engine.run(container_engine.push_command(engine, image))
    if code == 0:
        click.echo(
            f"pushed; elasticdl train --image_name={image} --model_zoo={MODEL_DIR} ... uses it"
        )
    return _ended(engine, "push", code)


def _ended(engine: str, verb: str, code: int) -> int:
    if code != 0:
        click.echo(f"error: {engine} {verb} ended with exit code {code}; see above", err=True)
    return code


def _contents(
    folder: Path,
    base_image: str,
    model_zoo: Path,
    extra_pypi_index: str,
    cluster_spec: Path | None,
    local_pkg_path: Path | None,
) -> Contents:
    _check_image("--base_image", base_image)
    _check_index(extra_pypi_index)
    if not model_zoo.is_dir():
        raise ConfigError(f"--model_zoo: expected a folder, found none at {model_zoo}")
    if cluster_spec is not None and not cluster_spec.is_file():
        raise ConfigError(f"--cluster_spec: expected a file, found none at {cluster_spec}")
    return Contents(
        base_image=base_image,
        model_zoo=_inside(folder, "--model_zoo", model_zoo),
        has_requirements=(model_zoo / "requirements.txt").is_file(),
        extra_pypi_index=extra_pypi_index,
        cluster_spec=_inside(folder, "--cluster_spec", cluster_spec) if cluster_spec else "",
        packages=tuple(
            _inside(folder, "--local_pkg_path", wheel) for wheel in _wheels(local_pkg_path)
        ),
    )


def _links_out_of(model_zoo: Path) -> Iterator[Path]:
    """Yield the links in a model folder that name nothing in the image, where the folder moves."""
    whole = model_zoo.resolve()
    for folder, folders, files in os.walk(model_zoo):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(folder, name) for name in (*folders, *sorted(files)) if name[0] != "."):
            if path.is_symlink() and (
                path.readlink().is_absolute() or not path.resolve().is_relative_to(whole)
            ):
                yield path


def _wheels(path: Path | None) -> list[Path]:
    """Return the wheels in --local_pkg_path."""
    if path is None:
        return []
    wheels = [path] if path.is_file() and path.suffix == ".whl" else sorted(path.glob("*.whl"))
    if not wheels:
        raise ConfigError(
            f"--local_pkg_path={path}: expected a wheel (*.whl) or a folder of wheels, found none; "
            "`make wheel` makes elasticdl's, in dist"
        )
    own = [wheel.name for wheel in wheels if is_elasticdl(wheel.name)]
    if len(own) > 1:  # `make wheel` writes one for each processor
        foreign = {name for name in own if not is_for(platform.machine(), name)}
        wheels = [wheel for wheel in wheels if wheel.name not in foreign]
        own = [name for name in own if name not in foreign]
    if len(own) > 1:
        raise ConfigError(
            f"--local_pkg_path={path}: expected one wheel of elasticdl, found {', '.join(own)}; "
            "name the one to install"
        )
    return wheels


def _inside(folder: Path, flag: str, path: Path) -> str:
    """Return a path in the Dockerfile's form; an engine sees only the folder of the Dockerfile."""
    try:
        place = path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        raise ConfigError(
            f"{flag}={path}: expected a path below {folder}, where the Dockerfile is written, "
            "because nothing else can be copied into the image: run in a folder above it, or copy "
            "it here"
        ) from None
    if not _PLAIN_PATH.fullmatch(place):
        raise ConfigError(
            f"{flag}={path}: a Dockerfile would read this path otherwise: expected letters, "
            "digits and . _ - + = , @ ~ alone; rename it"
        )
    return place


def _check_image(flag: str, image: str) -> None:
    if not _IMAGE.fullmatch(image):
        raise ConfigError(
            f"{flag}: expected the name of an image, such as registry/name:tag, found {image!r}"
        )


def _check_index(url: str) -> None:
    if not url:
        return
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\s$\\]", url):
        raise ConfigError(f"--extra_pypi_index: expected an http or https URL, found {url!r}")
    if parts.username or parts.password:
        raise ConfigError(
            "--extra_pypi_index: the URL has a user or a password, which everybody who gets the "
            "image could read: expected a URL without; use an index that asks for none, or give "
            "the wheels by --local_pkg_path"
        )
