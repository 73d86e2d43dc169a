"""Metrics of a PyTorch model: what they get, and which of torchmetrics a job can add up."""

import collections

import pytest

from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

torchmetrics = pytest.importorskip("torchmetrics")

from tests.packages.torch.plain_model import Net, feed, loss, make_columns  # noqa: E402

pytestmark = pytest.mark.torch


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


class Output(collections.OrderedDict):
    """A dict with attributes, as models of other libraries return it."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def test_a_metric_and_the_loss_of_an_evaluation_get_what_the_model_returns(new_torch_job):
    class Named(Net):
        def forward(self, features):
            return Output(logits=super().forward(features))

    job = new_torch_job(
        make_columns(), 32, model=Named, feed=feed, optimizer=sgd,
        loss=lambda labels, predictions: loss(labels, predictions.logits),
        eval_metrics_fn=lambda: {"mean": lambda y, predictions: predictions.logits},
    )  # fmt: skip
    assert job.evaluate(make_columns(), 32).keys() == {"mean", "loss"}
    [predicted] = job.predictions(make_columns(), 64)
    assert type(predicted) is dict


def test_a_collection_of_metrics_is_refused_before_training(new_torch_job):
    collection = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError()])
    functions = {"model": Net, "feed": feed, "loss": loss, "optimizer": sgd}
    with pytest.raises(ModelError, match=r"'all' is a MetricCollection.*dict\(collection.items"):
        new_torch_job(make_columns(), 32, eval_metrics_fn=lambda: {"all": collection}, **functions)
    job = new_torch_job(
        make_columns(), 32, eval_metrics_fn=lambda: dict(collection.items()), **functions
    )
    assert job.evaluate(make_columns(), 32)["MeanSquaredError"] > 0


def test_a_function_of_metrics_that_raises_is_named(new_torch_job):
    functions = {"model": Net, "feed": feed, "loss": loss, "optimizer": sgd}
    with pytest.raises(ModelError, match=r"eval_metrics_fn raised KeyError: 'no' \(.*metrics\.py"):
        new_torch_job(make_columns(), 32, eval_metrics_fn=lambda: {}["no"], **functions)


def test_states_of_metrics_of_torchmetrics_add_up(new_torch_job):
    classification = torchmetrics.classification
    columns = make_columns(200)
    job = new_torch_job(
        columns, 32, model=Net, feed=feed, loss=loss, optimizer=sgd,
        eval_metrics_fn=lambda: {"auc": classification.BinaryAUROC(thresholds=200)},
    )  # fmt: skip
    whole = job.evaluate(columns, 200)
    states = []
    for part in (slice(0, 90), slice(90, 200)):
        job.evaluate({name: values[part] for name, values in columns.items()}, 50)
        states.append(job.backend.metric_states())
    summed = {
        name: [a + b for a, b in zip(*(s[name] for s in states), strict=True)] for name in states[0]
    }

    assert job.backend.metric_results(summed) == pytest.approx(whole, rel=1e-6)
    assert whole.keys() == {"auc", "loss"}
    whose = classification.BinaryAUROC
    for metric, message in (
        (whose(), r"BinaryAUROC\) keeps .* not a sum"),
        (whose(thresholds=9) + 1.0, r"CompositionalMetric\) is made of other metrics"),
    ):
        with pytest.raises(ModelError, match=message):
            new_torch_job(
                columns, 32, model=Net, feed=feed, loss=loss, optimizer=sgd,
                eval_metrics_fn=lambda metric=metric: {"auc": metric},
            )  # fmt: skip


class OfErrors(torchmetrics.Metric):
    """The mean error of all records and of one that is made up, whose error is 3."""

    minibatches = 0

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.tensor(3.0), dist_reduce_fx="sum")
        self.add_state("records", torch.tensor(1), dist_reduce_fx="sum")

    def update(self, predictions, labels):
        self.total += (predictions - labels).abs().sum()
        self.records += len(labels)
        self.minibatches += 1

    def compute(self):
        return self.total / self.records


class OfMinibatches(OfErrors):
    def compute(self):
        return self.total / self.minibatches


class OfTheLast(OfErrors):
    def update(self, predictions, labels):
        self.total = (predictions - labels).abs().sum()


def test_a_metric_of_torchmetrics_may_begin_with_any_number_which_counts_once(new_torch_job):
    columns = make_columns(100)
    functions = {"model": Net, "feed": feed, "loss": loss, "optimizer": sgd}
    job = new_torch_job(columns, 32, eval_metrics_fn=lambda: {"error": OfErrors()}, **functions)
    whole, states = job.evaluate(columns, 32)["error"], []
    for part in (slice(0, 60), slice(60, 100)):
        job.evaluate({name: values[part] for name, values in columns.items()}, 32)
        states.append(job.backend.metric_states()["error"])
    summed = [a + b for a, b in zip(*states, strict=True)]
    assert job.backend.metric_results({"error": summed})["error"] == pytest.approx(whole, rel=1e-6)
    errors = torch.from_numpy(job.predict(columns, 32)) - next(job.minibatches(columns, 100)).labels
    assert whole == pytest.approx((3 + errors.abs().sum().item()) / 101, rel=1e-5)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (OfMinibatches, "does not follow from its states alone: what Python keeps"),
        (OfTheLast, "after two minibatches is not the sum of its states after each"),
    ],
)
def test_a_metric_of_torchmetrics_whose_states_do_not_say_all_is_refused(
    metric, message, new_torch_job
):
    columns = make_columns()
    functions = {"model": Net, "feed": feed, "loss": loss, "optimizer": sgd}
    job = new_torch_job(columns, 32, eval_metrics_fn=lambda: {"error": metric()}, **functions)
    with pytest.raises(ModelError, match=rf"'error' \({metric.__name__}\): .*{message}"):
        job.evaluate(columns, 32)
