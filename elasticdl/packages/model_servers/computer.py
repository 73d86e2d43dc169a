"""Computes the outputs of a window in a model server, and the gradients within a tower."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticdl.backends.base import Float32, Int64, Lookup
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.towers import Tower
from elasticdl.packages.model_servers.tower_rows import TowerGradients, dense_part
from elasticdl.worker.row_source import SiteGradient

_LIMIT_BYTES = 1024 * 1024 * 1024
_FIRST_ROWS = 1024
_PLACE_BYTES = 110  # of an id and its place in a dict


class FrozenRows:
    """The rows of one table that were fetched; rows beyond the limit are not kept."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._places: dict[int, int] = {}
        self._rows: Float32 = np.zeros((0, 0), np.float32)

    def missing(self, ids: Int64) -> Int64:
        """Return which of some ids must be fetched, each once."""
        unique = np.unique(ids).tolist()
        return np.array([key for key in unique if key not in self._places], np.int64)

    def keep(self, ids: Int64, rows: Float32) -> None:
        """Keep the rows of ids that were missing, shape (n, dim), while there is room."""
        room = self._limit_bytes // (4 * rows.shape[1] + _PLACE_BYTES) - len(self._places)
        ids, rows = ids[: max(0, room)], rows[: max(0, room)]
        start, end = len(self._places), len(self._places) + len(ids)
        if end > len(self._rows):
            grown = np.zeros((max(end, 2 * start, _FIRST_ROWS), rows.shape[1]), np.float32)
            grown[:start] = self._rows[:start] if start else 0.0
            self._rows = grown
        self._rows[start:end] = rows
        self._places |= {key: start + k for k, key in enumerate(ids.tolist())}

    def rows_of(self, ids: Int64, fetched: Int64, rows: Float32) -> Float32:
        """Return the row of each id, shape `ids.shape + (dim,)`.

        Args:
            ids: Ids of any shape.
            fetched: The ids that were fetched just now, in order.
            rows: The rows of `fetched`, shape (n, dim).
        """
        flat = ids.ravel()
        found = np.empty((flat.size, rows.shape[1]), np.float32)
        places = np.array([self._places.get(key, -1) for key in flat.tolist()], np.int64)
        is_kept = places >= 0
        if is_kept.any():
            found[is_kept] = self._rows[places[is_kept]]
        found[~is_kept] = rows[np.searchsorted(fetched, flat[~is_kept])]
        return found.reshape(*ids.shape, rows.shape[1])


_KEPT_BYTES = 256 * 1024 * 1024
_KEPT_WINDOWS = 64
_SAME = 1e-3  # of outputs of one id, computed in two ways


@dataclass(frozen=True, slots=True)
class _Kept:
    """The inputs of a window: they save a pull when its gradients are computed.

    dense: Empty if workers bring the dense parameters.
    """

    tower: int
    ids: Int64
    rows: Sequence[Float32]
    dense: Float32

    @property
    def num_bytes(self) -> int:
        """Return the bytes that it holds."""
        return self.dense.nbytes + sum(rows.nbytes for rows in self.rows)

    def rows_of(self, ids: Int64) -> list[Float32] | None:
        """Return the rows of some ids; None if they cannot be separated from other rows."""
        if any(rows.shape[0] != len(self.ids) for rows in self.rows):
            return None
        places = np.searchsorted(self.ids, ids)
        return [rows[places] for rows in self.rows]


