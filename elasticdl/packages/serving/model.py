"""Scores with a version of an export: ids, look-ups, outputs. For one thread at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.backends.base import Float32, Int64
from elasticdl.backends.served import ServedModel, load_served
from elasticdl.errors import DataError, ExportError, RequestTooLargeError
from elasticdl.packages.serving.versions import Version

Arrays = Mapping[str, NDArray[Any]]
_MOST_ROW_BYTES = 512 << 20  # that a request may look up


@dataclass(frozen=True, slots=True)
class Scorer:
    """A version and its program."""

    version: Version
    program: ServedModel

    @classmethod
    def of(cls, version: Version, before: Scorer | None) -> Scorer:
        """Return a scorer of a version, which scores from its `ready` on.

        Any thread may call it while `before` scores.

        Raises:
            ExportError: The program cannot be served.
        """
        # The same program can take the parameters of each version, and loading a program takes
        # seconds.
        if before is not None and version.manifest.program == before.version.manifest.program:
            return cls(version, before.program)
        return cls(version, load_served(version.program))

    def ready(self) -> None:
        """Give the program the parameters of this version.

        Raises:
            ExportError: They are not those of the program.
        """
        self.program.set_parameters(self.version.dense, self.version.state)

    def score(self, features: Arrays) -> dict[str, NDArray[Any]]:
        """Return the outputs of some records, by name.

        Raises:
            RequestTooLargeError: The rows of all ids would take too many bytes. DataError: A record
                cannot be scored; names the first such record. ExportError: An output has no value
                for each record.
        """
        try:
            return self._score(features)
        except RequestTooLargeError:
            raise
        except DataError as error:
            raise self._of_record(features, error) from error

    def _score(self, features: Arrays) -> dict[str, NDArray[Any]]:
        ids = self.program.ids(features)
        sites = [self._site(site) for site in range(len(ids))]
        num_bytes = sum(i.size * table["dim"] * 4 for i, (_, table) in zip(ids, sites, strict=True))
        # A few ids of large rows fit a small request, so the rows are counted before they are read.
        if num_bytes > _MOST_ROW_BYTES:
            raise RequestTooLargeError(
                f"the rows of these records have {num_bytes:,} bytes, expected at most "
                f"{_MOST_ROW_BYTES:,}; ask for fewer records at once"
            )
        rows = [self._rows(*site, of_site) for site, of_site in zip(sites, ids, strict=True)]
        outputs = self.program.score(features, rows)
        number = len(next(iter(features.values())))
        for name, values in outputs.items():
            if values.shape[:1] != (number,):
                raise ExportError(
                    f"output {name!r} of the model has the shape {list(values.shape)} for {number} "
                    "records, expected a value for each record; a model that is served may return "
                    "no other outputs"
                )
        return outputs

    def _site(self, site: int) -> tuple[int, Mapping[str, Any]]:
        """Return the number of a lookup's table, and the table."""
        name = self.program.lookups[site]
        tables = self.version.manifest.tables
        return next((k, table) for k, table in enumerate(tables) if table["name"] == name)

    def _rows(self, number: int, table: Mapping[str, Any], ids: Int64) -> Float32:
        below = self.program.num_ids.get(table["name"])
        if ids.size and ((low := ids.min()) < 0 or (below is not None and ids.max() >= below)):
            raise DataError(
                f"Embedding {table['name']!r}: expected ids from 0 to below {below or '2**63'}, "
                f"found {low if low < 0 else ids.max()}"
            )
        out = np.empty((*ids.shape, table["dim"]), np.float32)
        self.version.tables.look_up(number, ids, float(table["unseen"]), out)
        return out

    def _of_record(self, features: Arrays, error: DataError) -> DataError:
        """Return the error of the first record that cannot be scored; it is found by halving."""
        first, end = 0, len(next(iter(features.values())))
        while end - first > 1:
            middle = (first + end) // 2
            # The first half is sound, so the error is in the other one.
            if self._error(features, first, middle) is None:
                first = middle
            else:
                end = middle
        found = self._error(features, first, end)
        return error if found is None else DataError(f"record {first}: {found}")

    def _error(self, features: Arrays, first: int, end: int) -> DataError | None:
        """Return the error if some of the records cannot be scored; else None."""
        try:
            self._score({name: values[first:end] for name, values in features.items()})
        except DataError as error:
            return error
        return None
