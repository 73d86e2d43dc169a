import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]

ZOO = Path(__file__).parents[1]
SERVE = """
import json, sys
sys.modules["elasticdl"] = None
import numpy as np, tensorflow as tf
sys.path.insert(0, sys.argv[1])
from criteo.score import load
folder, given = sys.argv[2], np.load(sys.argv[3])
features = {name: tf.constant(given[name]) for name in ("numbers", "ids")}
model = tf.saved_model.load(folder + "/inside")
inside = model.serve(features)
beside = tf.saved_model.load(folder + "/beside/saved_model")
tables, _ = load(__import__("pathlib").Path(folder, "beside"))
names = json.load(open(folder + "/beside/model.json"))["lookups"]
rows = [tables[name][ids.numpy()] for name, ids in zip(names, beside.ids(features))]
scored = beside.score(features, [tf.constant(of_site) for of_site in rows])
np.savez(sys.argv[4], inside=inside, beside=scored)
"""


@pytest.mark.parametrize("num_ps", [0, 2])
def test_parquet_and_numpy_give_what_the_saved_model_gives(num_ps, commands, load_zoo):
    criteo = commands("criteo.deepfm.forward")
    load_zoo("criteo.prepare").write(criteo.folder / "data", 1500, num_files=2)
    strategy = ["--distribution_strategy=ParameterServerStrategy", f"--num_ps_pods={num_ps}"]
    strategy += ["--num_workers=1", "--max_staleness=0"]  # twice the same
    for where, tables in (("inside", "inside"), ("beside", "parquet")):
        criteo.run(
            "train",
            "--training_data=data",
            "--minibatch_size=64",
            f"--output={where}",
            f"--output_tables={tables}",
            *(strategy if num_ps else []),
        )
    columns = load_zoo("criteo.prepare").make_columns(200, seed=(9, 9))  # most ids are new
    records = criteo.folder / "records.npz"
    np.savez(records, numbers=columns["numbers"], ids=columns["ids"])

    run_script(criteo.folder, "-m", "criteo.score", "beside", records, "scores.npz")
    run_script(criteo.folder, "-m", "criteo.score", "beside", records, "exact.npz", "float64")
    run_script(criteo.folder, "-c", SERVE, ZOO, criteo.folder, records, "served.npz")

    by_numpy = np.load(criteo.folder / "scores.npz")["logits"]
    exact = np.load(criteo.folder / "exact.npz")["logits"]
    served = np.load(criteo.folder / "served.npz")
    assert (by_numpy.dtype, exact.dtype) == (np.float32, np.float64)
    terms = sum_of_terms(load_zoo("criteo.score"), criteo.folder / "beside", columns)
    for logits in (by_numpy, served["beside"], served["inside"]):
        assert differ_in_the_last_bits(logits, exact, terms)
    assert np.ptp(by_numpy) > 0.1
    with np.load(criteo.folder / "beside" / "dense.npz") as dense:
        assert "dense_3/bias" in dense.files
    manifest = json.loads((criteo.folder / "beside" / "tables" / "manifest.json").read_text())
    files = {table["name"]: len(table["files"]) for table in manifest["tables"]}
    assert files == {"weights": max(1, num_ps), "vectors": max(1, num_ps)}


def sum_of_terms(zoo, folder, columns):
    """What the logit would be if no term had a sign: how large the sums are that are rounded."""
    tables, dense = zoo.load(folder, np.float64)
    for table in tables.values():
        table.weights, table.unseen = np.abs(table.weights), np.abs(table.unseen)
    dense = {name: np.abs(values) for name, values in dense.items()}
    return zoo.score(tables, dense, np.abs(columns["numbers"]), columns["ids"])


def differ_in_the_last_bits(logits, exact, terms, share=1 / 8):
    """Whether logits are those of exact sums, but for a share of float32's last bit of terms."""
    return np.all(np.abs(logits - exact) < np.finfo(np.float32).eps * share * terms)


def test_a_logit_that_is_wrong_by_more_than_its_last_bits_is_told(load_zoo):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(50, 13)).astype(np.float32)
    zoo = load_zoo("criteo.score")
    shapes = {
        "scaled_vectors/vectors": (13, 4), "dense/kernel": (13, 1),
        "dense_1/kernel": (39 * 4, 8), "dense_1/bias": (8,),
        "dense_2/kernel": (8, 8), "dense_2/bias": (8,),
        "dense_3/kernel": (8, 1), "dense_3/bias": (1,),
    }  # fmt: skip
    dense = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    shapes = {"weights": (100, 1), "vectors": (100, 4)}
    rows = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    ids = rng.integers(0, 100, (50, 26))
    exact_of = [{k: v.astype(np.float64) for k, v in d.items()} for d in (rows, dense)]
    sizes = [{k: np.abs(v) for k, v in d.items()} for d in exact_of]

    exact = zoo.score(*exact_of, numbers, ids)
    terms = zoo.score(*sizes, np.abs(numbers), ids)
    rounded = zoo.score(rows, dense, numbers, ids)

    assert rounded.dtype == np.float32
    assert not np.array_equal(rounded, exact)
    assert differ_in_the_last_bits(rounded, exact, terms, share=1)
    assert not differ_in_the_last_bits(rounded + 1e-6 * terms, exact, terms, share=1)


def run_script(folder, *words):
    blocked = {"PYTHONPATH": str(ZOO), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=os.environ | blocked,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr


def test_rows_of_ids_that_were_never_trained_are_told(tmp_path, load_zoo):
    import pyarrow as pa
    import pyarrow.parquet as pq

    weights = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"key": [5, 2], "weights": weights}), tmp_path / "part.parquet")
    table = load_zoo("criteo.score").Table(tmp_path, dim=2, unseen=0.5)

    found = table[np.array([[2, 7], [5, 0]])]

    assert found.tolist() == [[[3.0, 4.0], [0.5, 0.5]], [[1.0, 2.0], [0.5, 0.5]]]


@pytest.mark.parametrize(
    ("file_format", "feed", "says"),
    [
        ("recordio", "feed", "feed runs vectorised in mode training; Rust parses the records"),
        (
            "parquet",
            "feed_columns",
            "feed_columns runs batched in mode training; records come as columns",
        ),
    ],
)
def test_the_command_says_which_way_records_take(
    file_format, feed, says, strategy, commands, load_zoo
):
    criteo = commands("criteo.deepfm.forward")
    load_zoo("criteo.prepare").write(criteo.folder / "data", 500, 1, file_format=file_format)

    said = criteo.call(
        "train",
        f"--model_zoo={ZOO}",
        "--model_def=criteo.deepfm.forward",
        f"--feed={feed}",
        "--training_data=data",
        *strategy,
    )

    assert says in " ".join(said.split())
