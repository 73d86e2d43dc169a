"""Renews the certificate of a process while it runs.

A certificate has a short life (a day by default), so a stolen one is soon useless. A thread asks
for the next certificate when a third of the life is left. The master signs it and takes only the
new key from the request. New connections use the new files; open connections go on.

The waiting time is measured by a clock that cannot be set. The clock of the machine only gives the
age of the first certificate. If that clock is set by more than an hour, the process asks for a
new certificate at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elasticdl.errors import ElasticdlError
from elasticdl.runtime.background import Background
from elasticdl.runtime.credentials.files import TlsFiles, write_private

log = logging.getLogger(__name__)

_FIRST_LOOK_SECONDS = 10.0  # a process that starts has other work than to import cryptography
_RETRY_SHARE = 0.05  # part of a certificate's life before another try
_SHORTEST_PAUSE_SECONDS = 0.2
_LOOK_SECONDS = 60.0  # between checks whether the machine's clock was set
_STEP_SECONDS = 3600.0


def pause_seconds(now: float, expires: float, life_seconds: float) -> float:
    """Return the time to wait before a renewal: until a third of the certificate's life is left.

    The result is 0 if that time is over. If the clock was set back, a certificate seems to come
    from the future; then it counts as new.
    """
    return min(max(0.0, expires - life_seconds / 3 - now), life_seconds * 2 / 3)


class Renewal(Background):
    """A context manager that renews a certificate during its block."""

    def __init__(
        self,
        files: TlsFiles,
        name: str,
        sign: Callable[[bytes], bytes],
        life_seconds: float,
    ) -> None:
        """Prepare to renew.

        Args:
            files: Certificate and key are in one file, which each renewal replaces.
            name: The name of the process.
            sign: Function from a request in PEM to a certificate in PEM. If it raises
                ElasticdlError, it is called again later.
            life_seconds: The life of a certificate.
        """
        super().__init__("certificate")
        self._files = files
        self._name = name
        self._sign = sign
        self._life_seconds = life_seconds

    def renew(self) -> None:
        """Replace key and certificate now.

        Raises:
            ElasticdlError: The request was not signed.
            OSError: The file cannot be written.
        """
        from elasticdl.runtime.credentials.authority import make_request

        key, request = make_request(self._name)
        write_private(self._files.certificate, self._sign(request) + key)
        log.info("the certificate of %s was renewed", self._name)

    def _run(self) -> None:
        retry_seconds = max(_SHORTEST_PAUSE_SECONDS, self._life_seconds * _RETRY_SHARE)
        first_look = min(_FIRST_LOOK_SECONDS, self._life_seconds * _RETRY_SHARE)
        if self._stop.wait(first_look) or not self._files.certificate.exists():
            return  # the folder of a job that is over may be gone
        due, clock = time.monotonic() + self._until_due(), _clock()
        while not self._stop.wait(min(max(0.0, due - time.monotonic()), _LOOK_SECONDS)):
            was_set = abs(_clock() - clock) > _STEP_SECONDS
            if time.monotonic() < due and not was_set:
                continue
            clock = _clock()
            try:
                self.renew()
                wait = max(_SHORTEST_PAUSE_SECONDS, self._life_seconds * 2 / 3)
            except (ElasticdlError, OSError) as error:
                log.warning("the certificate of %s was not renewed: %s", self._name, error)
                wait = retry_seconds
            due = time.monotonic() + wait

    def _until_due(self) -> float:
        from elasticdl.runtime.credentials.authority import expiry

        try:
            expires = expiry(self._files.certificate.read_bytes())
        except (ElasticdlError, OSError) as error:
            log.warning("%s: %s; a new one is made", self._files.certificate, error)
            return 0.0
        return pause_seconds(time.time(), expires, self._life_seconds)


def _clock() -> float:
    """Return a value that changes only when the machine's clock is set."""
    return time.time() - time.monotonic()
