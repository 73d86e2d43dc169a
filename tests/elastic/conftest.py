"""What the tests of whole jobs share."""

import importlib.util
import sys
from functools import partial

import pytest

from scripts.chaos import job
from tests.elastic.paused_job import PausedJob
from tests.elastic.seen_job import SeenJob


@pytest.fixture(scope="session")
def load_module():
    """Import a file that is in no package."""

    def load(path):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def chaos():
    """Return what knows how to start the counting job, to watch one, and to read its export."""
    return job


@pytest.fixture
def paused_job(tmp_path):
    """Return what makes a counting job that pauses, in a folder of its own."""
    return partial(PausedJob, tmp_path)


@pytest.fixture
def seen_job(tmp_path):
    """Return what makes a paced counting job, in a folder of its own."""
    return partial(SeenJob, tmp_path)
