"""`elasticdl.layers.torch` in a plain session is PyTorch's own; in a job its table is elsewhere."""

import copy

import numpy as np
import pyarrow
import pytest

from elasticdl import CountAdmission, Initializer
from elasticdl._core import keys_of_strings
from elasticdl.data.strings import Strings, ids_of_strings
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.lookup import looking_up

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip
from torch.nn import functional as F  # noqa: E402  # as above

from elasticdl.layers.torch import Embedding, EmbeddingBag  # noqa: E402  # as above
from elasticdl.packages.torch.model import PlacedModel  # noqa: E402  # as above

pytestmark = pytest.mark.torch

HUGE = 10**12


def rows_of(layer, ids):
    """Give each id a row that is a function of it alone."""
    return torch.sin(ids[..., None] * torch.arange(1.0, layer.embedding_dim + 1))


@pytest.fixture
def in_job():
    with looking_up(rows_of):
        yield


def test_a_layer_of_a_plain_session_is_that_of_pytorch():
    layer = Embedding(10, 3, padding_idx=-1)
    theirs = nn.Embedding(10, 3, padding_idx=-1, _weight=layer.weight.detach().clone())
    ids = torch.tensor([[0, 9, 3], [3, 3, 1]])

    torch.testing.assert_close(layer(ids), theirs(ids))
    layer(ids).square().sum().backward()
    theirs(ids).square().sum().backward()

    torch.testing.assert_close(layer.weight.grad, theirs.weight.grad)
    assert not layer.weight.detach()[9].any()
    assert isinstance(layer, nn.Embedding)


def test_without_a_number_of_rows_a_plain_session_creates_them():
    layer = Embedding(None, 4, initializer=Initializer("constant", {"value": 0.5}))
    assert layer(torch.tensor([0, 2**62])).tolist() == [[0.5] * 4] * 2
    with pytest.raises(ModelError, match="must not be negative, found -1"):
        layer(torch.tensor([-1]))


BAGS = [
    (mode, shape)
    for mode in ("sum", "mean", "max")
    for shape in ("two axes", "offsets", "last offset", "empty", "weights")
    if shape != "weights" or mode == "sum"  # PyTorch has weights for sums alone
]


@pytest.mark.parametrize(("mode", "shape"), BAGS)
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_bags_are_those_of_pytorch(in_job, mode, padding_idx, shape):
    layer = EmbeddingBag(
        HUGE, 5, mode=mode, padding_idx=padding_idx, include_last_offset=shape == "last offset"
    )
    theirs = nn.EmbeddingBag(
        20, 5, mode=mode, padding_idx=padding_idx, include_last_offset=shape == "last offset",
        _weight=rows_of(layer, torch.arange(20)),
    )  # fmt: skip
    given = {
        "two axes": (torch.tensor([[1, 2, 3], [2, 2, 2], [4, 4, 5]]),),
        "offsets": (torch.tensor([1, 2, 4, 5, 2]), torch.tensor([0, 2, 2])),
        "last offset": (torch.tensor([1, 2, 4, 5, 2]), torch.tensor([0, 2, 5])),
        "empty": (torch.tensor([], dtype=torch.int64), torch.tensor([0, 0])),
        "weights": (torch.tensor([[1, 2], [3, 4]]), None, torch.tensor([[0.5, 2.0], [1.0, 0.1]])),
    }[shape]

    torch.testing.assert_close(layer(*given), theirs(*given))


def test_a_layer_of_a_job_has_a_shape_and_no_memory(in_job):
    layer = Embedding(HUGE, 16, padding_idx=0)

    assert layer.weight.shape == (HUGE, 16)
    with pytest.raises(ModelError, match="calls untyped_storage"):
        layer.weight.untyped_storage()
    rows = layer(torch.tensor([[0, 2**39]], dtype=torch.int64))
    assert rows.shape == (1, 2, 16)
    assert not rows[0, 0].any()
    assert copy.deepcopy(layer).weight.shape == (HUGE, 16)


