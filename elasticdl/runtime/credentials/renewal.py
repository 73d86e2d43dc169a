"""A process's certificate, renewed while it runs.

Certificates live short (a day, as a rule), so that a stolen one is soon of no use. A thread asks
for the next one when a third of the time is left; whoever signs it (the master, by gRPC) takes
nothing but the new key from the request. New connections take the new files; open ones go on.

The time is that of a clock that nobody sets. The clock of the machine says only how old the
certificate is that the process was started with. If that clock is set by more than an hour, a
certificate by the new time is asked for at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elasticdl.errors import ElasticdlError
from elasticdl.runtime.background import Background
from elasticdl.runtime.credentials.authority import expiry, make_request
from elasticdl.runtime.credentials.files import TlsFiles, write_private

log = logging.getLogger(__name__)

_RETRY_SHARE = 0.05  # of a certificate's life: how soon to try again
_SHORTEST_PAUSE_SECONDS = 0.2
_LOOK_SECONDS = 60.0  # how often to look whether the machine's clock was set
_STEP_SECONDS = 3600.0


def pause_seconds(now: float, expires: float, life_seconds: float) -> float:
    """Return how long to wait before a certificate is renewed: until a third of its life is left.

    One that should be renewed by now is at once. A certificate that seems to be of the future, by
    a clock that was set, is taken for a new one.
    """
    return min(max(0.0, expires - life_seconds / 3 - now), life_seconds * 2 / 3)


class Renewal(Background):
    """Renews a certificate within its block; a context manager."""

    def __init__(
        self,
        files: TlsFiles,
        name: str,
        sign: Callable[[bytes], bytes],
        life_seconds: float,
    ) -> None:
        """Prepare to renew.

        Args:
            files: Certificate and key in one file, which is replaced.
            name: The name of the process.
            sign: Given a request in PEM, returns a certificate in PEM. It may raise
                ElasticdlError; then it is asked again.
            life_seconds: How long a certificate is good.
        """
        super().__init__("certificate")
        self._files = files
        self._name = name
        self._sign = sign
        self._life_seconds = life_seconds

    def renew(self) -> None:
        """Replace key and certificate now.

        Raises:
            ElasticdlError: Nobody signs.
            OSError: The file cannot be written.
        """
        key, request = make_request(self._name)
        write_private(self._files.certificate, self._sign(request) + key)
        log.info("the certificate of %s was renewed", self._name)

    def _run(self) -> None:
        retry_seconds = max(_SHORTEST_PAUSE_SECONDS, self._life_seconds * _RETRY_SHARE)
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
        try:
            expires = expiry(self._files.certificate.read_bytes())
        except (ElasticdlError, OSError) as error:
            log.warning("%s: %s; it is made anew", self._files.certificate, error)
            return 0.0
        return pause_seconds(time.time(), expires, self._life_seconds)


def _clock() -> float:
    """Return what changes when the machine's clock is set."""
    return time.time() - time.monotonic()
