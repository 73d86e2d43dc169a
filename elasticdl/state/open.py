"""Opens the journal that `--state` names."""

from __future__ import annotations

import re
from pathlib import Path

from elasticdl import registry
from elasticdl.errors import ConfigError
from elasticdl.runtime.proc import boot_id
from elasticdl.settings.cluster import JOURNAL_FILE
from elasticdl.state.base import JournalKind, State
from elasticdl.state.sqlite import SqliteState

DEFAULT_FILE = JOURNAL_FILE
_SQLITE = re.compile(r"sqlite://(?P<path>/.+)")


def check_state(url: str | None) -> list[str]:
    """Check that a journal of this kind can be opened; the check opens nothing.

    Returns what a user should know of the journal, one sentence each.

    Raises:
        ConfigError: The URL is of an unknown kind, or needs a package that is not installed.
    """
    if url is None or _SQLITE.fullmatch(url):
        return []
    return _kind_of(url).check(url)


def state_file(url: str | None, job_dir: Path) -> Path | None:
    """Return the file of a journal; None if the journal is not in a file."""
    if url is None:
        return job_dir / DEFAULT_FILE
    found = _SQLITE.fullmatch(url)
    return Path(found["path"]) if found else None


def system_of(url: str | None) -> str:
    """Return the system that must run on so that a journal keeps all facts it was ever given.

    A file may lose its last facts when this machine loses power; a journal of another kind loses
    none.
    """
    return boot_id() if url is None or _SQLITE.fullmatch(url) else url.partition("?")[0]


def open_state(url: str | None, job_dir: Path, patience_seconds: float = 0.0) -> State:
    """Open the journal of a job.

    Args:
        url: What `--state` names; None: a file in the job's folder.
        job_dir: The job's folder.
        patience_seconds: How long to wait for a leaving master that still has the file open.

    Raises:
        ConfigError: See `check_state`.
        StateError: The journal is damaged, or another master has it.
    """
    check_state(url)
    path = state_file(url, job_dir)
    if path is not None:
        return SqliteState(path, patience_seconds)
    assert url is not None
    return _kind_of(url).open(url)


def _kind_of(url: str) -> JournalKind:
    """Return the kind of journal, brought by a package, that a URL names.

    Raises:
        ConfigError: No package brings it.
    """
    kinds: list[JournalKind] = list(registry.brought("journals").values())
    for kind in kinds:
        if kind.matches(url):
            return kind
    forms = " or ".join(["sqlite:///PATH", *(kind.form for kind in kinds)])
    raise ConfigError(f"--state: expected {forms}, found {url!r}")
