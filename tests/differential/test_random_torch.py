"""Random models in PyTorch give by every strategy what a plain loop gives, or are refused by name.

A hundred in `make test-torch` with the long tests; more by hand:
`ELASTICDL_RANDOM_MODELS=1000 pytest -m 'torch and long' tests/differential`. A model that fails is
printed as a file. Each is trained for ten steps; every minibatch has every id, since plain
optimizers move rows that a minibatch does not have.
"""

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.model_spec import ModelSpec

sys.path.insert(0, str(Path(__file__).parent))
import strategies  # beside this file
from generate_torch import CLASSES, NUM_IDS, WIDTH, files  # as above
from strategies import MINIBATCH, flat_of, module_of, numbers

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(3600)]

TOLERANCE = 2e-5
MODELS = int(os.environ.get("ELASTICDL_RANDOM_MODELS", "100"))


def columns_of(index):
    """Return a minibatch in which each id occurs; some kinds are missing in some."""
    rng = np.random.default_rng(index)
    ids = strategies.ids_of(rng, NUM_IDS)
    y = rng.normal(size=(MINIBATCH, 1)).astype(np.float32)
    kind = rng.integers(CLASSES if index % 3 else CLASSES - 1, size=MINIBATCH)
    x = rng.normal(size=(MINIBATCH, WIDTH)).astype(np.float32)
    return {"ids": ids, "x": x, "kind": kind, "y": y}


def built(text, folder):
    """Return the module, a trainer and its description, and the minibatches of a training."""
    from elasticdl.backends.load import load_trainer

    module = module_of(text, folder)
    spec = ModelSpec(
        module.forward, module.loss, module.optimizer, module.feed, module.eval_metrics_fn,
        None, None, None,
    )  # fmt: skip
    trainer = load_trainer(spec, Metadata(), 5, 0, 1, False)
    return trainer, *strategies.built(trainer, columns_of)


def plain(text, begins, minibatches, folder):
    """Train by a loop of PyTorch's own; return all values by name, and the losses."""
    module = module_of(text, folder)
    torch.manual_seed(5)
    net = module.forward().train()
    criterion = module.loss
    with torch.no_grad():
        named = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        for name, tensor in named.items():
            value = begins.values.get(name, begins.rows.get(name.removesuffix(".weight")))
            if value is not None:
                tensor.copy_(torch.from_numpy(value).to(tensor.dtype))
        if "ids" in begins.rows and net.ids.padding_idx is not None:
            net.ids.weight[net.ids.padding_idx] = 0.0  # which a table need not have
    made = module.optimizer(net.parameters())
    optimizer, losses = getattr(made, "optimizer", made), []
    inner = getattr(criterion, "func", criterion)
    is_of_torch = isinstance(inner, torch.nn.Module) or inner.__module__ == "torch.nn.functional"
    for minibatch in minibatches:
        torch.manual_seed(minibatch.seed)
        both = (net(minibatch.features), minibatch.labels)
        loss = criterion(*both) if is_of_torch else criterion(*both[::-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if made is not optimizer:
            made.step()
        losses.append(loss.item())
    found = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    if isinstance(criterion, torch.nn.Module):
        found |= {f"loss.{name}": value for name, value in criterion.named_buffers()}
    return {name: value.detach().numpy() for name, value in found.items()}, losses, net.eval()


def compare(file, folder):
    """Train a file by all strategies, and compare each with a plain loop."""
    in_model, moved = file.with_tables(False), file.with_tables(True)
    if file.refused:
        with pytest.raises(ModelError, match=rf"model\.{file.refused}"):
            built(moved, folder)
        return
    trainer, description, minibatches, halves = built(in_model, folder)
    begins = strategies.begin(trainer, description, NUM_IDS)
    expected, losses, net = plain(in_model, begins, minibatches, folder)
    args = trainer, description, minibatches, NUM_IDS
    runs = {
        "Local": strategies.local(*args),
        "two ps replicas": strategies.with_ps(*args),
        "restored": strategies.restored(*args, folder / f"checkpoint_{next(numbers)}"),
    }
    for name, run in runs.items():
        np.testing.assert_allclose(run.losses, losses, rtol=1e-4, atol=1e-5, err_msg=name)
        strategies.assert_same(run, expected, TOLERANCE, name)
    exported(trainer, runs["Local"], description, net, minibatches[0], folder)
    if file.is_halved:
        run = strategies.all_reduce(trainer, description, halves)
        strategies.assert_same(run, expected, TOLERANCE, "two workers by all-reduce")
    trainer, description, minibatches, _ = built(moved, folder)
    begins = strategies.begin(trainer, description, NUM_IDS)
    expected, losses, _ = plain(in_model, begins, minibatches, folder)
    run = strategies.local(trainer, description, minibatches, NUM_IDS)
    if "padding_idx" in moved:
        run.rows["ids"][0] = 0.0  # what the layer gives, whatever is there
    np.testing.assert_allclose(run.losses, losses, rtol=1e-4, atol=1e-5, err_msg="moved tables")
    strategies.assert_same(run, expected, TOLERANCE, "moved tables")


def exported(trainer, run, description, net, minibatch, folder):
    """Export what was trained; compare its weights with those of the plain loop."""
    from elasticdl.packages.torch.export import export_weights, read_export

    flat = flat_of(run, description)
    given = trainer.predict_step(minibatch, [], *flat)
    with torch.no_grad():
        theirs = net(minibatch.features).numpy()
    np.testing.assert_allclose(given, theirs, rtol=1e-3, atol=1e-4, err_msg="predictions")
    to = folder / f"export_{next(numbers)}"
    to.mkdir()
    trainer._placed.load(*flat)
    export_weights(trainer._placed.model, to, "not asked for")
    weights, _ = read_export(to)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-4, atol=TOLERANCE, err_msg=name)


def search(number, folder):
    @settings(
        max_examples=number, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(files())
    def run(file):
        note(file.with_tables(True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(file, folder)

    run()


def test_ten_random_models_train_as_in_a_plain_loop(tmp_path):
    search(10, tmp_path)


@pytest.mark.long
def test_a_hundred_random_models_train_as_in_a_plain_loop(tmp_path):
    search(MODELS, tmp_path)
