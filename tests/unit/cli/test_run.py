"""How a job ends that this process computes, and what is written of one that never began."""

import json
import signal

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.cli.run import ends_in_order, run
from elasticdl.errors import ElasticdlError
from elasticdl.launchers.process.folder import prepare


@pytest.fixture
def after_sigterm():
    """Return a function that sends SIGTERM to a job; it returns what another one would do."""

    def send():
        with ends_in_order():
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                return signal.getsignal(signal.SIGTERM)

    return send


def test_sigterm_ends_a_job_in_this_process_as_ctrl_c_does_and_at_once_the_second_time(
    after_sigterm,
):
    before = signal.getsignal(signal.SIGTERM)
    assert after_sigterm() is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("is_there", "said"), [(True, "finished"), (False, "failed")])
def test_a_command_that_is_refused_leaves_the_summary_of_the_job_in_its_folder(
    is_there, said, tmp_path
):
    path = tmp_path / "summary.json"
    path.write_text('{"status": "finished"}')
    words = {"model_def": "nowhere.forward", "training_data": "d.csv", "job_dir": tmp_path / "job"}
    config = build_config("train", {n: str(v) for n, v in {**words, "summary": path}.items()})
    if is_there:
        prepare(config)
    with pytest.raises(ElasticdlError):
        run(config, look="quiet")
    assert json.loads(path.read_text())["status"] == said
