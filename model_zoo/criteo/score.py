"""Score records of the DeepFM with NumPy alone, from the files of `--output_tables=parquet`.

    python -m criteo.score EXPORT records.npz scores.npz [float64]

`records.npz` has numbers (n, 13) and ids (n, 26). Sums are float32 as in the SavedModel. The option
float64 gives exact logits; results in float32 are roundings of these. The program imports
neither TensorFlow nor elasticdl. Rows are in Parquet files; dense weights and biases are in
`dense.npz`. `model.json` has the row for an id that was never trained. `docs/serving.md` describes
the files.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet


class Table:
    """The rows of a table, sorted by their keys."""

    def __init__(self, folder: Path, dim: int, unseen: float, dtype=np.float32) -> None:
        rows = parquet.read_table(folder)
        keys = rows["key"].to_numpy()
        order = np.argsort(keys)
        self.keys = keys[order]
        weights = rows["weights"].combine_chunks().flatten().to_numpy()
        self.weights = weights.reshape(-1, dim)[order]
        self.unseen, self.dtype = np.float32(unseen), dtype

    def __getitem__(self, ids):
        """Return the rows of ids of any shape; an id without a row gives `unseen`."""
        if not len(self.keys):
            return np.full((*ids.shape, self.weights.shape[1]), self.unseen, self.dtype)
        places = np.minimum(np.searchsorted(self.keys, ids), len(self.keys) - 1)
        known = self.keys[places] == ids
        rows = np.where(known[..., None], self.weights[places], self.unseen)
        return rows.astype(self.dtype)


def load(folder: Path, dtype=np.float32):
    """Return the tables and the dense weights of an export as arrays of `dtype`."""
    model = json.loads((folder / "model.json").read_text())
    tables = {}
    for said in model["tables"]:
        of_table = folder / "tables" / said["name"]
        tables[said["name"]] = Table(of_table, said["dim"], said["unseen"], dtype)
    with np.load(folder / "dense.npz") as dense:
        return tables, {name: values.astype(dtype) for name, values in dense.items()}


def score(tables, dense, numbers, ids):
    """Return the logits, (n, 1): the formulas of `deepfm.py`."""
    numbers = numbers.astype(dense["dense/kernel"].dtype)
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


def main(folder: str, records: str, output: str, dtype: str = "float32") -> None:
    """Run from the command line."""
    with np.load(records) as given:
        logits = score(*load(Path(folder), np.dtype(dtype)), given["numbers"], given["ids"])
    np.savez(output, logits=logits)


if __name__ == "__main__":
    main(*sys.argv[1:])