INITIALIZERS = {
    "uniform_": (lambda w: nn.init.uniform_(w, -0.1, 0.2), ("uniform", {"low": -0.1, "high": 0.2})),
    "normal_": (lambda w: nn.init.normal_(w, std=0.02), ("normal", {"mean": 0.0, "stddev": 0.02})),
    "zeros_": (nn.init.zeros_, ("constant", {"value": 0.0})),
    "constant_": (lambda w: nn.init.constant_(w, 3), ("constant", {"value": 3.0})),
    "xavier": (
        nn.init.xavier_uniform_,
        ("uniform", {"low": -((6 / (200 + 16)) ** 0.5), "high": (6 / (200 + 16)) ** 0.5}),
    ),
    "kaiming": (nn.init.kaiming_normal_, ("normal", {"mean": 0.0, "stddev": (2 / 16) ** 0.5})),
    "data": (lambda w: w.data.uniform_(-1, 1), ("uniform", {"low": -1.0, "high": 1.0})),
    "data.zero_": (lambda w: w.data.zero_(), ("constant", {"value": 0.0})),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_functions_of_torch_nn_init_say_how_rows_begin(in_job, name):
    call, (kind, params) = INITIALIZERS[name]
    layer = Embedding(200, 16)
    assert layer.weight.table_initializer == ("normal", {"mean": 0.0, "stddev": 1.0})
    call(layer.weight)
    found_kind, found = layer.weight.table_initializer
    assert found_kind == kind
    assert found == pytest.approx(params)


def test_rows_that_a_model_file_gives_are_kept(in_job):
    given = torch.arange(6.0).reshape(3, 2)
    frozen = Embedding.from_pretrained(given)
    copied = Embedding(3, 2)
    with torch.no_grad():
        copied.weight.copy_(given)

    np.testing.assert_array_equal(frozen.weight.given, given)
    replaced = Embedding(3, 2)
    replaced.weight.data = given

    np.testing.assert_array_equal(copied.weight.given, given)
    np.testing.assert_array_equal(replaced.weight.given, given)
    assert (frozen.weight.requires_grad, copied.weight.requires_grad) == (False, True)


def test_of_two_ways_to_say_how_rows_begin_the_later_counts(in_job):
    layer = Embedding.from_pretrained(torch.ones(3, 2))
    nn.init.zeros_(layer.weight)
    assert layer.weight.given is None
    layer.weight.data.copy_(torch.ones(3, 2))
    assert layer.weight.given is not None


def test_a_model_may_set_padding_to_zeros_as_usual(in_job):
    layer = Embedding(HUGE, 2, padding_idx=3)
    with torch.no_grad():
        nn.init.normal_(layer.weight)
        layer.weight.data[3].zero_()
        layer.weight[layer.padding_idx].fill_(0)
        layer.weight.data[3] = 0
        nn.init.constant_(layer.weight[3], 0)
        nn.init.zeros_(tensor=layer.weight[3])
    assert layer.weight.table_initializer[0] == "normal"
    with pytest.raises(ModelError, match="sets the row of padding to other values"):
        layer.weight.data[3] = 1.0

    given = Embedding.from_pretrained(torch.ones(3, 2), padding_idx=2)
    given.weight.data[-1].zero_()
    PlacedModel(nn.Sequential(given))
    assert given.weight.given.tolist() == [[1, 1], [1, 1], [0, 0]]


def test_a_layer_is_where_the_model_is_already(in_job):
    layer = nn.Sequential(Embedding(HUGE, 2))
    weight = layer[0].weight
    assert layer.to("cpu").float().cpu().to(torch.float32)[0].weight is weight
    assert weight.given is None
    for move in (lambda: layer.to("cuda"), layer.half, layer.double, layer.cuda):
        with pytest.raises(ModelError, match=r"tables are float32, and --worker_devices says"):
            move()


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_a_gradient_that_no_worker_has_are_refused(in_job, register):
    with pytest.raises(ModelError, match=rf"{register} .* would never be called: in forward"):
        getattr(Embedding(3, 2).weight, register)(lambda gradient: gradient * 2)


def test_rows_that_a_table_would_not_have_are_refused(in_job):
    def refused(layer):
        with pytest.raises(ModelError) as error:
            PlacedModel(nn.Sequential(layer))
        return str(error.value)

    replaced = Embedding(3, 2)
    replaced.weight = nn.Parameter(torch.ones(3, 2))
    assert "0: the model has replaced the weight" in refused(replaced)
    padded = Embedding.from_pretrained(torch.ones(3, 2), padding_idx=-1)
    assert "another row for padding_idx=2" in refused(padded)
    zeros = torch.ones(3, 2).index_fill(0, torch.tensor([2]), 0.0)
    bag = EmbeddingBag.from_pretrained(torch.ones(3, 2), padding_idx=2)
    PlacedModel(nn.Sequential(Embedding.from_pretrained(zeros, padding_idx=2), bag))


USES = {
    "truncated normal": lambda layer: nn.init.trunc_normal_(layer.weight),
    "orthogonal": lambda layer: nn.init.orthogonal_(layer.weight),
    "a row": lambda layer: layer.weight[3],
    "all rows": lambda layer: torch.ones(2, 16) @ layer.weight.T,
    "a sum": lambda layer: layer.weight.sum(),
    "a detached sum": lambda layer: layer.weight.detach().sum(),
}


@pytest.mark.parametrize("use", USES)
def test_a_use_of_the_whole_table_is_refused(in_job, use):
    with pytest.raises(
        ModelError, match=r"Embedding\(1000000000000, 16\), whose table is on the ps"
    ):
        USES[use](Embedding(HUGE, 16))


REFUSED = {
    "max_norm": ({"max_norm": 1.0}, "max_norm=1.0 is not applied"),
    "frequency": ({"scale_grad_by_freq": True}, "scale_grad_by_freq is not applied"),
    "dtype": ({"dtype": torch.float16}, "tables are float32"),
    "wire": ({"wire_dtype": "int8"}, "wire_dtype must be one of float32, float16, bfloat16"),
    "dim": ({"embedding_dim": 0}, "embedding_dim must be a positive integer, not 0"),
    "rows": ({"num_embeddings": -3}, "num_embeddings must be a positive integer, not -3"),
    "padding": ({"padding_idx": 10}, "padding_idx must be one of the ids, 0 to 9, not 10"),
}


@pytest.mark.parametrize("layer", [Embedding, EmbeddingBag])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_applied_is_refused(layer, name):
    settings, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        layer(**{"num_embeddings": 10, "embedding_dim": 4, **settings})


def test_an_admission_is_kept(in_job):
    assert Embedding(10, 2, admission=CountAdmission(3)).admission == CountAdmission(3)


def test_ids_of_floats_are_refused(in_job):
    with pytest.raises(ModelError, match=r"ids must be integers, found a tensor of torch.float32"):
        Embedding(10, 2)(torch.tensor([1.0]))


def test_strings_are_ids_by_their_hash_in_feed(new_torch_job):
    class Names(nn.Module):
        def __init__(self):
            super().__init__()
            self.names = Embedding(None, 2)

        def forward(self, ids):
            return self.names(ids)

    names = pyarrow.array([f"user-{number % 5}" for number in range(48)])
    columns = {"name": Strings(names), "y": np.arange(48) % 2}
    job = new_torch_job(
        columns, 16, model=Names, loss=lambda y, p: F.cross_entropy(p, y),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        feed=lambda dataset, mode, metadata: (
            ids_of_strings(dataset.columns["name"]), dataset.columns["y"]
        ),
    )  # fmt: skip
    ids = keys_of_strings([f"user-{number}" for number in range(5)])
    before = job.client.pull([(0, ids)], training=True).rows[0]
    job.train(columns, 16)
    after = job.client.pull([(0, ids)], training=False).rows[0]

    assert (before != after).all(axis=1).all()
