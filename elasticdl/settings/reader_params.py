"""Finds the secrets in `--data_reader_params` and `--model_params`; shows, moves, reads both.

A secret is the value of a setting with such a name (`password`, `db_password`, `access_key`), or a
URL that contains a password. A reference gives the place of a value instead of the value itself:
`env:NAME` or `file:PATH`. Any setting may have a reference, which is not a secret.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elasticdl.settings.launcher import secret_help

FLAG = "--data_reader_params"
HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"(.*_)?(password|passwd|pwd|passphrase|secret|credentials?)"
    r"|(.*_)?(access|account|api|private|secret)_key"
    r"|token|(.*_)?(access|api|auth|bearer|sas|security|session)_token",
    re.IGNORECASE,
)
_PASSWORD_OF_URL = re.compile(r"(?P<user>\w+://[^/@\s]*?):[^/\s]*@")
# Only with HTTP is a user without a password taken as a token; elsewhere it is a login name.
_TOKEN_OF_URL = re.compile(r"(?P<scheme>https?://)[^/@\s:]+@", re.IGNORECASE)
_REFERENCE = r"(?:env|file|secret):"
_IN_TEXT = (
    r"(?:[\w.-]*[_.-])?(?:password|passwd|pwd|passphrase|secret)"
    r"|(?:[\w.-]*[_.-])?(?:shared_?)?(?:access|account|api|private|secret)_?key"
    r"|token|(?:[\w.-]*[_.-])?(?:access|api|auth|bearer|sas|security|session)[_-]?token"
)
_SIGNATURE = r"(?:x-(?:amz|goog)-)?(?:signature|credential)|sig"
_PATH = r"(?:[\w.-]*[_.-])?credentials?=(?=/)"  # a file that has them
_SECRET_IN_TEXT = re.compile(
    rf"(?<![\w.-])(?!{_PATH})(?P<name>{_IN_TEXT}|{_SIGNATURE}|(?:[\w.-]*[_.-])?credentials?)"
    rf"=(?!{_REFERENCE})(?:'[^']*'|\"[^\"]*\"|[^;&\s\"']+)",
    re.IGNORECASE,
)
_SECRET_OF_QUERY = re.compile(rf"\w+://\S*[?&](?:{_IN_TEXT})=(?!{_REFERENCE})[^&\s]", re.IGNORECASE)
_VARIABLE = re.compile(r"env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_FILE = re.compile(r"file:(?P<path>/(?!/).*)")
"""This does not match `file://...`, which is a URL."""


def parse(text: str, flag: str = FLAG) -> dict[str, Any]:
    """Return the settings of a flag; values are Python literals, or else text.

    Secrets are always text, and references are followed.

    Raises:
        ValueError: An item is not `name=value`, or refers to something that does not exist. No
            message contains a secret.
    """
    return {name: value_of(name, word, flag) for name, word in words_of(text, flag).items()}


def words_of(text: str, flag: str = FLAG) -> dict[str, str]:
    """Return the settings in their written form; references are not followed.

    Raises:
        ValueError: An item is not `name=value`.
    """
    return dict(_items(text, flag))


def shown(text: str) -> str:
    """Return the settings in a form that anybody may see, with *** for secrets."""
    try:
        items = list(_items(text))
    except ValueError:
        return HIDDEN  # nobody can tell what in it is a secret
    return ";".join(f"{name}={_shown(name, word)}" for name, word in items)


def secrets_of(text: str) -> dict[str, str]:
    """Return the secrets that the settings contain themselves, by the name of their setting.

    Raises:
        ValueError: As for `parse`.
    """
    return {name: _unquoted(word) for name, word in _items(text) if _is_secret(name, word)}


def with_files(text: str, folder: Path, prefix: str = "") -> str:
    """Return the settings with each secret replaced by a reference to its file.

    A file is called like the setting, with a prefix.
    """
    words = (
        (name, f"file:{folder / (prefix + name)}" if _is_secret(name, word) else word)
        for name, word in _items(text)
    )
    return ";".join(f"{name}={word}" for name, word in words)


def has_files(text: str, folder: Path) -> bool:
    """Whether values are in files of a folder, as `with_files` stores them."""
    return any(word.startswith(f"file:{folder}/") for _, word in _items(text))


def has_password(url: str) -> bool:
    """Return whether a URL contains a password: its user's, or one as a parameter."""
    return any(each.search(url) for each in (_PASSWORD_OF_URL, _TOKEN_OF_URL, _SECRET_OF_QUERY))


def without_password(text: str) -> str:
    """Return a text with *** in place of passwords.

    Passwords are those in URLs, and the values of names such as `password`, as in `a=1;password=b`.
    """
    return _SECRET_IN_TEXT.sub(rf"\g<name>={HIDDEN}", without_login(text))


def without_login(text: str) -> str:
    """Return a text, such as a line of a log, with *** for the passwords of URLs' users."""
    # Most lines have no URL, and this is called for each line of a log.
    if "://" not in text:
        return text
    text = _PASSWORD_OF_URL.sub(rf"\g<user>:{HIDDEN}@", text)
    return _TOKEN_OF_URL.sub(rf"\g<scheme>{HIDDEN}@", text)


def _items(text: str, flag: str = FLAG) -> Iterator[tuple[str, str]]:
    last = ""
    for number, item in enumerate(text.split(";"), start=1):
        if not item.strip():
            continue
        name, equals, word = (part.strip() for part in item.partition("="))
        if not equals or not name.isidentifier():
            raise ValueError(f"{flag}: expected name=value, found {found(item, number, last)}")
        last = name
        yield name, word


def found(item: str, number: int, last: str) -> str:
    """Describe an item; an item after the secret `last` may be a part of the secret."""
    if not _SECRET_NAME.fullmatch(last):
        return repr(item.strip())
    # A password with a ";" is cut into two items, so an item after a password must not be printed.
    return f"none as item {number}, after {last}; env:NAME and file:PATH may have a ';' in them"


def _is_secret(name: str, word: str) -> bool:
    if _VARIABLE.fullmatch(word) or _FILE.fullmatch(word):
        return False
    return _SECRET_NAME.fullmatch(name) is not None or has_password(word)


def _shown(name: str, word: str) -> str:
    if not _is_secret(name, word):
        return word
    return HIDDEN if _SECRET_NAME.fullmatch(name) else without_password(word)


def value_of(name: str, word: str, flag: str = FLAG) -> Any:
    """Return the value of one setting, as `parse` does."""
    variable, file = _VARIABLE.fullmatch(word), _FILE.fullmatch(word)
    if variable is not None:
        return _of_variable(name, variable["name"], flag)
    if file is not None:
        return _of_file(name, Path(file["path"]), flag)
    # A password such as 0123 must not become a number.
    return _unquoted(word) if _is_secret(name, word) else _literal(word)


def _of_variable(name: str, variable: str, flag: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise ValueError(
            f"{flag}: {name}=env:{variable}: this process has no such environment variable; set "
            f"it where the job is started{secret_help(variable)}"
        )
    return value


def _of_file(name: str, path: Path, flag: str) -> str:
    try:
        return path.read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(
            f"{flag}: {name}=file:{path}: cannot be read: {why}; every worker and the master read "
            "it"
        ) from None


def _literal(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def _unquoted(word: str) -> str:
    """Return a text without the quotes of a Python literal."""
    value = _literal(word)
    # A literal that is no text, such as 0123 or [1], is the secret as it was typed.
    return value if isinstance(value, str) else word
