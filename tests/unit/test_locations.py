"""Paths and URLs: how they are read, and what is said when they lead nowhere."""

import sys
from pathlib import Path

import pytest
from fsspec.registry import _registry
from pydantic import ValidationError

from elasticdl.config import JobConfig
from elasticdl.errors import CheckpointError, ConfigError
from elasticdl.locations import is_remote, parse, reaching


def config(command="train", **checkpoint):
    data = {"train": "training_data", "predict": "prediction_data"}[command]
    return JobConfig.model_validate(
        {
            "command": command,
            "model": {"model_def": "zoo.forward"},
            "data": {data: "data"},
            "checkpoint": checkpoint,
        }
    )


@pytest.mark.parametrize(
    ("words", "path"),
    [("a/b", "a/b"), ("/a", "/a"), ("file:///a/b", "/a/b"), ("a:b/c", "a:b/c")],
)
def test_paths_stay_paths(words, path):
    location = parse(words)
    assert location == Path(path)
    assert not is_remote(location)


@pytest.mark.parametrize("url", ["s3://bucket/a/b", "gs://bucket/a", "webhdfs://host:9870/a"])
def test_urls_are_kept_as_they_were_written(url):
    location = parse(url)
    assert is_remote(location)
    assert str(location) == url
    assert str(location / "c") == f"{url}/c"


def test_url_of_an_unknown_kind_is_refused_with_its_flag():
    with pytest.raises(ValidationError, match=r"--checkpoint_dir: expected a path, or a URL"):
        config(checkpoint_dir="foo://a/b")


def test_configuration_goes_through_json():
    first = config(checkpoint_dir="s3://bucket/a", output="out")
    again = JobConfig.model_validate_json(first.model_dump_json())
    assert again == first
    assert str(again.checkpoint.checkpoint_dir) == "s3://bucket/a"
    assert again.checkpoint.output == Path("out")


@pytest.mark.parametrize("flag", ["export_tables", "summary"])
def test_url_where_a_path_is_expected_is_refused(flag):
    with pytest.raises(ValidationError, match=rf"--{flag}: expected a path, found the URL"):
        config(**{flag: "s3://bucket/a"})


def test_predictions_need_a_path():
    with pytest.raises(ValidationError, match=r"--output=s3://b/a: predictions are written to"):
        config("predict", output="s3://b/a", checkpoint_dir_for_init="init")


@pytest.mark.parametrize(
    ("url", "module", "said"),
    [
        ("s3://bucket/a", "s3fs", r"pip install 's3fs>="),
        ("gs://bucket/a", "gcsfs", r"pip install 'gcsfs>="),
        ("adl://a/b", "adlfs", r"its driver is not installed .*adl"),
    ],
)
def test_missing_driver_is_named_with_its_package(url, module, said, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    location = parse(url)
    # A test before may have had it loaded.
    monkeypatch.delitem(_registry, location.scheme, raising=False)
    with pytest.raises(ConfigError, match=said), reaching(location):
        location.exists()


def test_what_a_driver_raises_is_said_in_words():
    location = parse("memory://nothing/here")
    with (
        pytest.raises(CheckpointError, match=r"memory://nothing/here: FileNotFoundError"),
        reaching(location),
    ):
        location.read_bytes()
