"""A version of an export that scores: ids, look-ups, outputs. For one thread at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.backends.base import Float32, Int64
from elasticdl.backends.served import ServedModel, load_served
from elasticdl.serving.versions import Version

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Scorer:
    """A version and its program."""

    version: Version
    program: ServedModel

    @classmethod
    def load(cls, version: Version) -> Scorer:
        """Load a version's program.

        Raises:
            ExportError: It cannot be served.
        """
        return cls(version, load_served(version.program)).ready()

    def with_version(self, version: Version) -> Scorer:
        """Return what scores with another version. This one scores no more.

        Raises:
            ExportError: It cannot be served; then this one does as before.
        """
        if version.program != self.version.program:
            return Scorer.load(version)
        try:
            return Scorer(version, self.program).ready()
        except BaseException:
            self.ready()
            raise

    def ready(self) -> Scorer:
        """Give the program the parameters of this version."""
        self.program.set_parameters(self.version.dense, self.version.state)
        return self

    def score(self, features: Arrays) -> dict[str, NDArray[Any]]:
        """Return the outputs of some records, by name."""
        ids = self.program.ids(features)
        rows = [self._rows(site, of_site) for site, of_site in enumerate(ids)]
        return self.program.score(features, rows)

    def _rows(self, site: int, ids: Int64) -> Float32:
        version = self.version
        table = self.program.lookups[site]
        number = next(k for k, t in enumerate(version.manifest.tables) if t["name"] == table)
        out = np.empty((*ids.shape, version.manifest.tables[number]["dim"]), np.float32)
        unseen = float(version.manifest.tables[number]["unseen"])
        version.tables.look_up(number, ids, unseen, out)
        return out
