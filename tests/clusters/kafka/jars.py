"""Fetches the jars of Kafka from Maven, and says where they lie.

`kafka.xml` names the version. The jars lie outside the tree, in a folder named after the hash of
`kafka.xml`, so that clones share them and a new version never meets an old one.

    python -m tests.clusters.kafka.jars
    python -m tests.clusters.kafka.jars --if-possible  # for tests, which are skipped without it
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

_LIST = Path(__file__).with_name("kafka.xml")
_FETCH_SECONDS = 600.0
_TOOLS = "apt-get install openjdk-17-jre-headless maven"


def folder() -> Path:
    """Return where the jars lie, or will lie."""
    digest = hashlib.sha256(_LIST.read_bytes()).hexdigest()[:12]
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "elasticdl" / f"kafka-{digest}"


def missing() -> str:
    """Return why no broker can be run, in words for a skipped test, or an empty string."""
    if shutil.which("java") is None:
        return f"java is missing: Kafka needs Java 17; on Debian 12: {_TOOLS}"
    return "" if folder().is_dir() else "Kafka is not fetched: run `make kafka`"


def fetch() -> Path:
    """Fetch the jars, 43 MB, if they are not there; return their folder."""
    jars = folder()
    jars.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{jars}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if jars.is_dir():
            return jars
        print(f"Fetching Kafka into {jars} ...", flush=True)
        partial = Path(f"{jars}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = ["mvn", "--quiet", "--batch-mode", f"--file={_LIST}"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        subprocess.run(command, check=True, timeout=_FETCH_SECONDS)
        partial.rename(jars)
    return jars


def main() -> int:
    """Fetch what is missing; or say what Kafka lacks here, an error without `--if-possible`."""
    is_error = "--if-possible" not in sys.argv[1:]
    lacking = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if folder().is_dir() and "java" not in lacking:
        return 0
    if lacking:
        what = f"{' and '.join(lacking)} not found; on Debian 12: {_TOOLS}"
    else:
        try:
            print(fetch())
            return 0
        except (subprocess.SubprocessError, OSError) as error:
            what = f"Kafka cannot be fetched: {error}"
    print(what if is_error else f"Tests on Kafka are skipped. {what}")
    return int(is_error)


if __name__ == "__main__":
    sys.exit(main())
