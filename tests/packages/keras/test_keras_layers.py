"""Each layer against a plain reference, on dense, sparse and ragged tensors."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import preprocessing
from elasticdl._core import keys_of_strings
from elasticdl.errors import ModelError

pytestmark = pytest.mark.keras

NUMBERS = [[0.0, 1.0, -3.5], [1000.0, 2.5, math.nan], [7.49, 1e9, 0.2]]
WORDS = [["cat", "dog", ""], ["cow", "7", "Zürich"], ["dog", "x" * 70, "cat"]]
COUNTS = [["3", "", "12"], [" ", "-4", "0"], ["", " 9 ", "1"]]
INTEGERS = [[0, 5, 3], [-1, 7, 9_000_000_000], [1, 1, 4]]


def fingerprint(strings):
    return np.asarray(keys_of_strings([str(s) for s in strings]))


def log_round(x):
    if not x > 0:
        return 9
    found = round(math.log(x, 10))
    return found if 0 <= found < 4 else 9


def round_identity(x):
    return int(np.round(x)) if 0 <= np.round(x) < 10 else 2


def index_lookup(word):
    words = ["cat", "dog", "7"]
    if str(word) in words:
        return words.index(str(word))
    return 3 + int(full_fingerprint(word) % 2)


def full_fingerprint(text):
    # The key of the store is modulo 2**63 - 1; TensorFlow gives all 64 bits.
    found = tf.fingerprint([str(text)], method="farmhash64").numpy()[0]
    return int.from_bytes(bytes(found), "little")


# (make the layer, values, what it makes of one value)
CASES = {
    "Normalizer": (lambda: preprocessing.Normalizer(2.0, 4.0), NUMBERS, lambda x: (x - 2) / 4),
    "Normalizer of integers": (
        lambda: preprocessing.Normalizer(2.0, 4.0),
        INTEGERS,
        lambda x: np.float32((x - 2) / 4),
    ),
    "Discretization": (
        lambda: preprocessing.Discretization([0.0, 1.0, 100.0]),
        NUMBERS,
        lambda x: int(np.digitize(x, [0.0, 1.0, 100.0])),
    ),
    "LogRound": (lambda: preprocessing.LogRound(4, 9, base=10), NUMBERS, log_round),
    "RoundIdentity": (lambda: preprocessing.RoundIdentity(10, 2), NUMBERS, round_identity),
    "RoundIdentity of integers": (
        lambda: preprocessing.RoundIdentity(10, 2),
        INTEGERS,
        round_identity,
    ),
    "ToNumber": (
        lambda: preprocessing.ToNumber("int64", 5),
        COUNTS,
        lambda x: int(x) if x.strip() else 5,
    ),
    "ToNumber, floats": (
        lambda: preprocessing.ToNumber(tf.float32, -1.5),
        COUNTS,
        lambda x: float(x) if x.strip() else -1.5,
    ),
    "Hashing": (
        lambda: preprocessing.Hashing(1000),
        WORDS,
        lambda x: full_fingerprint(x) % 1000,
    ),
    "Hashing of integers": (
        lambda: preprocessing.Hashing(7_000_000_000),
        INTEGERS,
        lambda x: full_fingerprint(x) % 7_000_000_000,
    ),
    "IndexLookup": (lambda: preprocessing.IndexLookup(["cat", "dog", "7"], 2), WORDS, index_lookup),
    "IndexLookup of integers": (
        lambda: preprocessing.IndexLookup(["cat", "dog", "7"], 2),
        INTEGERS,
        index_lookup,
    ),
}

STRUCTURES = {
    "dense": tf.constant,
    "dense, one axis": lambda lists: tf.constant([x for one in lists for x in one]),
    "sparse": lambda lists: _sparse(lists),
    "ragged": lambda lists: _ragged(lists),
}


def _sparse(lists):
    """Every second column is empty."""
    places = [[i, 2 * j] for i, one in enumerate(lists) for j in range(len(one))]
    values = [x for one in lists for x in one]
    return tf.SparseTensor(places, values, [len(lists), 6])


def _ragged(lists):
    """The first record has all values but one, the second none, the third one."""
    flat = [x for one in lists for x in one]
    return tf.RaggedTensor.from_row_lengths(tf.constant(flat), [len(flat) - 1, 0, 1])


def flat(tensor):
    if isinstance(tensor, tf.SparseTensor):
        return tensor.values.numpy()
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.flat_values.numpy()
    return np.ravel(tensor.numpy())


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_reference_where_the_values_were(case, structure):
    make, values, reference = CASES[case]
    inputs = STRUCTURES[structure](values)

    outputs = make()(inputs)

    assert type(outputs) is type(inputs)
    if isinstance(inputs, tf.SparseTensor):
        np.testing.assert_array_equal(outputs.indices, inputs.indices)
    elif isinstance(inputs, tf.RaggedTensor):
        np.testing.assert_array_equal(outputs.row_splits, inputs.row_splits)
    expected = [reference(x) for one in values for x in one]
    np.testing.assert_allclose(flat(outputs), expected, rtol=1e-6)


ID_LISTS = [[1, 4, 7], [0, 2, 9], [3, 3, 5]]
# What is not in CASES: the layers of several values, on the same structures.
OTHERS = {
    "HashedCross": (lambda x: preprocessing.HashedCross(10**12)([x, x]), WORDS),
    "HashedCross of integers": (lambda x: preprocessing.HashedCross(10**12)([x, x]), INTEGERS),
    "ToRagged": (lambda x: preprocessing.ToRagged("o")(x), WORDS),
    "ToSparse": (lambda x: preprocessing.ToSparse()(x), INTEGERS),
    "ToDense": (lambda x: preprocessing.ToDense(newest=2)(x), ID_LISTS),
    "ConcatenateWithOffset": (
        lambda x: preprocessing.ConcatenateWithOffset([0, 9])([x, x]),
        ID_LISTS,
    ),
} | {
    f"SparseEmbedding, {combiner}": (
        lambda x, combiner=combiner: preprocessing.SparseEmbedding(
            10, 2, combiner=combiner, max_ids=2 if combiner == "tile" else None
        )(x),
        ID_LISTS,
    )
    for combiner in ("sum", "mean", "sqrtn", "tile")
}
ALL = {name: (lambda x, make=make: make()(x), values) for name, (make, values, _) in CASES.items()}
SPECS = {
    "dense": lambda x: tf.TensorSpec([None, 3], x.dtype),
    "sparse": lambda x: tf.SparseTensorSpec([None, 6], x.dtype),
    "ragged": lambda x: tf.RaggedTensorSpec([None, None], x.dtype),
}


DATA = {
    "numbers": NUMBERS,
    "words": WORDS,
    "counts": COUNTS,
    "integers": INTEGERS,
    "ids": ID_LISTS,
}


def model_of_all_layers(structure):
    """Return what a model is given, and the model, which has an output for each layer."""
    given = {name: STRUCTURES[structure](values) for name, values in DATA.items()}
    symbolic = {
        name: keras.Input(
            (3,) if structure == "dense" else (None,),
            dtype=one.dtype.name,
            sparse=structure == "sparse",
            ragged=structure == "ragged",
            name=name,
        )
        for name, one in given.items()
    }
    outputs = [call(symbolic[name_of(values)]) for call, values in (ALL | OTHERS).values()]
    return given, keras.Model(symbolic, outputs)


def name_of(values):
    return next(name for name, those in DATA.items() if those is values)


@pytest.mark.parametrize("structure", SPECS)
def test_models_their_copies_and_their_exports_give_what_the_layers_give(structure, tmp_path):
    given, model = model_of_all_layers(structure)
    copy = keras.Model.from_config(model.get_config())
    module = tf.Module()
    signature = {name: SPECS[structure](one) for name, one in given.items()}
    module.serve = tf.function(lambda x: model(x), input_signature=[signature], autograph=False)
    module.variables_of_graph = list(module.serve.get_concrete_function().graph.variables)
    module.tables = [layer.table for layer in model.layers if hasattr(layer, "table")]

    tf.saved_model.save(module, str(tmp_path))

    loaded = tf.saved_model.load(str(tmp_path))  # it holds the variables
    expected, found = model(given), loaded.serve(given)
    for case, mine, theirs in zip(ALL | OTHERS, expected, found, strict=True):
        assert type(theirs) is type(mine), case
        if flat(mine).dtype == np.float32:
            np.testing.assert_allclose(flat(theirs), flat(mine), rtol=1e-6, err_msg=case)
        else:
            np.testing.assert_array_equal(flat(theirs), flat(mine), err_msg=case)
    of_copy = copy(given)
    for number, (case, (make, values, _)) in enumerate(CASES.items()):
        alone = make()(given[name_of(values)])
        for one in (expected[number], of_copy[number]):
            np.testing.assert_array_equal(flat(one), flat(alone), err_msg=case)
        if not case.startswith(("Discretization", "Hashing")):  # those are of Keras itself
            output = model.outputs[number]
            assert (output.sparse, output.ragged) == (structure == "sparse", structure == "ragged")
            assert output.dtype == alone.dtype.name


def test_the_hash_of_a_string_is_its_id_in_the_store():
    strings = ["", "a", "user-0123456789", *("é" * n for n in range(1, 140)), "0", "-17"]

    hashed = preprocessing.Hashing(2**63 - 1)(tf.constant(strings))

    np.testing.assert_array_equal(hashed, fingerprint(strings))
    # As the Rust store has them in its own tests.
    known = {"": 0x1AE1_6A3B_2F90_4050, "a": 0x3345_4265_B6DF_75E4, "é" * 40: 0x09CC_82C8_327F_279A}
    for string, key in known.items():
        assert int(preprocessing.Hashing(2**63 - 1)(tf.constant([string]))[0]) == key


class TestHashedCross:
    def test_values_of_one_place_are_joined_and_hashed(self):
        colours, sizes = tf.constant(["red", "blue", ""]), tf.constant([1, 2, -3])

        ids = preprocessing.HashedCross(7_000_000_000)([colours, sizes])

        expected = [full_fingerprint(s) % 7_000_000_000 for s in ("red_X_1", "blue_X_2", "_X_-3")]
        assert ids.numpy().tolist() == expected

    def test_lists_give_each_combination_of_a_records_values(self):
        tags = tf.ragged.constant([["a", "b"], [], ["c"]])
        places = tf.SparseTensor([[0, 1], [0, 3], [1, 0], [2, 2]], [10, 20, 30, 40], [3, 4])
        hours = tf.constant([[1], [2], [3]])

        ids = preprocessing.HashedCross(10**9)([tags, places, hours])

        joined = [["a_X_10_X_1", "a_X_20_X_1", "b_X_10_X_1", "b_X_20_X_1"], [], ["c_X_40_X_3"]]
        expected = [[full_fingerprint(s) % 10**9 for s in one] for one in joined]
        assert ids.to_list() == expected

    def test_dense_and_ragged_columns_of_one_value_give_equal_ids(self):
        first, second = tf.constant([[3], [4]]), tf.constant([["x"], ["y"]])
        cross = preprocessing.HashedCross(10**12)

        dense = cross([first, second])
        ragged = cross([tf.RaggedTensor.from_tensor(first), second])

        np.testing.assert_array_equal(dense, ragged.to_tensor())


class TestStructures:
    @pytest.mark.parametrize(
        "inputs",
        [
            tf.constant([["a,b", "", "c"], ["", "", ""], ["d", ",e,", ""]]),
            tf.ragged.constant([["a,b", "", "c"], [], ["d", ",e,"]]),
            tf.SparseTensor([[0, 0], [0, 2], [2, 0], [2, 1]], ["a,b", "c", "d", ",e,"], [3, 3]),
        ],
        ids=["dense", "ragged", "sparse"],
    )
    def test_strings_are_cut_and_what_fills_is_left_out(self, inputs):
        expected = [[b"a", b"b", b"c"], [], [b"d", b"e"]]

        assert preprocessing.ToRagged(",")(inputs).to_list() == expected
        sparse = preprocessing.ToSparse(sep=",")(inputs)
        assert tf.RaggedTensor.from_sparse(sparse).to_list() == expected

    def test_lists_of_any_length_become_rows_of_one(self):
        ids = tf.ragged.constant([[1, 2, 3], [], [4]], dtype=tf.int64)

        dense = preprocessing.ToDense()(ids)
        assert dense.numpy().tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
        newest = preprocessing.ToDense(filling=-1, newest=2)
        for lists in (ids, ids.to_sparse()):
            assert newest(lists).numpy().tolist() == [[2, 3], [-1, -1], [4, -1]]
        words = tf.ragged.constant([["a"], []])
        assert preprocessing.ToDense()(words).numpy().tolist() == [[b"a"], [b""]]

    def test_numbers_that_fill_are_minus_one_or_what_is_said(self):
        ids = tf.constant([[-1, 4], [0, 0], [5, -1]], tf.int64)

        assert preprocessing.ToRagged()(ids).to_list() == [[4], [0, 0], [5]]
        assert preprocessing.ToRagged(ignore_value=0)(ids).to_list() == [[-1, 4], [], [5, -1]]
        sparse = preprocessing.ToSparse()(ids)
        assert sparse.indices.numpy().tolist() == [[0, 1], [1, 0], [1, 1], [2, 0]]
        assert sparse.values.numpy().tolist() == [4, 0, 0, 5]
        np.testing.assert_array_equal(
            tf.sparse.to_dense(preprocessing.ToSparse(0)(ids)), [[-1, 4], [0, 0], [5, -1]]
        )

    def test_features_of_one_table_have_ranges_of_their_own(self):
        first, second = tf.constant([[1], [2]], tf.int64), tf.constant([[0, 3], [4, 1]], tf.int64)
        layer = preprocessing.ConcatenateWithOffset([0, 10])

        assert layer([first, second]).numpy().tolist() == [[1, 10, 13], [2, 14, 11]]
        ragged = layer([first, tf.ragged.constant([[], [7]], dtype=tf.int64, ragged_rank=1)])
        assert ragged.to_list() == [[1], [2, 17]]
        sparse = layer([preprocessing.ToSparse()(second), first])
        assert tf.sparse.to_dense(sparse).numpy().tolist() == [[0, 3, 11], [4, 1, 12]]

    def test_the_shape_of_a_symbolic_call_is_that_of_the_result(self):
        dense = keras.Input((2,), dtype="int64")
        ragged = keras.Input((None,), dtype="int64", ragged=True)
        cross = preprocessing.HashedCross(100)([dense, ragged])
        both = preprocessing.ConcatenateWithOffset([0, 100])([dense, cross])

        assert preprocessing.ConcatenateWithOffset()([dense, dense]).shape == (None, 4)
        assert (both.shape, both.ragged) == ((None, None), True)
        model = keras.Model([dense, ragged], both)
        values = [tf.constant([[1, 2]], tf.int64), tf.ragged.constant([[3]], dtype=tf.int64)]
        ids = [full_fingerprint(f"{k}_X_3") % 100 + 100 for k in (1, 2)]
        assert model(values).to_list() == [[1, 2, *ids]]


class TestSparseEmbedding:
    IDS = ((1, 4, 1), (), (2,))

    def reference(self, table, combiner):
        rows = []
        for ids in self.IDS:
            found = table[list(ids)]
            if combiner == "tile":
                padded = np.zeros((2, 3))
                padded[: min(2, len(ids))] = found[:2]
                rows.append(padded.ravel())
                continue
            total = found.sum(0) if ids else np.zeros(3)
            divisor = {"sum": 1, "mean": len(ids), "sqrtn": math.sqrt(len(ids))}[combiner]
            rows.append(total / max(divisor, 1))
        return np.array(rows)

    @pytest.mark.parametrize("structure", ["ragged", "sparse", "dense"])
    @pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "tile"])
    def test_rows_of_a_record_are_combined(self, combiner, structure):
        ragged = tf.ragged.constant([list(ids) for ids in self.IDS], dtype=tf.int64)
        ids = {"ragged": ragged, "sparse": ragged.to_sparse(), "dense": ragged.to_tensor(-1)}
        layer = preprocessing.SparseEmbedding(
            5, 3, combiner=combiner, max_ids=2 if combiner == "tile" else None
        )

        outputs = layer(ids[structure])

        expected = self.reference(layer.get_weights()[0], combiner)
        np.testing.assert_allclose(outputs, expected, rtol=1e-6)
        copy = preprocessing.SparseEmbedding.from_config(layer.get_config())
        copy.build()
        copy.set_weights(layer.get_weights())
        np.testing.assert_array_equal(copy(ids[structure]), outputs)

    def test_strings_are_ids_as_elsewhere(self):
        words = tf.ragged.constant([["a", "b"], []])
        layer = preprocessing.SparseEmbedding(None, 2, combiner="sum", name="words")

        same = preprocessing.SparseEmbedding(None, 2, combiner="sum", name="words")
        hashed = words.with_values(preprocessing.Hashing(2**63 - 1)(words.values))

        np.testing.assert_array_equal(layer(words), same(hashed))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: preprocessing.Normalizer(1.0, 0.0), "divisor not 0"),
        (lambda: preprocessing.LogRound(0), "num_bins must be a positive whole number, found 0"),
        (lambda: preprocessing.LogRound(3, base=1), "base must be above 0 and not 1"),
        (lambda: preprocessing.RoundIdentity(2.5), "num_buckets must be a positive"),
        (lambda: preprocessing.ToNumber("string"), "out_type must be float32"),
        (lambda: preprocessing.HashedCross(2**63), r"must be below 2\*\*63"),
        (lambda: preprocessing.HashedCross(10)(tf.constant([1])), "a list of two or more features"),
        (lambda: preprocessing.IndexLookup([]), "vocabulary has no word"),
        (lambda: preprocessing.IndexLookup(["a", "b", "a"]), "has 'a' more than once"),
        (lambda: preprocessing.IndexLookup("no/words.txt"), "'no/words.txt', and there is no such"),
        (
            lambda: preprocessing.ConcatenateWithOffset([1])([tf.constant([[1]])] * 2),
            "has 1 offsets and is called with 2 features",
        ),
        (lambda: preprocessing.SparseEmbedding(5, 2, combiner="max"), "sum, mean, sqrtn or tile"),
        (lambda: preprocessing.SparseEmbedding(5, 2, combiner="tile"), "max_ids goes with"),
    ],
)
def test_what_cannot_be_is_said(make, words):
    with pytest.raises(ModelError, match=words):
        make()


def test_a_vocabulary_may_be_a_file(tmp_path):
    (tmp_path / "words.txt").write_text("cat\nZürich\n", encoding="utf-8")

    layer = preprocessing.IndexLookup(tmp_path / "words.txt")

    assert layer(tf.constant(["Zürich", "?"])).numpy().tolist() == [1, 2]
    assert layer.vocab_size() == 3
    assert layer.get_config()["vocabulary"] == ["cat", "Zürich"]
