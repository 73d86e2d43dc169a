"""Where the library of Weights & Biases may find a key, so that a job without one is refused."""

import pytest

from elasticdl.packages.trackers.wandb_run import has_key


@pytest.mark.parametrize(
    ("environment", "file", "is_there"),
    [
        ({}, None, False),
        ({"WANDB_MODE": "online"}, None, False),
        ({"WANDB_MODE": "offline"}, None, True),
        ({"WANDB_API_KEY": "key"}, None, True),
        ({}, ".netrc", True),
        ({}, ".config/wandb/settings", True),
        ({}, "wandb/settings", True),
    ],
)
def test_a_key_is_looked_for_where_the_library_does(
    environment, file, is_there, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if file is not None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert has_key(environment, tmp_path) is is_there
