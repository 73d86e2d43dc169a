"""The checkpoints of a folder are listed while jobs write and delete there."""

import json
import shutil

import pytest

from elasticdl.checkpoints import versions as module
from elasticdl.checkpoints.versions import MANIFEST, version_folder, versions
from elasticdl.locations import parse


@pytest.fixture
def place(tmp_path):
    for version in (10, 20, 30):
        folder = version_folder(tmp_path, version)
        folder.mkdir()
        manifest = {"format": 1, "replicas": [], "job": "a", "written": float(version)}
        (folder / MANIFEST).write_text(json.dumps(manifest))
    return tmp_path


def test_a_checkpoint_that_is_deleted_while_they_are_listed_is_none(place, monkeypatch):
    read = module._manifest

    def read_late(folder):
        if folder == version_folder(place, 20):
            shutil.rmtree(folder)
        return read(folder)

    monkeypatch.setattr(module, "_manifest", read_late)
    assert versions(parse(str(place))) == [10, 30]
