"""`elasticdl run`: a training loop of its own on several workers, of which some are lost."""

import json
import signal
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.packages.own_loops.script_job import ScriptJob, check_fails, check_ledger

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

HERE = Path(__file__).parent
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def parameters(job):
    from safetensors.numpy import load_file

    return load_file(job.folder / "export" / "model.safetensors")


def check_counts(job, summary, num_records):
    check_ledger(summary, num_records)
    # The model itself has counted: sqrt(g * g) may differ from |g| in the last bit.
    np.testing.assert_allclose(parameters(job)["visits"], np.ones(num_records), rtol=1e-5)


@pytest.mark.parametrize("batch", [{}, {"global_batch_size": 80}], ids=["rounds", "global batch"])
def test_workers_are_killed_and_asked_to_end_and_each_record_counts_once(tmp_path, batch):
    finals = tmp_path / "finals"
    finals.mkdir()
    words = ["--num_records=8000", "--seconds=0.3", f"--finals={finals}"]
    with ScriptJob(
        tmp_path,
        HERE / "script_loop.py",
        8_000,
        words,
        num_workers=4,
        minibatch_size=16,
        num_minibatches_per_task=5,
        **batch,
    ) as job:
        job.until_trained(250, also=partial(job.has_world_of, 4))
        job.send("worker", 1)
        job.until_trained(600)
        job.send("worker", 1, signal.SIGTERM)
        job.hurry()
        summary = job.finish()
    check_counts(job, summary, 8_000)
    digests = job.digests()
    assert len(digests) >= 2, job.log()  # two at least were there all the time
    assert len(set(digests)) == 1
    assert summary["staleness"]["max"] == 0
    assert parameters(job)["minibatches"] == 8_000 / 16


def test_processes_of_a_data_loader_make_examples_and_end_with_their_worker(tmp_path):
    finals = tmp_path / "finals"
    finals.mkdir()
    words = ["--num_records=6000", "--seconds=0.3", f"--finals={finals}", "--num_loaders=2"]
    with ScriptJob(
        tmp_path,
        HERE / "script_loop.py",
        6_000,
        words,
        num_workers=3,
        minibatch_size=16,
        num_minibatches_per_task=5,
    ) as job:
        job.until_trained(200, also=partial(job.has_world_of, 3))
        victim = psutil.Process(job.processes("worker")[1].pid)
        job.until(lambda _: len(victim.children(recursive=True)) >= 2)
        orphans = victim.children(recursive=True)
        victim.kill()
        job.hurry()
        summary = job.finish()
    assert len(orphans) >= 2
    check_counts(job, summary, 6_000)
    _, alive = psutil.wait_procs(orphans, timeout=120)  # a loader's process looks every 5 s
    assert not alive
    assert len(set(job.digests())) == 1, job.log()
    assert {2, 3} <= job.world_sizes()


def test_all_workers_dead_at_once_roll_back_together_with_the_ledger(tmp_path):
    finals = tmp_path / "finals"
    finals.mkdir()
    with ScriptJob(
        tmp_path,
        HERE / "script_loop.py",
        4_000,
        ["--num_records=4000", "--seconds=0.2", f"--finals={finals}"],
        num_workers=2,
        minibatch_size=16,
        num_minibatches_per_task=5,
        recovery_seconds=0.3,
    ) as job:
        job.until_trained(300, also=job.has_checkpoint)
        for worker in job.processes("worker"):
            worker.kill()
        job.hurry()
        summary = job.finish()
    check_counts(job, summary, 4_000)
    (restored,) = job.events("world restored")
    assert restored["version"] > 0


NETWORK = """
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # A bias before batch norm would have no gradient but noise.
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2),
            torch.nn.ReLU(), torch.nn.Linear(8, 1),
        )

    def loss(self, numbers):
        x = torch.tensor([[n % 7, n % 5, n % 3] for n in numbers], dtype=torch.float32)
        return (self.layers(x)[:, 0] - x.sum(1)).square().mean()

def make():
    model = Network()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, adam, torch.optim.lr_scheduler.StepLR(adam, step_size=10, gamma=0.5)
"""

LOOP = """
import json, sys
import elasticdl.controller
import network, torch

controller = elasticdl.controller.init()
model, _, scheduler = network.make()
torch.save(model.state_dict(), "first.pt")
optimizer = controller.wrap(model, scheduler)
seen = []
for records in controller.minibatches():
    numbers = [int(record) for record in records]
    seen.append((torch.initial_seed(), numbers))
    optimizer.zero_grad(set_to_none=True)
    loss = model.loss(numbers)
    loss.backward()
    optimizer.step(loss)
json.dump(seen, open("seen.json", "w"))
torch.save(model.state_dict(), "last.pt")
"""


def test_one_worker_trains_as_a_plain_loop_in_pytorch(tmp_path, monkeypatch):
    (tmp_path / "network.py").write_text(NETWORK)
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    with ScriptJob(
        tmp_path, "loop.py", 1_000, minibatch_size=32, num_minibatches_per_task=4
    ) as job:
        job.finish()
    namespace = {}
    exec(NETWORK, namespace)
    model, adam, scheduler = namespace["make"]()
    model.load_state_dict(torch.load("first.pt"))
    seen = json.loads(Path("seen.json").read_text())
    assert sorted(number for _, numbers in seen for number in numbers) == list(range(1_000))

    for seed, numbers in seen:
        torch.manual_seed(seed)
        adam.zero_grad()
        model.loss(numbers).backward()
        adam.step()
        scheduler.step()

    last, exported = torch.load("last.pt"), parameters(job)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(last[name], value, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(exported[name], last[name])


BODIES = {
    "raises": ("x = 1 / (len(records) - 8)", "ZeroDivisionError"),
    "no step": ("continue", "expected optimizer.step(loss) for each minibatch, found none"),
    "ends early": ("break", "has ended before the job"),
    "no backward": ("optimizer.step(1.0)", "no parameter has a gradient"),
    "moves the rate": (
        "model(torch.ones(1)).sum().backward(); sgd.param_groups[0]['lr'] = 0.2;"
        " optimizer.step(1.0)",
        "changed the learning rate",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_script_that_does_not_do_its_part_fails_the_job_and_says_why(tmp_path, name):
    body, message = BODIES[name]
    head = (
        "import elasticdl.controller, torch\n"
        "controller = elasticdl.controller.init()\n"
        "model = torch.nn.Linear(1, 1)\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "optimizer = controller.wrap(model, sgd)\n"
    )
    check_fails(tmp_path, head, body, message, max_relaunches=1)
