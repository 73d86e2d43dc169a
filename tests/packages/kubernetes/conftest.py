"""A job on Kubernetes, as a user describes it."""

import pytest

from elasticdl.cli.flags import build_config

MODEL = """
def forward(): ...
def feed(dataset, mode, metadata): ...
def optimizer(): ...
"""


@pytest.fixture
def make_config(tmp_path, monkeypatch):
    """Return a function that makes the settings of a job from flags."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo" / "mnist").mkdir(parents=True)
    (tmp_path / "zoo" / "mnist" / "model.py").write_text(MODEL)

    def make(**words):
        words = {
            "model_zoo": "zoo",
            "model_def": "mnist.model.forward",
            "training_data": "/data/train",
            "job_name": "test-edl",
            "launcher": "kubernetes",
            "volume": "claim_name=files,mount_path=/data",
        } | words
        return build_config("train", words)

    return make
