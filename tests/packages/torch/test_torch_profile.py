import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from elasticdl.packages.torch import profile  # noqa: E402  # after the skip

pytestmark = pytest.mark.torch


def test_pytorch_writes_a_chrome_trace(tmp_path):
    end = profile.begin(tmp_path / "own")
    torch.ones(64, 64).matmul(torch.ones(64, 64))
    end()
    events = json.loads((tmp_path / "own" / profile.FILE).read_text())["traceEvents"]
    assert any("matmul" in event.get("name", "") for event in events)
