"""Reads the notes of updates by workers of `allreduce_recovery.py` and of its peer."""

from __future__ import annotations

from pathlib import Path


class Steps:
    """The notes of workers: the first and the last update of each world."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.num: dict[int, int] = {}

    def read(self) -> None:
        """Take in what is new."""
        for file in self._folder.glob("steps-*"):
            with file.open("rb") as lines:
                lines.seek(self._offsets.get(file, 0))
                found = lines.read()
            whole = found[: found.rfind(b"\n") + 1]
            self._offsets[file] = self._offsets.get(file, 0) + len(whole)
            for line in whole.splitlines():
                time_of_step, number, _ = line.split()
                at, world = float(time_of_step), int(number)
                self.first[world] = min(at, self.first.get(world, at))
                self.last[world] = max(at, self.last.get(world, at))
                self.num[world] = self.num.get(world, 0) + 1

    def first_after(self, world: int) -> float:
        """Return when the first update of a later world was made."""
        return min(at for later, at in self.first.items() if later > world)

    def pause_before(self, world: int) -> float:
        """Return the seconds without an update before the first one of a world, or of a later."""
        first = min(at for later, at in self.first.items() if later >= world)
        return first - max(at for earlier, at in self.last.items() if earlier < world)
