"""Score records of the DeepFM from what `--output_tables=parquet` wrote, with NumPy alone.

    python -m criteo.score EXPORT records.npz scores.npz

`records.npz` has numbers (n, 13) and ids (n, 26). Nothing of TensorFlow or elasticdl is imported:
the rows are Parquet, the dense weights and the biases are in `dense.npz`, and `model.json` says
what an id reads as that was never trained. `docs/export.md` describes the files.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet


class Table:
    """The rows of a table, sorted by their keys."""

    def __init__(self, folder: Path, dim: int, unseen: float) -> None:
        rows = parquet.read_table(folder)
        keys = rows["key"].to_numpy()
        order = np.argsort(keys)
        self.keys = keys[order]
        weights = rows["weights"].combine_chunks().flatten().to_numpy()
        self.weights = weights.reshape(-1, dim)[order]
        self.unseen = np.float32(unseen)

    def __getitem__(self, ids):
        """Return the rows of ids of any shape; those that have none read as `unseen`."""
        if not len(self.keys):
            return np.full((*ids.shape, self.weights.shape[1]), self.unseen)
        places = np.minimum(np.searchsorted(self.keys, ids), len(self.keys) - 1)
        known = self.keys[places] == ids
        return np.where(known[..., None], self.weights[places], self.unseen)


def load(folder: Path):
    """Return the tables and the dense weights of an export."""
    model = json.loads((folder / "model.json").read_text())
    tables = {
        table["name"]: Table(folder / "tables" / table["name"], table["dim"], table["unseen"])
        for table in model["tables"]
    }
    with np.load(folder / "dense.npz") as dense:
        return tables, dict(dense)


def score(tables, dense, numbers, ids):
    """Return the logits, float32 (n, 1): the formulas of `deepfm.py`."""
    weights, vectors = tables["weights"][ids], tables["vectors"][ids]
    scaled = numbers[:, :, None] * dense["scaled_vectors/vectors"]
    vectors = np.concatenate([scaled, vectors], axis=1)
    linear = weights.sum(axis=1) + numbers @ dense["dense/kernel"]
    squares = np.square(vectors.sum(axis=1)) - np.square(vectors).sum(axis=1)
    pairs = 0.5 * squares.sum(axis=1, keepdims=True)
    hidden = vectors.reshape(len(vectors), -1)
    for layer in ("dense_1", "dense_2"):
        hidden = np.maximum(hidden @ dense[f"{layer}/kernel"] + dense[f"{layer}/bias"], 0)
    return linear + pairs + hidden @ dense["dense_3/kernel"] + dense["dense_3/bias"]


def main(folder: str, records: str, output: str) -> None:
    """Run from the command line."""
    with np.load(records) as given:
        logits = score(*load(Path(folder)), given["numbers"], given["ids"])
    np.savez(output, logits=logits)


if __name__ == "__main__":
    main(*sys.argv[1:])
