"""Models as users write them train, evaluate and predict on rows that the store holds."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode
from elasticdl.errors import ModelError
from elasticdl.layers import Embedding

pytestmark = pytest.mark.keras


def column_feed(dataset, mode, metadata):
    """Columns `ids` and `label` as they are."""
    if mode == Mode.PREDICTION:
        return dataset.map(lambda r: {"ids": r["ids"]})
    return dataset.map(lambda r: ({"ids": r["ids"]}, r["label"]))


def squared(labels, predictions):
    return tf.square(tf.cast(labels, tf.float32) - tf.reshape(predictions, [-1]))


def sgd(lr=0.1):
    return keras.optimizers.SGD(lr)


def ids_and_labels(n=64, fields=3, high=20, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, high, (n, fields))
    return {"ids": ids, "label": (ids.sum(1) % 5).astype(np.float32)}


class Stepped(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that works outside of a compiled function alone."""

    def __call__(self, step):
        return 0.1 if step < 10 else 0.01


class TestEmbeddings:
    def model(self):
        ids = keras.Input((3,), dtype="int64", name="ids")
        rows = Embedding(4)(ids)
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    def test_rows_and_dense_parameters_learn(self, new_job):
        data = ids_and_labels()
        job = new_job(data, 16, model=self.model, loss=squared, optimizer=sgd, feed=column_feed)
        for _ in range(30):
            job.train(data, 16)
        assert np.mean(job.losses[-4:]) < 0.2 * np.mean(job.losses[:4])

    def test_a_layer_called_twice_is_one_table_with_two_sites(self, new_job):
        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            shared = Embedding(4, name="shared")
            both = shared(ids[:, :1])[:, 0] * shared(ids[:, 1:2])[:, 0]
            return keras.Model({"ids": ids}, keras.ops.sum(both, axis=1))

        data = ids_and_labels()
        job = new_job(data, 16, model=model, loss=squared, optimizer=sgd, feed=column_feed)
        assert [t.name for t in job.description.tables] == ["shared"]
        assert list(job.backend.id_sites()) == [0, 0]
        minibatch = next(job.backend.minibatches(iter(self.one(data)), Mode.TRAINING, 16, 0))
        found = sorted(ids.tolist() for ids in job.backend.ids(minibatch))
        assert found == sorted([data["ids"][:16, :1].tolist(), data["ids"][:16, 1:2].tolist()])

    def test_a_subclassed_model_with_layers_in_a_dict_is_as_good(self, new_job):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.tables = {"a": Embedding(2, name="a"), "b": Embedding(3, name="b")}
                self.out = keras.layers.Dense(1)

            def call(self, inputs, training=False):
                ids = inputs["ids"]
                rows = [self.tables["a"](ids[:, :2]), self.tables["b"](ids[:, 2:])]
                return self.out(keras.ops.concatenate(
                    [keras.ops.reshape(r, (-1, n)) for r, n in zip(rows, (4, 3), strict=True)], 1
                ))  # fmt: skip

        data = ids_and_labels()
        job = new_job(data, 16, model=Model, loss=squared, optimizer=sgd, feed=column_feed)
        assert [(t.name, t.dim) for t in job.description.tables] == [("a", 2), ("b", 3)]
        for _ in range(10):
            job.train(data, 16)
        assert job.losses[-1] < job.losses[0]

    def test_gradients_come_back_for_each_occurrence(self, new_job):
        data = {"ids": np.array([[7, 7, 1]] * 2), "label": np.zeros(2, np.float32)}

        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            return keras.Model({"ids": ids}, keras.ops.sum(Embedding(1)(ids), axis=(1, 2)))

        def total(labels, predictions):
            return tf.reduce_sum(predictions)

        job = new_job(data, 2, model=model, loss=total, optimizer=sgd, feed=column_feed)
        minibatch = next(job.backend.minibatches(iter(self.one(data)), Mode.TRAINING, 2, 0))
        before = job.given(minibatch, training=True).rows[0]
        result = job.step(minibatch)
        assert result.row_grads[0].shape == (2, 3, 1)
        np.testing.assert_array_equal(result.row_grads[0], 1.0)
        after = job.given(minibatch, training=True).rows[0]
        np.testing.assert_allclose(before - after, [[[0.4], [0.4], [0.2]]] * 2, rtol=1e-5)

    @pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
    @pytest.mark.parametrize("kind", ["sparse", "ragged"])
    def test_sparse_and_ragged_ids_are_combined_by_record(self, new_job, kind, combiner):
        words = [b"3 3 5", b"", b"7", b"1 2 3 4"]

        def feed(dataset, mode, metadata):
            def parse(record):
                numbers = tf.strings.to_number(tf.strings.split(record), tf.int64)
                return numbers, tf.constant(0.0)

            def fold(numbers, label):
                ids = tf.RaggedTensor.from_row_splits(numbers.values, numbers.row_splits)
                return {"ids": ids.to_sparse() if kind == "sparse" else ids}, label

            return dataset.map(parse).ragged_batch(4).map(fold)

        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.embedding = Embedding(2, combiner=combiner)

            def call(self, inputs):
                return self.embedding(inputs["ids"])

        def total(labels, predictions):
            return tf.reduce_sum(predictions)

        job = new_job(words, 4, model=Model, loss=total, optimizer=sgd, feed=feed)
        minibatch = next(job.backend.minibatches(iter(self.one(words)), Mode.TRAINING, 4, 0))
        (ids,) = job.backend.ids(minibatch)
        assert ids.tolist() == [3, 3, 5, 7, 1, 2, 3, 4]
        given = job.given(minibatch, training=True)
        outputs = job.backend.predict_step(minibatch, given.rows, given.dense, given.state)
        rows = given.rows[0]
        divide = {"sum": lambda n: 1, "mean": lambda n: max(n, 1), "sqrtn": lambda n: n**0.5 or 1}
        segments = [rows[:3], rows[3:3], rows[3:4], rows[4:]]
        expected = [s.sum(0) / divide[combiner](len(s)) for s in segments]
        np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-7)
        result = job.step(minibatch)
        weights = [1 / divide[combiner](len(s)) for s in segments for _ in s]
        np.testing.assert_allclose(
            result.row_grads[0], np.repeat(weights, 2).reshape(-1, 2), rtol=1e-6
        )

    def test_a_large_plain_embedding_has_no_weight_and_a_small_one_keeps_its(self, new_job):
        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            large = keras.layers.Embedding(1000, 8, name="large")(ids)
            small = keras.layers.Embedding(20, 8, name="small")(ids)
            flat = keras.layers.Flatten()(large + small)
            return keras.Model({"ids": ids}, keras.layers.Dense(1)(flat))

        data = ids_and_labels()
        job = new_job(
            data, 16, threshold=16_000, model=model, loss=squared, optimizer=sgd, feed=column_feed
        )
        (table,) = job.description.tables
        assert (table.name, table.dim, table.input_dim) == ("large", 8, 1000)
        assert table.initializer.kind == "uniform"
        names = [v.name for v in job.description.dense]
        assert any("small" in n for n in names)
        assert not any("large" in n for n in names)
        for _ in range(10):
            job.train(data, 16)
        assert job.losses[-1] < job.losses[0]
        assert "add_weight" not in vars(keras.layers.Embedding)

    @pytest.mark.parametrize(
        ("layer", "use"),
        [
            (
                lambda: keras.layers.Embedding(1000, 8, name="large"),
                lambda layer, ids: keras.ops.matmul(
                    layer(ids), keras.ops.transpose(layer.embeddings)
                ),
            ),
        ],
        ids=["tied weights"],
    )
    @pytest.mark.filterwarnings("ignore:Layer 'model' looks like it has unbuilt state:UserWarning")
    def test_a_table_that_cannot_be_moved_names_the_flag(self, new_job, layer, use):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.embedding = layer()

            def call(self, inputs):
                return keras.ops.sum(use(self.embedding, inputs["ids"]), axis=(1, 2))

        functions = {"model": Model, "loss": squared, "optimizer": sgd, "feed": column_feed}
        with pytest.raises(ModelError, match="say --embedding_threshold_bytes=32000"):
            new_job(ids_and_labels(), 16, threshold=16_000, **functions)
        job = new_job(ids_and_labels(), 16, threshold=32_000, **functions)
        assert job.description.tables == ()

    def test_a_large_table_with_a_regularizer_stays_and_is_said_to(self, new_job, caplog):
        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            rows = keras.layers.Embedding(1000, 8, embeddings_regularizer="l2", name="large")(ids)
            return keras.Model({"ids": ids}, keras.ops.sum(rows, axis=(1, 2)))

        job = new_job(
            ids_and_labels(), 16, threshold=16_000, model=model, loss=squared, optimizer=sgd,
            feed=column_feed,
        )  # fmt: skip
        assert job.description.tables == ()
        assert "'large' (32000 bytes) stays a dense variable" in caplog.text
        assert "it has a regularizer" in caplog.text

    def test_constraints_and_what_decays_reach_the_tables_and_variables_of_a_model(self, new_job):
        unit = keras.constraints.UnitNorm(axis=1)

        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            ours = Embedding(8, embeddings_constraint=unit, name="ours")(ids)
            moved = keras.layers.Embedding(
                1000, 8, embeddings_constraint="non_neg", name="moved"
            )(ids)  # fmt: skip
            flat = keras.layers.Flatten()(ours + moved)
            out = keras.layers.Dense(1, kernel_constraint="non_neg", name="out")(flat)
            return keras.Model({"ids": ids}, out)

        def optimizer():
            adam = keras.optimizers.Adam(0.1, weight_decay=0.1)
            adam.exclude_from_weight_decay(var_names=["ours/", "bias"])
            return adam

        data = ids_and_labels()
        job = new_job(
            data, 16, threshold=16_000, model=model, loss=squared, optimizer=optimizer,
            feed=column_feed,
        )  # fmt: skip
        decays = {t.name: t.optimizer.params["weight_decay"] for t in job.description.tables}
        assert decays == {"ours": 0.0, "moved": 0.1}
        assert [v.decays for v in job.description.dense] == [True, False]
        for _ in range(3):
            job.train(data, 16)
        (_, ours), (_, moved) = (next(job.client.scan(k)) for k in (0, 1))
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1.0, rtol=1e-5)
        assert moved.min() == 0
        kernel = job.parameters()[0][:24]
        assert kernel.min() == 0 < kernel.max()

    def test_a_layer_built_outside_the_model_function_is_refused(self, new_job):
        early = Embedding(2, input_dim=20, name="early")
        early.build()

        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            return keras.Model({"ids": ids}, keras.ops.sum(early(ids), axis=(1, 2)))

        with pytest.raises(ModelError, match="'early' was built before"):
            new_job(ids_and_labels(), 16, model=model, loss=squared, optimizer=sgd,
                    feed=column_feed)  # fmt: skip

    @pytest.mark.filterwarnings("ignore:`build:UserWarning")
    def test_a_layer_that_only_training_calls_is_refused(self, new_job):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.always = Embedding(1, name="always")
                self.sometimes = Embedding(1, name="sometimes")

            def call(self, inputs, training=False):
                rows = self.always(inputs["ids"])
                if training:
                    rows = rows + self.sometimes(inputs["ids"])
                return keras.ops.sum(rows, axis=(1, 2))

        with pytest.raises(ModelError, match="'sometimes' is called now but was not"):
            new_job(ids_and_labels(), 16, model=Model, loss=squared, optimizer=sgd,
                    feed=column_feed)  # fmt: skip

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [(-3, "must not be negative, found -3"), (50, "below input_dim=50, found 50")],
    )
    def test_ids_out_of_range_are_named(self, new_job, wrong, says):
        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            return keras.Model({"ids": ids}, keras.ops.sum(Embedding(1, 50)(ids), axis=(1, 2)))

        data = ids_and_labels()
        job = new_job(data, 16, model=model, loss=squared, optimizer=sgd, feed=column_feed)
        data["ids"][5, 1] = wrong
        with pytest.raises(ModelError, match=says):
            job.train(data, 16)

    @pytest.mark.parametrize("threshold", [0, 2**30], ids=["moved", "plain"])
    @pytest.mark.parametrize("layer", [Embedding, keras.layers.Embedding])
    def test_ids_of_floats_are_cut_off_as_keras_does(self, new_job, layer, threshold):
        def model():
            ids = keras.Input((4,), name="ids")
            rows = layer(input_dim=20, output_dim=2, name="rows")(ids)
            return keras.Model({"ids": ids}, keras.ops.sum(rows, axis=(1, 2)))

        fractions = {"ids": np.array([[3.0, 7.9, 0.4, -0.6]] * 4), "label": np.zeros(4, np.float32)}
        whole = {**fractions, "ids": np.array([[3, 7, 0, 0]] * 4)}
        functions = {"model": model, "loss": squared, "optimizer": sgd, "feed": column_feed}
        a, b = (new_job(d, 4, threshold=threshold, **functions) for d in (fractions, whole))
        assert a.train(fractions, 4) == b.train(whole, 4)
        for site in a.backend.ids(
            next(a.backend.minibatches(iter(self.one(fractions)), Mode.TRAINING, 4, 0))
        ):
            assert site.dtype == np.int64
            assert site[0].tolist() == [3, 7, 0, 0]

    def test_ids_of_floats_that_may_have_met_are_refused(self, new_job):
        def model():
            ids = keras.Input((3,), name="ids")
            return keras.Model({"ids": ids}, keras.ops.sum(Embedding(1)(ids), axis=(1, 2)))

        data = ids_and_labels()
        job = new_job(data, 16, model=model, loss=squared, optimizer=sgd, feed=column_feed)
        data["ids"][5, 1] = 2**24 - 1
        job.train(data, 16)
        data["ids"][5, 1] = 2**24 + 1
        with pytest.raises(
            ModelError, match="exact below 16777216 only, found 16777216; say dtype"
        ):
            job.train(data, 16)

    def test_ids_that_depend_on_rows_are_computed_with_a_lookup(self, new_job):
        class Model(keras.Model):
            """Each record goes on to the id that is nearest to its first row's first number."""

            def __init__(self):
                super().__init__()
                self.first = Embedding(1, name="first")
                self.second = Embedding(1, name="second")

            def call(self, inputs):
                row = self.first(inputs["ids"][:, 0])
                following = tf.cast(tf.abs(row[:, 0]) * 1000.0, tf.int64)
                return row + self.second(following)

        data = ids_and_labels()
        job = new_job(data, 16, model=Model, loss=squared, optimizer=sgd, feed=column_feed)
        minibatch = next(job.backend.minibatches(iter(self.one(data)), Mode.TRAINING, 16, 0))
        with pytest.raises(ModelError, match="computes ids from embeddings"):
            job.backend.ids(minibatch)
        job.backend.set_lookup(job.client.pull)
        first, second = job.backend.ids(minibatch)
        given = job.given(minibatch, training=True)
        np.testing.assert_array_equal(first, data["ids"][:16, 0])
        np.testing.assert_array_equal(
            second, (np.abs(given.rows[0][:, 0]) * np.float32(1000)).astype(np.int64)
        )
        for _ in range(10):
            job.train(data, 16)
        assert job.losses[-1] < job.losses[0]

    def test_layers_called_with_the_same_ids_share_one_array_whether_given_or_computed(
        self, new_job
    ):
        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            odd = ids * 2 + 1
            tables = [Embedding(1)(ids), Embedding(2)(odd), Embedding(2)(ids), Embedding(1)(odd)]
            return keras.Model(
                {"ids": ids}, keras.ops.sum(keras.ops.concatenate(tables, axis=-1), axis=(1, 2))
            )

        data = ids_and_labels()
        job = new_job(data, 16, model=model, loss=squared, optimizer=sgd, feed=column_feed)
        minibatch = next(job.backend.minibatches(iter(self.one(data)), Mode.TRAINING, 16, 0))
        given, odd, given_again, odd_again = job.backend.ids(minibatch)
        assert given is given_again
        assert odd is odd_again
        np.testing.assert_array_equal(given, data["ids"][:16])
        np.testing.assert_array_equal(odd, data["ids"][:16] * 2 + 1)

    def test_an_embedding_inside_a_tf_function_is_refused_with_the_remedy(self, new_job):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.embedding = Embedding(1)

            @tf.function
            def call(self, inputs):
                return self.embedding(inputs["ids"])[:, 0, 0]

        with pytest.raises(ModelError, match=r"inside a tf\.function"):
            new_job(ids_and_labels(), 16, model=Model, loss=squared, optimizer=sgd,
                    feed=column_feed)  # fmt: skip

    def test_ids_drawn_at_random_are_refused(self, new_job):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.embedding = Embedding(1)

            def call(self, inputs):
                shift = tf.random.uniform([], 0, 5, tf.int64)
                return self.embedding(inputs["ids"] + shift)[:, 0, 0]

        with pytest.raises(ModelError, match="drawn at random"):
            new_job(ids_and_labels(), 16, model=Model, loss=squared, optimizer=sgd,
                    feed=column_feed)  # fmt: skip

    @staticmethod
    def one(data):
        from elasticdl.data.base import Records

        if isinstance(data, dict):
            return [Records(0, columns=data)]
        return [Records(0, values=data)]


