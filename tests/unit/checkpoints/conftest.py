"""Places for checkpoints: a folder, and URLs."""

import pytest

from elasticdl.locations import parse


@pytest.fixture(
    params=[
        *("folder", "memory", "webhdfs"),
        pytest.param("gs", marks=pytest.mark.long),  # the emulator serves one request at a time
        pytest.param("s3", marks=pytest.mark.s3),
    ]
)
def place(request, tmp_path):
    """Return where checkpoints may lie; nothing is there."""
    match request.param:
        case "folder":
            return tmp_path / "checkpoints"
        case "memory":
            return parse(f"memory://{tmp_path}/checkpoints")
        case "gs":
            return parse(f"{request.getfixturevalue('gs')}/checkpoints")
        case "webhdfs":
            return parse(f"{request.getfixturevalue('webhdfs').url}/jobs/checkpoints")
        case _:
            return parse(f"{request.getfixturevalue('s3')}/checkpoints")
