"""What of `--data_reader_params` is a secret, and where it goes."""

from pathlib import Path

import pytest

from elasticdl.data.params import Params
from elasticdl.errors import ConfigError
from elasticdl.settings.reader_params import (
    has_files,
    parse,
    secrets_of,
    shown,
    with_files,
    without_password,
)

URL = "mysql://me:hunter2@db:3306/clicks"


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "PWD", "secret", "aws_secret_access_key", "token", "sas_token"],
)
def test_a_setting_is_a_secret_by_its_name(name):
    text = f"skip_header=true;{name}=hunter2"
    assert secrets_of(text) == {name: "hunter2"}
    assert shown(text) == f"skip_header=true;{name}=***"


@pytest.mark.parametrize("name", ["pad_token", "key", "secretary", "password_column", "tokens"])
def test_other_names_are_none(name):
    assert secrets_of(f"{name}=hunter2") == {}
    assert shown(f"{name}=hunter2") == f"{name}=hunter2"


def test_a_url_with_a_password_is_a_secret_and_is_shown_without_it():
    assert secrets_of(f"url={URL}") == {"url": URL}
    assert shown(f"url={URL}") == "url=mysql://me:***@db:3306/clicks"
    assert secrets_of("url=http://host:80/a@b") == {}


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:hunter2@bucket/a",
        "https://hunter2@host/a",
        "https://host/a?x=1&X-Amz-Signature=hunter2&y=2",
        "postgresql+psycopg://me@host/db?password=hunter2",
        "--export=DB_PASSWORD=hunter2",
        "DefaultEndpointsProtocol=https;AccountKey=hunter2;x=y",
        "sasl.password=/hunter2;x",
    ],
)
def test_a_text_is_shown_without_passwords(text):
    assert without_password(text) == text.replace(
        "/hunter2" if "sasl" in text else "hunter2", "***"
    )
    assert without_password(without_password(text)) == without_password(text)


@pytest.mark.parametrize(
    "text", ["kafka://b:9/t?credentials=/file", "a=1;pad_token=2", "http://h:80/a@b", "k=env:TOKEN"]
)
def test_a_text_without_passwords_is_shown_as_it_is(text):
    assert without_password(text) == text


def test_a_secret_is_text_whatever_it_looks_like():
    assert parse("password=007;number=7") == {"password": "007", "number": 7}
    assert parse("password=7;flag=True") == {"password": "7", "flag": True}
    assert parse("password='a b'") == {"password": "a b"}


def test_a_value_may_be_in_the_environment_or_in_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("DB_PASSWORD", "a;b=c")
    (tmp_path / "user").write_text("me\n")
    text = f"password=env:DB_PASSWORD;user=file:{tmp_path}/user;url=file:///not/a/reference"
    assert parse(text) == {
        "password": "a;b=c",
        "user": "me",
        "url": "file:///not/a/reference",
    }
    assert secrets_of(text) == {}
    assert shown(text) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("password=env:NOT_SET", "password=env:NOT_SET: this process has no such environment"),
        ("password=file:/nowhere", "password=file:/nowhere: cannot be read: No such file"),
        ("skip_header", "expected name=value, found 'skip_header'"),
    ],
)
def test_what_is_not_there_is_named(monkeypatch, text, complaint):
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(ConfigError, match=complaint):
        Params(text)


def test_no_complaint_shows_what_may_be_the_rest_of_a_password():
    with pytest.raises(ConfigError, match="none as item 2, after password; env:NAME") as caught:
        Params("password=hun;ter2")
    assert "ter2" not in str(caught.value)
    assert shown("password=hun;ter2") == "***"


def test_secrets_move_to_files_and_are_read_from_there(tmp_path):
    text = f"user=me;password=hunter2;url={URL};token=env:TOKEN"
    moved = with_files(text, tmp_path)
    assert moved == (
        f"user=me;password=file:{tmp_path}/password;url=file:{tmp_path}/url;token=env:TOKEN"
    )
    assert has_files(moved, tmp_path)
    assert not has_files(moved, Path("/elsewhere"))
    assert secrets_of(moved) == {}
    for name, value in secrets_of(text).items():
        (tmp_path / name).write_text(value)
    assert parse(moved.removesuffix(";token=env:TOKEN")) == {
        "user": "me",
        "password": "hunter2",
        "url": URL,
    }


def test_what_stands_beside_a_password_stays():
    text = """--a was "password=hunter2", is "token='hunter 2'"; name another"""
    assert without_password(text) == '--a was "password=***", is "token=***"; name another'
