"""Unpacks bodies in gzip or deflate, and gives memory back."""

from __future__ import annotations

import ctypes
import sys
import zlib

from elasticdl.errors import DataError, RequestTooLargeError

_GZIP_OR_ZLIB = 47  # which of both is found out


class Unpacking:
    """Unpacks a body piece by piece, and never to more bytes than allowed."""

    def __init__(self, encoding: str, most: int) -> None:
        """Begin.

        Args:
            encoding: The value of `Content-Encoding`.
            most: The largest number of bytes of a body.

        Raises:
            DataError: The encoding is not supported.
        """
        self._most = most
        self._name = encoding.strip().lower()
        if self._name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise DataError(
                f"expected a Content-Encoding of gzip or deflate, or none, found {encoding[:40]!r}"
            )
        self._is_packed = self._name not in ("", "identity")
        self._packer = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._is_begun = False

    def __call__(self, piece: bytes, num_before: int) -> bytes:
        """Return a piece, unpacked.

        Raises:
            RequestTooLargeError: The body is larger than allowed. DataError: The piece is not in
                this encoding.
        """
        if not self._is_packed:
            return piece
        found = bytearray()
        try:
            while piece:
                if self._packer.eof:  # another part follows
                    self._packer = zlib.decompressobj(_GZIP_OR_ZLIB)
                room = self._most - num_before - len(found)
                # One byte more than allowed is enough to see that the body is too large.
                found += self._packer.decompress(piece, room + 1)
                self._is_begun = True
                if len(found) + num_before > self._most:
                    raise RequestTooLargeError(
                        f"expected at most {self._most:,} bytes (--max_request_bytes), found a "
                        "request that unpacks to more"
                    )
                piece = self._packer.unused_data
        except zlib.error as error:
            raise DataError(f"the request is not packed by {self._name}: {error}") from error
        return bytes(found)

    def finish(self) -> None:
        """Check that the body is complete.

        Raises:
            DataError: The body ends too early.
        """
        if self._is_begun and not self._packer.eof:
            raise DataError(f"the request is packed by {self._name}, and ends too early")


def give_back_memory() -> None:
    """Give unused memory of this process back to the system, if that is possible."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
