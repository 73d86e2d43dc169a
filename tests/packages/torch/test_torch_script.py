"""What a script may give to its job, and what it is told otherwise."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from elasticdl.backends.base import ClipSpec  # noqa: E402  # torch may be missing
from elasticdl.data.base import Records  # noqa: E402
from elasticdl.errors import DataError, ModelError  # noqa: E402
from elasticdl.job import Mode  # noqa: E402
from elasticdl.layers.torch import Embedding  # noqa: E402
from elasticdl.optimizers import UpdateRule  # noqa: E402
from elasticdl.optimizers.torch import clip_grad_norm  # noqa: E402
from elasticdl.packages.own_loops.frameworks import ScriptFrameworks  # noqa: E402
from elasticdl.packages.own_loops.handover import GradientRequest, Handover  # noqa: E402  # torch may be missing
from elasticdl.packages.torch.loading import Loading, TaskBatches  # noqa: E402
from elasticdl.packages.torch.script import ScriptTrainer  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def a_step(trainer):
    (minibatch,) = trainer.minibatches(iter([Records(values=[b"1", b"2"])]), Mode.TRAINING, 2, 5)
    return GradientRequest(minibatch, *trainer.initial_values())


def test_gradients_of_a_step_are_those_that_backward_leaves():
    model = torch.nn.Linear(2, 1)
    trainer = ScriptTrainer(Handover(), model, sgd(model), seed=0)
    step = a_step(trainer)
    assert sorted(trainer.begin_step(step)) == [b"1", b"2"]
    model(torch.tensor([[3.0, 4.0]])).sum().backward()
    result = trainer.end_step(step, torch.tensor(0.5))
    np.testing.assert_array_equal(result.dense_grad, [3.0, 4.0, 1.0])
    assert result.loss == 0.5
    assert all(p.grad is None for p in model.parameters())


def test_a_scheduler_in_place_of_the_optimizer_is_told_to_count_updates():
    model = torch.nn.Linear(2, 1)
    scheduler = torch.optim.lr_scheduler.StepLR(sgd(model), 10)
    [told] = ScriptTrainer(Handover(), model, scheduler, seed=0).notes
    assert told.startswith("StepLR counts updates of the model")
    assert not ScriptTrainer(Handover(), model, sgd(model), seed=0).notes


def test_the_same_task_gives_the_same_minibatches_and_random_numbers():
    model = torch.nn.Linear(1, 1)
    trainer = ScriptTrainer(Handover(), model, sgd(model), seed=0)
    chunks = [Records(values=[b"%d" % i for i in range(start, start + 5)]) for start in (0, 5)]

    def cut(seed):
        found = trainer.minibatches(iter(chunks), Mode.TRAINING, 4, seed)
        return [(minibatch.features, minibatch.seed) for minibatch in found]

    assert cut(7) == cut(7) != cut(8)
    assert [len(features) for features, _ in cut(7)] == [4, 4, 2]
    assert sorted(int(r) for features, _ in cut(7) for r in features) == list(range(10))


def test_a_script_clips_by_its_optimizer_what_that_optimizer_updates():
    model = torch.nn.Linear(2, 1)
    optimizer = clip_grad_norm(torch.optim.SGD([model.weight], lr=0.1), 2.0)
    trainer = ScriptTrainer(Handover(), model, optimizer, seed=0)
    step = a_step(trainer)
    trainer.begin_step(step)
    model(torch.tensor([[3.0, 4.0]])).sum().backward()

    assert trainer.build(step.minibatch).clip == ClipSpec("global_norm", 2.0)
    np.testing.assert_array_equal(trainer.end_step(step, 0.5).dense_grad, [3.0, 4.0, 0.0])


def take_step(model, optimizer, change, loss):
    trainer = ScriptTrainer(Handover(), model, optimizer, seed=0)
    step = a_step(trainer)
    trainer.begin_step(step)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    change()
    trainer.end_step(step, loss)


def refused(model, optimizer, change=lambda: None, loss=1.0):
    """Return what a script is told that changes something, and takes a step."""
    with pytest.raises(ModelError) as error:
        take_step(model, optimizer, change, loss)
    return str(error.value)


def test_what_the_job_cannot_apply_is_refused():
    linear = torch.nn.Linear(2, 1)
    lazy = torch.nn.LazyLinear(1)
    table = Embedding(None, 4)
    double = torch.nn.Linear(2, 1).double()
    schedule = torch.optim.lr_scheduler.StepLR(sgd(linear), 1)

    assert "has no shape yet" in refused(lazy, sgd(linear))
    assert "table" in refused(table, sgd(linear))
    assert "expected float32 on the CPU" in refused(double, sgd(double))
    assert "Adamax is not one" in refused(linear, torch.optim.Adamax(linear.parameters()))
    assert "leave it out" in refused(linear, schedule, change=lambda: schedule.step())
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd(linear))
    assert "wrap(model, optimizer) gets ReduceLROnPlateau" in refused(linear, plateau)
    both = torch.optim.SGD([*linear.parameters(), torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert "optimizer) gets an optimizer of 1 parameters that are not" in refused(linear, both)
    assert "optimizer) gets an optimizer for which" in refused(linear, schedule.optimizer)
    rule = UpdateRule(lambda weight, gradient, slots, step, learning_rate: (weight, slots), {})
    assert "expected an optimizer of torch.optim, or" in refused(linear, rule)


def test_the_framework_is_that_of_the_model():
    frameworks = ScriptFrameworks(0, torch.get_num_threads(), "cpu")
    linear = torch.nn.Linear(2, 1)
    assert isinstance(frameworks.trainer(Handover(), linear, sgd(linear)), ScriptTrainer)
    with pytest.raises(ModelError, match=r"a torch\.nn\.Module, found builtins\.dict"):
        frameworks.trainer(Handover(), {}, None)


def test_what_is_of_keras_is_refused():
    linear = torch.nn.Linear(2, 1)
    trainer = ScriptTrainer(Handover(), linear, sgd(linear), seed=0)
    with pytest.raises(ModelError, match="is for models in Keras"):
        trainer.end_step(a_step(trainer), 1.0, [])


def test_a_step_of_which_nothing_is_wrong_is_taken():
    linear = torch.nn.Linear(2, 1)
    take_step(linear, sgd(linear), lambda: None, 1.0)
    named = torch.optim.Adam(linear.named_parameters())
    take_step(linear, named, lambda: None, 1.0)


def test_a_parameter_that_is_frozen_at_first_rests_and_may_be_trained_later():
    model = torch.nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    trainer = ScriptTrainer(Handover(), model, sgd(model), seed=0)
    step = a_step(trainer)

    def gradient_of_bias(is_trained):
        trainer.begin_step(step)
        model.bias.requires_grad_(is_trained)
        model(torch.ones(1, 2)).sum().backward()
        return trainer.end_step(step, 1.0).dense_grad[2]

    assert all(one.trainable and one.may_rest for one in trainer.build(step.minibatch).dense)
    assert np.signbit(gradient_of_bias(False))
    assert gradient_of_bias(True) == 1.0
    assert np.signbit(gradient_of_bias(False))


def test_what_is_changed_behind_the_job_is_refused():
    linear = torch.nn.Linear(2, 1)
    optimizer = sgd(linear)

    def move():
        linear.weight.data = linear.weight.data.clone()  # as an LSTM does on a GPU

    def replace():
        linear.weight.data = torch.zeros(1, 2)

    def set_rate():
        optimizer.param_groups[0]["lr"] = 0.2

    def put():
        linear.bias = torch.nn.Parameter(torch.zeros(1))

    def add():
        linear.more = torch.nn.Linear(1, 1)

    take_step(linear, optimizer, move, 1.0)
    for change in (put, add):
        model = torch.nn.Sequential(linear := torch.nn.Linear(2, 1))
        assert "other parameters than at wrap" in refused(model, sgd(model), change=change)
    linear = torch.nn.Linear(2, 1)
    optimizer = sgd(linear)
    assert "was moved or replaced" in refused(linear, optimizer, change=replace)
    assert "expected one number" in refused(linear, optimizer, loss=torch.ones(2))
    assert "a closure is not called" in refused(linear, optimizer, loss=lambda: 1.0)
    assert "changed the learning rate" in refused(linear, optimizer, change=set_rate)


def refused_at_the_next_step(model, change, at_step=False):
    """Return what a script is told that changes its model after a step, or before it."""
    trainer = ScriptTrainer(Handover(), model, sgd(model), seed=0)
    step = a_step(trainer)
    trainer.begin_step(step)
    if at_step:
        change()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    trainer.end_step(step, 1.0)
    if not at_step:
        change()
    with pytest.raises(ModelError) as error:
        trainer.begin_step(step)
    return str(error.value)


def test_what_is_changed_in_place_is_refused_before_it_is_lost():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    linear, norm = model

    def clamp():
        linear.weight.data.clamp_(-1e-3, 1e-3)

    assert "has changed parameter '0.weight' by itself" in refused_at_the_next_step(model, clamp)
    words = refused_at_the_next_step(model, lambda: torch.nn.init.zeros_(linear.bias), True)
    assert "has changed parameter '0.bias' by itself" in words
    model.eval()
    words = refused_at_the_next_step(model, lambda: norm.running_mean.fill_(3.0))
    assert "changed a buffer of the model after step(loss)" in words


def test_a_swap_of_parameters_that_is_taken_back_is_no_change():
    linear = torch.nn.Linear(2, 1)
    trainer = ScriptTrainer(Handover(), linear, sgd(linear), seed=0)
    step = a_step(trainer)
    trainer.begin_step(step)
    before = linear.weight.detach().clone()
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight.copy_(before)
    linear(torch.ones(1, 2)).sum().backward()
    trainer.end_step(step, 1.0)
    trainer.begin_step(step)


def test_settings_of_the_optimizer_that_the_script_changes_are_refused():
    linear = torch.nn.Linear(2, 1)
    groups = [{"params": [linear.weight]}, {"params": [linear.bias], "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    def set_to(group, name, value):
        optimizer.param_groups[group][name] = value

    def change(*words):
        return refused(linear, optimizer, change=lambda: set_to(*words))

    assert "changed weight_decay of the optimizer," in change(0, "weight_decay", 0.1)
    assert "changed momentum of the optimizer (parameter group 1)" in change(1, "momentum", 0.0)
    assert "changed the learning rate of the optimizer (parameter" in change(1, "lr", 0.02)
    more = {"params": [torch.nn.Parameter(torch.zeros(1))]}
    words = refused(linear, optimizer, change=lambda: optimizer.add_param_group(more))
    assert "has added parameters to the optimizer" in words


def test_a_loader_that_would_not_give_the_minibatches_of_tasks_is_refused():
    batches = TaskBatches()

    def refused_loader(*args, **kwargs):
        with pytest.raises(ModelError) as error:
            Loading(torch.utils.data.DataLoader([], *args, **kwargs), batches, 0)
        return str(error.value)

    assert "found one on another sampler" in refused_loader()
    assert "found one on another sampler" in refused_loader(sampler=batches)  # of batch_size=1
    assert "leave out in_order=False" in refused_loader(batch_sampler=batches, in_order=False)
    Loading(torch.utils.data.DataLoader([], sampler=batches, batch_size=None), batches, 0)
    assert "say persistent_workers=True" in refused_loader(batch_sampler=batches, num_workers=1)
    with pytest.raises(ModelError, match=r"expected a torch\.utils.*found list"):
        Loading([], batches, 0)


def test_a_dataset_that_raises_is_named():
    class Strict(torch.utils.data.Dataset):
        def __getitem__(self, record):
            return int(record)

    batches = TaskBatches()
    loader = torch.utils.data.DataLoader(Strict(), batch_sampler=batches)
    loading = Loading(loader, batches, 0)
    loading.start()
    assert [part.tolist() for part in loading.loaded([[b"1", b"2"], [b"3"]])] == [[1, 2], [3]]
    with pytest.raises(DataError, match=r"raised ValueError.*test_torch_script\.py"):
        list(loading.loaded([[b"1"], [b"x"]]))


def test_what_the_worker_asks_for_is_done_in_the_scripts_thread():
    handover, seen = Handover(), []
    worker = threading.Thread(
        target=lambda: (
            handover.call(lambda: seen.append(threading.current_thread())),
            handover.end(),
        )
    )
    worker.start()
    assert handover.take() is None
    worker.join()
    assert seen == [threading.current_thread()]


def test_a_failure_of_the_worker_reaches_the_script():
    handover = Handover()
    handover.end(ModelError("the ring is gone"))
    with pytest.raises(ModelError, match="the ring is gone"):
        handover.take()
