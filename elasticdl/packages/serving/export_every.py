"""Reads `--export_every`: a time, or a number of updates."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.settings.duration import seconds_in


@dataclass(frozen=True, slots=True)
class Every:
    """The interval between versions of an export: a number of seconds, or of updates."""

    seconds: float = 0.0
    updates: int = 0

    @classmethod
    def of(cls, text: str) -> Every:
        """Read the flag.

        Raises:
            ValueError: The text is neither a time nor a number.
        """
        word = text.strip()
        seconds = seconds_in(word)
        updates = int(word) if word.isascii() and word.isdecimal() else 0
        if not (seconds or updates):
            raise ValueError(
                f"--export_every={text}: expected a time such as 30s, 5m or 1h, or a number of "
                "updates"
            )
        return cls(seconds=seconds or 0.0, updates=updates)
