"""What `--export_every` says: a time, or a number of updates."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Every:
    """When the next version of an export is due: after so many seconds, or so many updates."""

    seconds: float = 0.0
    updates: int = 0

    @classmethod
    def of(cls, text: str) -> Every:
        """Read the flag.

        Raises:
            ValueError: It is neither a time nor a number.
        """
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(s|m|h)?", text.strip(), re.ASCII)
        number = float(found.group(1)) if found else 0.0
        unit = found.group(2) if found else None
        if number <= 0 or (unit is None and number != int(number)):
            raise ValueError(
                f"--export_every={text}: expected a time such as 30s, 5m or 1h, or a number of "
                "updates"
            )
        if unit is None:
            return cls(updates=int(number))
        return cls(seconds=number * _UNITS[unit])
