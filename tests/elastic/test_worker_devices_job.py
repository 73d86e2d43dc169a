"""`--worker_devices` in whole jobs: what a worker is told, and what ends a job at once."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import elasticdl.controller, pathlib, torch

controller = elasticdl.controller.init()
pathlib.Path(f"device-{controller.worker_id}").write_text(controller.device)
model = torch.nn.Linear(1, 1).to(controller.device)
optimizer = controller.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for records in controller.minibatches():
    loss = model(torch.ones(len(records), 1, device=controller.device)).square().mean()
    loss.backward()
    optimizer.step(loss)
"""


def run(folder, *flags):
    (folder / "train.csv").write_text("".join(f"{number}\n" for number in range(64)))
    (folder / "loop.py").write_text(SCRIPT)
    words = ["run", "loop.py", "--training_data=train.csv", "--minibatch_size=16", "--job_dir=job"]
    return subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", *words, *flags],
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_worker_computes_on_the_device_of_its_seat(tmp_path):
    done = run(tmp_path, "--worker_devices=cpu,cuda:99")  # the second seat stays empty
    assert done.returncode == 0, done.stdout + done.stderr
    assert [file.read_text() for file in tmp_path.glob("device-*")] == ["cpu"]
    assert (tmp_path / "job" / "devices" / "seat-0").is_file()


def test_a_device_that_is_not_there_ends_the_job_and_says_what_there_is(tmp_path):
    done = run(tmp_path, "--worker_devices=cuda:0", "--num_workers=2")
    assert done.returncode == 1
    assert "--worker_devices: expected cuda:0 on the machine of each worker" in done.stderr
