"""Random models in Keras give by every strategy what `compile` and `fit` give, or are refused.

Twenty-five in five parts with the long tests, a hundred by `make nightly`; more by hand:
`ELASTICDL_RANDOM_MODELS=1000 pytest -m 'keras and long' tests/differential`. A model that fails is
printed as a file. Each is trained for ten steps; every minibatch has every id, since plain
optimizers move rows that a minibatch does not have.
"""

import os
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, seed, settings

from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec

sys.path.insert(0, str(Path(__file__).parent))
import strategies  # beside this file
from generate_keras import CLASSES, NUM_IDS, WIDTH, files  # as above
from strategies import MINIBATCH, STEPS, flat_of, module_of, numbers

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]

SEED = 5
TOLERANCE = 1e-4
PARTS = 2
MODELS = int(os.environ.get("ELASTICDL_RANDOM_MODELS", "6"))
IN_MODEL, MOVED = 2**21, 1  # thresholds


def columns_of(index):
    """Return a minibatch in which each id occurs."""
    rng = np.random.default_rng(index)
    return {
        "ids": strategies.ids_of(rng, NUM_IDS),
        "x": rng.normal(size=(MINIBATCH, WIDTH)).astype(np.float32),
        "kind": rng.integers(CLASSES, size=MINIBATCH),
        "y": rng.normal(size=(MINIBATCH, 1)).astype(np.float32),
        "weight": rng.uniform(0.5, 2, size=MINIBATCH).astype(np.float32),
    }


def built(text, folder, threshold):
    """Return a trainer, its description, and the minibatches of a training, whole and in parts."""
    from elasticdl.packages.keras.trainer import KerasTrainer

    module = module_of(text, folder)
    functions = dict.fromkeys(
        ("callbacks", "prediction_outputs_processor", "custom_data_reader", "weighted_metrics_fn")
    )
    spec = ModelSpec(
        model=module.forward, loss=module.loss, optimizer=module.optimizer, feed=module.feed,
        eval_metrics_fn=module.eval_metrics_fn,
        loss_weights=getattr(module, "loss_weights", None), **functions,
    )  # fmt: skip
    trainer = KerasTrainer(spec, Metadata(), SEED, threshold)
    found = strategies.built(trainer, columns_of)
    evaluated = strategies.minibatch_of(trainer, columns_of(99), Mode.EVALUATION)
    return trainer, *found, evaluated


class Plain:
    """What `compile` and `fit` give.

    values: by the path of the variable. metrics: of an evaluation. outputs: of the same records.
    """

    def __init__(self, text, begins, folder):
        import keras
        import tensorflow as tf
        from keras.src.backend.common import global_state
        from keras.src.utils.naming import reset_uids

        module = module_of(text, folder)
        keras.utils.set_random_seed(SEED)
        global_state.set_global_attribute("global_seed_generator", None)
        reset_uids()

        def fed(index):
            dataset = tf.data.Dataset.from_tensor_slices(columns_of(index))
            return module.feed(dataset, Mode.TRAINING, None).batch(MINIBATCH)

        model, evaluated = module.forward(), fed(99)
        (first,) = fed(0)
        model(first[0])
        for variable in model.variables:
            path = variable.path
            value = begins.values.get(path, begins.rows.get(path.split("/")[-2]))
            if value is not None:
                variable.assign(value)
        model.compile(
            _summing(module.optimizer()), module.loss, metrics=module.eval_metrics_fn(),
            loss_weights=getattr(module, "loss_weights", None), run_eagerly=True,
        )  # fmt: skip
        for index in range(STEPS):
            (minibatch,) = fed(index)
            model.train_on_batch(*minibatch)
        kept = [v for v in model.variables if v.name != "seed_generator_state"]
        self.values = {v.path: np.asarray(v) for v in kept}
        self.metrics = model.evaluate(evaluated, verbose=0, return_dict=True)
        self.outputs = keras.tree.flatten(model.predict(evaluated, verbose=0))


def _summing(optimizer):
    """Have gradients of tables summed by id before they are clipped; see docs/keras.md."""
    import tensorflow as tf

    apply = optimizer.apply

    def summed(gradients, variables=None):
        return apply([tf.convert_to_tensor(g) for g in gradients], variables)

    optimizer.apply = summed
    return optimizer


def assert_same(found, plain, where):
    """Compare all variables of a training with those of Keras."""
    for path, value in plain.values.items():
        ours = found.values.get(path, found.rows.get(path.split("/")[-2]))
        assert ours is not None, f"{where}: {path} is not there, of {sorted(found.values)}"
        np.testing.assert_allclose(
            ours, value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"{where}: {path}"
        )


