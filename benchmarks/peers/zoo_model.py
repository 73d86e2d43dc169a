"""The command line of peers that train a model file of the zoo, and the objects that it names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from elasticdl.config import ModelSection
from elasticdl.data.base import DataReader, Records
from elasticdl.data.open import open_reader
from elasticdl.model_spec import ModelSpec, load_model_spec

ZOO = Path(__file__).parents[2] / "model_zoo"


def parse(doc: str | None) -> argparse.Namespace:
    """Parse the command line of a peer, whose docstring begins with what it is."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--model_def", required=True)
    parser.add_argument("--model_params", default="")
    parser.add_argument("--train", required=True, help="data, as --training_data takes it")
    parser.add_argument("--test", required=True)
    parser.add_argument("--data_reader_params", default="")
    parser.add_argument("--minibatch_size", type=int, default=128)
    parser.add_argument("--num_epochs", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, help="default: that of the model file")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load(args: argparse.Namespace) -> tuple[ModelSpec, dict[str, float]]:
    """Return what the model file provides, and what its optimizer is given."""
    section = ModelSection(model_zoo=ZOO, model_def=args.model_def, model_params=args.model_params)
    return load_model_spec(section), (
        {} if args.learning_rate is None else {"lr": args.learning_rate}
    )


def read(place: str, params: str) -> tuple[DataReader, Iterable[Records]]:
    """Return the reader of some data, and all records."""
    reader = open_reader(place, params)
    return reader, (chunk for shard in reader.shards() for chunk in reader.read(shard))
