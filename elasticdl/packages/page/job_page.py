"""The job's page, as its master serves it: at the port of the master before it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Event, Role
from elasticdl.observe.events import FOLDER, newest, read_events
from elasticdl.packages.page.dashboard import Dashboard, page_url
from elasticdl.packages.page.token_server import page_token
from elasticdl.runtime import process
from elasticdl.runtime.credentials.files import TlsFiles

_MOST_FILES, _MOST_BYTES = 400, 128 << 20
"""The number and the bytes of event logs that a new master reads to learn what was before it. If
there are more, it reads only its own facts: all logs would keep it busy for long, with a file open
for each process."""

_MOST_FACTS = 10_000
_TELL_SECONDS = 3.0  # for an open page to hear of the end: it asks each second


def past_events(job_dir: Path) -> Iterable[Event]:
    """Return the events of a job up to now."""
    files = list((job_dir / FOLDER).glob("*.jsonl"))
    if len(files) <= _MOST_FILES and sum(path.stat().st_size for path in files) <= _MOST_BYTES:
        return read_events(job_dir)
    return newest(job_dir, Role.MASTER, 0, _MOST_FACTS)


class ServedPage:
    """The `elasticdl.observe.page.JobPage` that a browser shows."""

    def __init__(
        self, job_dir: Path, token: bytes, config: JobConfig, tls: TlsFiles | None = None
    ) -> None:
        """Prepare to serve the page of the job in a folder.

        Args:
            job_dir: The folder.
            token: The job's secret.
            config: The job's settings.
            tls: The master's key and certificates, for clients that ask for metrics of its pod.
        """
        self._config, self._job_dir = config, job_dir
        self._secret, self._tls = token, tls
        self._ends = contextlib.ExitStack()
        self._file = job_dir / process.PAGE_FILE
        self._token = page_token(token)
        self._dashboard = Dashboard(self._token, config.shown(), lambda: past_events(job_dir))

    def put(self, event: Event) -> None:
        """Take in an event."""
        self._dashboard.put(event)

    def start(self, port: int) -> str:
        """Serve, and write where into the job's folder; return the address; blocks.

        Raises:
            ConfigError: The port is taken, or a package is missing.
        """
        before = 0 if port else self._port_before()
        try:
            self._dashboard.start(port or before)
        except ConfigError:
            if not before:
                raise
            # Another process may have the port of the master before. Any port will do.
            self._dashboard.start(0)
        address = self._dashboard.address
        words = {"address": address, "url": page_url(address, self._token)}
        with contextlib.suppress(OSError):  # then it is not printed with its token
            process.write_whole(self._file, json.dumps(words), mode=0o600)
        if self._config.launcher.metrics == "own" and self._config.seeing.metrics_port is not None:
            self._ends.enter_context(self._metrics_of_pod())
        return address

    def _metrics_of_pod(self) -> contextlib.AbstractContextManager[None]:
        """Have Prometheus find the job's metrics as it finds those of its other pods."""
        from elasticdl.packages.page import own_metrics

        return own_metrics.serving(
            self._config,
            self._job_dir,
            self._secret,
            Role.MASTER,
            0,
            own_metrics.JobMetrics(self._dashboard.job_metrics),
            self._tls.as_tuple()[1:] if self._tls is not None else None,
        )

    def _port_before(self) -> int:
        """Return the port of the master before, so that open pages find this one; 0 if none."""
        try:
            address = json.loads(self._file.read_text())["address"]
            return int(address.rpartition(":")[2])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def tell_end(self) -> None:
        """Wait until a page that is open knows that the job is over, for some seconds at most."""
        self._dashboard.tell_end(_TELL_SECONDS)

    def close(self) -> None:
        """Stop serving."""
        self._ends.close()
        self._dashboard.close()