class TestStep:
    def dense_model(self, regularizer="l2"):
        ids = keras.Input((3,), dtype="int64", name="ids")
        x = keras.layers.Dense(8, kernel_regularizer=regularizer)(keras.ops.cast(ids, "float32"))
        x = keras.layers.Dropout(0.5)(x)
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(x))

    def job(self, new_job, **changes):
        functions = {
            "model": self.dense_model, "loss": squared, "optimizer": sgd, "feed": column_feed,
        }  # fmt: skip
        return new_job(ids_and_labels(), 16, **{**functions, **changes})

    def minibatches(self, job, seed=0, size=16):
        from elasticdl.data.base import Records

        return list(
            job.backend.minibatches(
                iter([Records(0, columns=ids_and_labels())]), Mode.TRAINING, size, seed
            )
        )

    @pytest.mark.parametrize(
        ("rest", "says"),
        [
            (lambda y: (tf.as_string(y),), r"labels string\[16.*: .*string to float"),
            (lambda y: (y, tf.ones(2)), r"labels .*, sample weights float32\[16, 2\]: Incomp"),
        ],
    )
    def test_labels_and_weights_that_a_step_fails_on_are_described(self, new_job, rest, says):
        def feed(dataset, mode, metadata):
            fed = column_feed(dataset, mode, metadata)
            return fed.map(lambda features, label: (features, *rest(label)))

        job = self.job(new_job, feed=feed, loss="mse")
        with pytest.raises(ModelError, match=f"'ids': .*, {says}"):
            job.backend.train_step(self.minibatches(job)[0], [], *job.parameters())

    def test_a_retried_minibatch_repeats_to_the_bit_dropout_included(self, new_job):
        job = self.job(new_job)
        dense, state = job.parameters()
        one, other = self.minibatches(job)[0], self.minibatches(job)[0]
        a = job.backend.train_step(one, [], dense, state)
        b = job.backend.train_step(other, [], dense, state)
        assert a.loss == b.loss
        np.testing.assert_array_equal(a.dense_grad, b.dense_grad)
        third = job.backend.train_step(self.minibatches(job, seed=1)[0], [], dense, state)
        assert third.loss != a.loss  # another task drops out other units

    def test_loss_has_the_regularization_and_a_step_changes_nothing_here(self, new_job):
        job = self.job(new_job)
        dense, state = job.parameters()
        minibatch = self.minibatches(job)[0]
        with_it = job.backend.train_step(minibatch, [], dense, state).loss

        plain = self.job(new_job, model=lambda: self.dense_model(regularizer=None))
        without_it = plain.backend.train_step(minibatch, [], dense, state).loss
        kernel = dense[:24]
        assert with_it - without_it == pytest.approx(0.01 * np.square(kernel).sum(), rel=1e-3)
        np.testing.assert_array_equal(job.backend.initial_values()[0], dense)

    def test_a_remainder_gives_what_a_full_minibatch_of_its_size_gives(self, new_job):
        job = self.job(new_job, model=self.model_without_dropout)
        dense, state = job.parameters()
        remainder = self.minibatches(job, size=48)[-1]
        assert remainder.num_records == 16
        full = self.minibatches(job, size=16)[-1]
        a = job.backend.train_step(remainder, [], dense, state)
        b = job.backend.train_step(full, [], dense, state)
        assert a.loss == pytest.approx(b.loss, rel=1e-6)
        np.testing.assert_allclose(a.dense_grad, b.dense_grad, rtol=1e-5, atol=1e-6)

    @staticmethod
    def model_without_dropout():
        ids = keras.Input((3,), dtype="int64", name="ids")
        x = keras.layers.Dense(8)(keras.ops.cast(ids, "float32"))
        return keras.Model({"ids": ids}, keras.layers.Dense(1)(x))

    def test_equal_processes_start_from_equal_values_and_names(self, new_job):
        a, b = self.job(new_job), self.job(new_job)
        assert a.description == b.description
        np.testing.assert_array_equal(a.backend.initial_values()[0], b.backend.initial_values()[0])

    def test_an_integer_counter_counts_for_all_workers(self, new_job):
        class Counting(keras.layers.Layer):
            def build(self, shape):
                self.calls = self.add_weight(
                    shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls"
                )

            def call(self, x, training=False):
                if training:
                    self.calls.assign(self.calls + 1)
                return x

        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            x = Counting(dtype="float32")(keras.ops.cast(ids, "float32"))
            return keras.Model({"ids": ids}, keras.layers.Dense(1)(x))

        job = self.job(new_job, model=model)
        (counter,) = job.description.state
        assert (counter.name, counter.momentum) == ("counting/calls", 1.0)
        job.train(ids_and_labels(), 16)
        assert job.parameters()[1].tolist() == [4.0]
        state = np.array([2.0**24], np.float32)
        with pytest.raises(ModelError, match="'counting/calls' has counted to 16777216"):
            job.backend.train_step(self.minibatches(job)[0], [], job.parameters()[0], state)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"model": lambda: 3}, "must return a keras.Model, found int"),
            ({"loss": lambda a, b: {"x": b}}, "must return one tensor"),
            ({"loss": lambda a, b: tf.ensure_shape(b, [None, 9])}, "raised"),
            ({"loss": lambda a, b: "mse"}, "found str .* for a loss of Keras, write loss = "),
            ({"loss": lambda a, b: keras.losses.Hinge()}, "found Hinge .* or call it there"),
            ({"loss": None}, "training needs a function loss"),
            ({"optimizer": lambda: 0.1}, "must return a keras.optimizers.Optimizer, found float"),
            (
                {"optimizer": lambda: keras.optimizers.SGD(Stepped())},
                r"the schedule Stepped raised .*; the step is a tensor: write keras.ops.where",
            ),
        ],
    )
    def test_what_a_function_returns_wrong_is_named(self, new_job, changes, says):
        with pytest.raises(ModelError, match=says):
            self.job(new_job, **changes).train(ids_and_labels(), 16)

    def test_features_of_a_wrong_shape_show_both_sides(self, new_job):
        def model():
            x = keras.Input((5,), dtype="float32", name="ids")
            return keras.Model({"ids": x}, keras.layers.Dense(1)(x))

        with pytest.raises(ModelError, match=r"on what feed gives.*int64\[16, 3\].*\(None, 5\)"):
            self.job(new_job, model=model)

    def test_several_outputs_reach_loss_and_metrics_by_name(self, new_job):
        def model():
            ids = keras.Input((3,), dtype="int64", name="ids")
            x = keras.layers.Flatten()(Embedding(2)(ids))
            a = keras.layers.Dense(1, name="a")(x)
            b = keras.layers.Dense(1, name="b")(x)
            return keras.Model({"ids": ids}, {"a": a, "b": b})

        def both(labels, predictions):
            return squared(labels, predictions["a"]) + squared(labels, predictions["b"])

        def metrics():
            return {
                "a": {"mae": keras.metrics.MeanAbsoluteError()},
                "b": {"mse": lambda labels, p: tf.square(labels - p[:, 0])},
            }

        job = self.job(new_job, model=model, loss=both, eval_metrics_fn=metrics)
        job.train(ids_and_labels(), 16)
        results = job.evaluate(ids_and_labels(), 16)
        assert set(results) == {"a/mae", "b/mse", "loss"}