def compare(file, folder, with_export=None):
    """Train a file by all strategies, and compare each with `compile` and `fit`."""
    if file.refused:
        with pytest.raises(ModelError, match=file.refused):
            built(file.text, folder, MOVED)
        return
    trainer, description, minibatches, halves, evaluated = built(file.text, folder, IN_MODEL)
    begins = strategies.begin(trainer, description, NUM_IDS)
    plain = Plain(file.text, begins, folder)
    args = trainer, description, minibatches, NUM_IDS
    runs = {
        "Local": strategies.local(*args),
        "two ps replicas": strategies.with_ps(*args),
        "restored": strategies.restored(*args, folder / f"checkpoint_{next(numbers)}"),
    }
    for name, run in runs.items():
        assert_same(run, plain, name)
    if file.is_halved:
        run = strategies.all_reduce(trainer, description, halves)
        assert_same(run, plain, "two workers by all-reduce")
    shown(trainer, runs["Local"], description, evaluated, plain)
    trainer, description, minibatches, _, evaluated = built(file.text, folder, MOVED)
    description = beginning_with(begins, trainer, description)
    run = strategies.with_ps(trainer, description, minibatches, NUM_IDS)
    assert_same(run, plain, "moved tables")
    if next(numbers) % 3 == 0 if with_export is None else with_export:
        client = strategies.PsClient.in_process(strategies.Store())
        strategies.declared(client, trainer, description)
        strategies.train(client, trainer, minibatches)
        exported(trainer, client, evaluated, plain, folder)


def beginning_with(begins, trainer, description):
    """Have a trainer with moved tables begin where one without them began; describe that."""
    paths = {path.split("/")[-2]: values for path, values in begins.values.items()}
    rows = [(k, paths[table.name]) for k, table in enumerate(description.tables)]
    trainer.given_rows = lambda: rows
    trainer.first_values = flat_of(begins, description)
    tables = tuple(replace(table, given_rows=True) for table in description.tables)
    return replace(description, tables=tables)


def shown(trainer, run, description, evaluated, plain):
    """Evaluate and predict with what was trained; compare with Keras."""
    flat = flat_of(run, description)
    trainer.new_metrics()
    trainer.evaluate_step(evaluated, [], *flat)
    for name, value in trainer.metric_results(trainer.metric_states()).items():
        name = name.replace("/", "_")  # of an output
        assert name in plain.metrics, f"metric {name} is none of {sorted(plain.metrics)}"
        np.testing.assert_allclose(
            value, plain.metrics[name], rtol=1e-3, atol=1e-4, err_msg=f"metric {name}"
        )
    assert_outputs(trainer.predict_step(evaluated, [], *flat), plain, "predictions")


def assert_outputs(found, plain, where):
    import keras

    for ours, theirs in zip(keras.tree.flatten(found), plain.outputs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3, err_msg=where)


def exported(trainer, client, evaluated, plain, folder):
    """Export what was trained; compare what it serves with what Keras predicts."""
    import tensorflow as tf

    to = folder / f"export_{next(numbers)}"
    pulled = client.pull([], training=False)
    trainer.export(to, pulled.dense, pulled.state, client)
    served = tf.saved_model.load(str(to)).signatures["serving_default"](**evaluated.features)
    assert_outputs({name: value.numpy() for name, value in served.items()}, plain, "export")


def search(number, first_seed, folder, **options):
    @seed(first_seed)
    @settings(
        max_examples=number, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(files())
    def run(file):
        note(file.text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(file, folder, **options)

    run()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"out/kernel": np.full(2, 1.001)}, "Local: out/kernel"),
        ({"other/kernel": np.ones(2)}, "Local: out/kernel is not there"),
    ],
)
def test_a_variable_that_differs_or_is_missing_is_named(values, named):
    plain = types.SimpleNamespace(
        values={"net/items/embeddings": np.zeros(2), "out/kernel": np.ones(2)}
    )
    run = strategies.Trained(values, {"items": np.zeros(2)}, [])
    with pytest.raises(AssertionError, match=named):
        assert_same(run, plain, "Local")


def test_a_random_model_trains_as_in_keras(tmp_path):
    search(1, 0, tmp_path, with_export=False)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_random_models_train_as_in_keras(tmp_path, part):
    search(MODELS // PARTS, 1 + part, tmp_path)
