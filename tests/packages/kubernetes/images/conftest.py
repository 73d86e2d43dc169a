"""A Docker engine and a registry of the tests' own; both end with the session.

No image is pulled: the base image is a root file system of Debian's packages, which
`make test-only WHAT=images` makes.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BASE_IMAGE = "test/python:3.11"
STOCK_IMAGE = "test/elasticdl:stock"
MINUTES = 60.0
INSTALL = "apt-get install --no-install-recommends docker.io iptables docker-registry mmdebstrap"


@dataclass(frozen=True)
class Docker:
    """A Docker engine; `environment` is what its clients run with."""

    environment: dict[str, str]

    def run(self, *words: str, minutes: float = 10) -> str:
        """Run `docker WORDS`; return what it printed."""
        done = self.try_command(["docker", *words], minutes=minutes)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def try_command(
        self, command: Sequence[str], folder: Path | None = None, minutes: float = 10
    ) -> subprocess.CompletedProcess[str]:
        """Run a client, whatever becomes of it."""
        return subprocess.run(
            command,
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=minutes * MINUTES,
        )


@contextmanager
def daemon(command: Sequence[str], ready: str) -> Iterator[str]:
    """Run a daemon from its line with the pattern `ready`, which is given, to SIGTERM."""
    last = deque(maxlen=20)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            for line in process.stdout:
                last.append(line)
                if re.search(ready, line):
                    break
            else:
                pytest.fail(f"{command[0]} ended before it was ready: {''.join(last)}")
            reader = threading.Thread(target=last.extend, args=(process.stdout,), daemon=True)
            reader.start()
            yield line
        finally:
            process.terminate()
            process.wait(timeout=MINUTES)


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    if os.geteuid() != 0:
        pytest.skip("dockerd needs root")
    for program in ("docker", "dockerd", "docker-registry"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not there: {INSTALL}")
    home = Path(tempfile.mkdtemp(prefix="edl-docker-"))  # short: the path of a socket is limited
    command = [
        "dockerd",
        "--storage-driver=overlay2",
        "--exec-opt=native.cgroupdriver=cgroupfs",
        f"--data-root={home}/data",
        f"--exec-root={home}/exec",
        f"--pidfile={home}/pid",
        f"--host=unix://{home}/socket",
    ]
    try:
        with daemon(command, ready="API listen on"):
            # Without BuildKit: Debian's engine builds with its own, old builder.
            own = {"DOCKER_HOST": f"unix://{home}/socket", "DOCKER_BUILDKIT": "0"}
            yield Docker(os.environ | own)
    finally:
        # What dockerd leaves mounted when it ends.
        subprocess.run(
            ["umount", home / "exec" / "netns" / "default"], check=False, stderr=subprocess.DEVNULL
        )
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def registry(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry on loopback, which Docker takes without TLS."""
    folder = tmp_path_factory.mktemp("registry")
    settings = folder / "config.yml"
    settings.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        "http: {addr: '127.0.0.1:0'}\n"
    )
    command = ["docker-registry", "serve", str(settings)]
    with daemon(command, ready=r"listening on 127\.0\.0\.1:\d+") as line:
        yield re.search(r"127\.0\.0\.1:\d+", line)[0]


@pytest.fixture(scope="session")
def base_image(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian with Python, and with the certificates that this machine trusts."""
    root_fs = os.environ.get("ELASTICDL_TEST_ROOT_FS", "")
    if not Path(root_fs).is_file():
        pytest.skip("ELASTICDL_TEST_ROOT_FS names no file: run `make test-only WHAT=images`")
    docker.run("import", root_fs, "test/debian:12")
    folder = tmp_path_factory.mktemp("base")
    shutil.copy(CERTIFICATES, folder / "certificates.crt")
    (folder / "Dockerfile").write_text(
        f"FROM test/debian:12\nCOPY certificates.crt {CERTIFICATES}\nENV PIP_CERT={CERTIFICATES}\n"
    )
    docker.run("build", f"--tag={BASE_IMAGE}", str(folder))
    return BASE_IMAGE


@pytest.fixture(scope="session")
def wheel() -> Path:
    wheels = sorted((ROOT / "dist").glob(f"elasticdl_train-*_{platform.machine()}.whl"))
    if not wheels:
        pytest.skip("dist has no wheel: make wheel")
    return wheels[-1]


@pytest.fixture(scope="session")
def stock_image(docker: Docker, base_image: str, wheel: Path) -> str:
    """The image of `scripts/image.sh`, without TensorFlow, which takes a gigabyte."""
    command = [
        "env",
        "ENGINE=docker",
        f"BASE_IMAGE={base_image}",
        "EXTRAS=kubernetes",
        f"IMAGE={STOCK_IMAGE}",
        "scripts/image.sh",
    ]
    built = docker.try_command(command, ROOT, minutes=15)
    assert built.returncode == 0, built.stdout + built.stderr
    return STOCK_IMAGE