class TowerComputer:
    """Computes towers on the newest parameters, in one thread.

    If the workers have the dense parameters, they send those of the tower with a request.

    Args:
        towers: The towers of the model.
        are_trained: By table, whether its rows have gradients or must be fetched each time.
        pull: Fetches rows and vectors.
    """

    def __init__(self, towers: Sequence[Tower], are_trained: Sequence[bool], pull: Lookup) -> None:
        self._towers = towers
        self._are_trained = are_trained
        self._pull = pull
        self._frozen = {
            table: FrozenRows() for table, is_trained in enumerate(are_trained) if not is_trained
        }
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        # The first number is random, so that a window of another server is not taken for one of
        # this server.
        self._next = 1 + secrets.randbits(62)
        self._checked: set[int] = set()

    def forward(
        self, tower: int, training: bool, ids: Int64, brought: Float32 | None = None
    ) -> tuple[Float32, int]:
        """Return the outputs of ids, and the number by which `backward` finds this window.

        Args:
            tower: Which tower.
            training: Whether it is trained; rows that are missing are created then.
            ids: Shape (n,), each once, in order.
            brought: The tower's dense parameters; None: the ps replicas have them.
        """
        computes = self._towers[tower]
        rows, dense = self._parameters(computes, ids, training, brought)
        outputs = computes.forward(ids, rows, dense, training)
        self._check_each_alone(tower, ids, outputs, training, brought)
        if not training:
            return outputs, 0
        number, self._next = self._next, self._next + 1
        own = dense if brought is None else np.zeros(0, np.float32)
        self._keep(number, _Kept(tower, ids, rows, own))
        return outputs, number

    def backward(
        self,
        tower: int,
        ids: Int64,
        gradients: Float32,
        window: int,
        brought: Float32 | None = None,
    ) -> TowerGradients:
        """Return the gradients within a tower, given the gradients of its outputs.

        Args:
            tower: Which tower.
            ids: Shape (n,), each once, in order.
            gradients: Shape (n, dim).
            window: The window that gave the outputs. If this server does not have it (any more),
                the gradients are computed on the newest parameters.
            brought: The dense parameters that were sent with `forward`.
        """
        computes = self._towers[tower]
        kept = self._kept.get(window)
        rows: Sequence[Float32] | None = None
        if kept is not None and kept.tower == tower and np.isin(ids, kept.ids).all():
            rows, dense = kept.rows_of(ids), kept.dense if brought is None else brought
        if rows is None:
            rows, dense = self._parameters(computes, ids, True, brought)
        of_rows, of_dense = computes.backward(ids, gradients, rows, dense)
        sites = zip(computes.tables, computes.ids(ids), of_rows, strict=True)
        trained = [SiteGradient(*site) for site in sites if self._are_trained[site[0]]]
        return TowerGradients(of_dense, trained)

    def _parameters(
        self, computes: Tower, ids: Int64, training: bool, brought: Float32 | None
    ) -> tuple[Sequence[Float32], Float32]:
        sites = list(zip(computes.tables, computes.ids(ids), strict=True))
        frozen = [self._frozen.get(table) for table, _ in sites]
        wanted = [
            (table, asked if kept is None else kept.missing(asked))
            for (table, asked), kept in zip(sites, frozen, strict=True)
        ]
        pulled = self._pull(wanted, training)
        rows = []
        for (_, asked), (_, missing), kept, found in zip(
            sites, wanted, frozen, pulled.rows, strict=True
        ):
            if kept is None:
                rows.append(found)
                continue
            rows.append(kept.rows_of(asked, missing, found))
            if training:  # an evaluation creates no rows, and reads others in their place
                new = kept.missing(missing)  # fewer, if another site of the table had some
                kept.keep(new, found[np.searchsorted(missing, new)])
        return rows, dense_part(computes, pulled.dense) if brought is None else brought

    def _keep(self, number: int, kept: _Kept) -> None:
        self._kept[number] = kept
        total = sum(each.num_bytes for each in self._kept.values())
        # The newest window is kept even if it is over the limit: its gradients come next.
        while len(self._kept) > 1 and (total > _KEPT_BYTES or len(self._kept) > _KEPT_WINDOWS):
            _, oldest = self._kept.popitem(last=False)
            total -= oldest.num_bytes

    def _check_each_alone(
        self,
        tower: int,
        ids: Int64,
        outputs: Float32,
        training: bool,
        brought: Float32 | None,
    ) -> None:
        """Refuse a tower whose output for an id depends on other ids, until a window was right.

        Ids of several workers are computed together, so one worker would change the outputs of
        another.

        Raises:
            ModelError: The output depends on other ids.
        """
        if tower in self._checked or len(ids) < 2:
            return
        computes = self._towers[tower]
        rows, dense = self._parameters(computes, ids[:1], training, brought)
        alone = computes.forward(ids[:1], rows, dense, training)
        if not np.allclose(alone[0], outputs[0], rtol=_SAME, atol=_SAME, equal_nan=True):
            raise ModelError(
                f"Remote {computes.name!r}: the tower gives id {ids[0]} {alone[0][:3]} alone and "
                f"{outputs[0][:3]} among others; expected a tower that computes each id for "
                "itself, since ids of several workers are computed together"
            )
        self._checked.add(tower)
