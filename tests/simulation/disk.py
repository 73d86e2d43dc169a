"""A disk that loses what was not synced, under the real code that writes files.

The code runs as it is, on real files; what it asks of the system is noted within `noting`. When
the machine loses power, `lose_power` undoes a part of what was not synced:

* The names in a folder (made, renamed, removed) are those of some moment, which is not before the
  folder was last synced. Different folders keep different moments.
* The bytes of a file that was not synced are there up to some length.

What Rust writes is taken as synced where it lies, as `edl-store` says (`checkpoint/file.rs`).
"""

import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.clockwork import Died

_REAL = {name: getattr(os, name) for name in ("mkdir", "rename", "replace", "unlink", "rmdir")}
_OPEN, _FSYNC = io.open, os.fsync
_WRITES = frozenset("wax+")


@dataclass(eq=False)
class _Named:
    """A change of the names in a folder. `undo`: given where the thing lies now."""

    path: str
    undo: Callable[[str], None]

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)


class Disk:
    """What was written and not synced. `before`: called before each change, with words for it."""

    def __init__(self, trash: Path, before: Callable[[str], None] = lambda words: None) -> None:
        """Given a folder on the same disk, for what is removed."""
        self._trash, self._look = trash, before
        self._named: list[_Named] = []
        self._unsynced: set[str] = set()  # files
        self._num_removed = 0
        self.is_lying = False
        """Syncs nothing, though it says so: a sabotage."""
        self._killed: Died | None = None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what the code in this block asks of the system."""
        self._killed = None
        self._patch()
        try:
            yield
        finally:
            _restore()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Within `noting`: note nothing in this block, as what is done there is synced."""
        _restore()
        try:
            yield
        finally:
            self._patch()

    def _patch(self) -> None:
        os.fsync, io.open = self._fsync, self._open
        os.mkdir, os.rename, os.replace = self._mkdir, self._rename, self._rename
        os.unlink, os.rmdir = self._unlink, self._rmdir

    def lose_power(self, rng: random.Random) -> None:
        """Undo a part of what was not synced."""
        for path in sorted(self._unsynced):
            if os.path.exists(path):
                os.truncate(path, int(os.path.getsize(path) * rng.choice([0.0, 0.5, 1.0])))
        kept = {name: rng.randrange(1 + len(self._of(name))) for name in sorted(self._folders())}
        for name, count in kept.items():
            for change in self._of(name)[:count]:
                self._named.remove(change)
        while self._named:
            change = self._named.pop()
            if os.path.isdir(change.folder):
                change.undo(change.path)
        self._unsynced.clear()

    @property
    def is_clean(self) -> bool:
        """Whether all is synced."""
        return not self._named and not self._unsynced

    def _folders(self) -> set[str]:
        return {change.folder for change in self._named}

    def _of(self, folder: str) -> list[_Named]:
        return [change for change in self._named if change.folder == folder]

    def _note(self, path: str, undo: Callable[[str], None]) -> None:
        self._named.append(_Named(path, undo))

    def _move(self, source: str, target: str) -> None:
        """Rename, and have what was noted say so."""
        _REAL["rename"](source, target)
        moved = {path for path in self._unsynced if _is_within(path, source)}
        self._unsynced = (self._unsynced - moved) | {target + p[len(source) :] for p in moved}
        for change in self._named:
            if _is_within(change.path, source):
                change.path = target + change.path[len(source) :]

    def _before(self, words: str) -> None:
        """Have things go wrong; of who was killed nothing more happens, whatever it catches."""
        if self._killed is not None:
            raise self._killed
        try:
            self._look(words)
        except Died as died:
            self._killed = died
            raise

    # --- what the code asks ----------------------------------------------------------------------

    def _mkdir(self, path, mode=0o777, *, dir_fd=None):
        path = _absolute(path, dir_fd)
        self._before(f"mkdir {os.path.basename(path)}")
        _REAL["mkdir"](path, mode)
        self._note(path, shutil.rmtree)

    def _open(self, file, mode="r", *rest, **named):
        if isinstance(file, int) or not _WRITES & set(mode):
            return _OPEN(file, mode, *rest, **named)
        path = _absolute(file, None)
        is_new = not os.path.exists(path)
        self._before(f"write {os.path.basename(path)}")
        opened = _OPEN(file, mode, *rest, **named)
        if is_new:
            self._note(path, _REAL["unlink"])
        self._unsynced.add(path)
        return opened

    def _fsync(self, descriptor):
        path = _path_of(descriptor)
        self._before(f"fsync {os.path.basename(path)}")
        if self.is_lying:
            return
        self._unsynced.discard(path)
        self._named = [change for change in self._named if change.folder != path]

    def _rename(self, source, target, *, src_dir_fd=None, dst_dir_fd=None):
        source, target = _absolute(source, src_dir_fd), _absolute(target, dst_dir_fd)
        self._before(f"rename {os.path.basename(source)} to {os.path.basename(target)}")
        over = self._put_aside(target) if os.path.isfile(target) else None
        self._move(source, target)

        def undo(now):
            self._move(now, os.path.join(os.path.dirname(now), os.path.basename(source)))
            if over is not None:
                _REAL["rename"](over, now)

        self._note(target, undo)

    def _unlink(self, path, *, dir_fd=None):
        path = _absolute(path, dir_fd)
        self._before(f"remove {os.path.basename(path)}")
        kept = self._put_aside(path)
        _REAL["unlink"](path)
        self._unsynced.discard(path)
        self._note(path, lambda now: _REAL["rename"](kept, now))

    def _rmdir(self, path, *, dir_fd=None):
        path = _absolute(path, dir_fd)
        self._before(f"rmdir {os.path.basename(path)}")
        _REAL["rmdir"](path)
        # They are of this folder, and not of another one that is given its name.
        inside = [change for change in self._named if _is_within(change.folder, path)]
        self._named = [change for change in self._named if change not in inside]

        def undo(now):
            _REAL["mkdir"](now)
            for change in reversed(inside):
                change.undo(now + change.path[len(path) :])

        self._note(path, undo)

    def _put_aside(self, path: str) -> str:
        self._num_removed += 1
        kept = os.fspath(self._trash / str(self._num_removed))
        self._trash.mkdir(exist_ok=True)
        os.link(path, kept)
        return kept


def _restore() -> None:
    os.fsync, io.open = _FSYNC, _OPEN
    for name, function in _REAL.items():
        setattr(os, name, function)


def full(words: str) -> OSError:
    """Return what a full disk answers."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), words)


def _absolute(path, dir_fd) -> str:
    path = os.fspath(path)
    return os.path.join(_path_of(dir_fd), path) if dir_fd is not None else os.path.abspath(path)


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
