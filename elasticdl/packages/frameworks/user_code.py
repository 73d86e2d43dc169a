"""Errors of the model file's functions: which function raised, and its words, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from elasticdl.errors import ElasticdlError, ModelError, in_short, place_of

_MOST_CHARACTERS = 1000


def user_code(
    what: str,
    on: str | Callable[[], str] = "",
    after: Callable[[Exception], str] | None = None,
) -> UserCode:
    """Return a context for a call of the user's code; an error in it becomes a `ModelError`.

    Errors of elasticdl pass unchanged, as does an exception that is no `Exception`, such as
    `KeyboardInterrupt`.

    Args:
        what: Which code: `loss(labels, predictions)`.
        on: On what it was called, or when; begins with a blank. A function is called in an error.
        after: Makes the end of the message; it is called with the error. None: its place.
    """
    return UserCode(what, on, after)


def no_place(error: Exception) -> str:
    """End a message without the place of the error: it is within a framework."""
    return ""


class UserCode:
    """See `user_code`. A class, since a step has two of them."""

    __slots__ = ("_after", "_on", "_what")

    def __init__(
        self,
        what: str,
        on: str | Callable[[], str],
        after: Callable[[Exception], str] | None,
    ) -> None:
        self._what, self._on, self._after = what, on, after

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An error of elasticdl says already what is wrong and what to do.
        if error is None or isinstance(error, ElasticdlError) or not isinstance(error, Exception):
            return
        said = in_short(error, _MOST_CHARACTERS)
        on = self._on if isinstance(self._on, str) else self._on()
        end = f" ({place_of(error)})" if self._after is None else self._after(error)
        raise ModelError(f"{self._what} raised {type(error).__name__}{on}: {said}{end}") from error
