"""Makes the page of a job, and the metrics of a process.

The packages for Prometheus are imported only then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.job import Progress, Role, Usage
from elasticdl.observe.page import JobPage
from elasticdl.runtime.credentials.files import TlsFiles
from elasticdl.runtime.process import ProcessArguments


class _Pages:
    """The `elasticdl.observe.page.Pages` of this package."""

    def page(self, job_dir: Path, token: bytes, config: JobConfig, tls: TlsFiles | None) -> JobPage:
        from elasticdl.packages.page.job_page import ServedPage

        return ServedPage(job_dir, token, config, tls)

    def serving(
        self,
        arguments: ProcessArguments,
        role: Role,
        usage: Callable[[], Usage],
        progress: Callable[[], Progress] | None,
        stats: Callable[[], str] | None,
    ) -> contextlib.AbstractContextManager[None]:
        from elasticdl.packages.page import own_metrics

        return own_metrics.serving(
            arguments.config,
            arguments.job_dir,
            arguments.token,
            role,
            arguments.index,
            own_metrics.OwnMetrics(usage, progress, stats),
            arguments.tls.as_tuple()[1:] if arguments.tls else None,
        )


PAGES = _Pages()
