"""Settings of a data reader: `--data_reader_params="skip_header=true;format=csv"`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from elasticdl.errors import ConfigError
from elasticdl.settings import reader_params
from elasticdl.settings.reader_params import FLAG

_DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Params:
    """Values by name, each read once by the reader that knows it.

    Raises:
        ConfigError: A setting is not `name=value`, refers to something that is missing, has a value
            of the wrong kind, or (when the reader is done) is unknown.
    """

    def __init__(self, text: str) -> None:
        try:
            self._words = reader_params.words_of(text)
            self._values = reader_params.parse(text)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._known: set[str] = set()

    def override(self, words: Mapping[str, str]) -> None:
        """Replace settings by those that were given elsewhere."""
        self._words |= words
        try:
            self._values |= {n: reader_params.value_of(n, word) for n, word in words.items()}
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def all(self) -> dict[str, object]:
        """Return every value, for a reader that checks them itself."""
        self._known.update(self._values)
        return dict(self._values)

    def flag(self, name: str, default: bool) -> bool:
        """Return a setting that is true or false."""
        value = self._take(name, default)
        truth = _TRUTH.get(str(value).lower())
        if truth is None:
            raise ConfigError(f"{FLAG}: {name}={value}: expected true or false")
        return truth

    def text(self, name: str, default: str) -> str:
        """Return a setting that is any text."""
        return str(self._take(name, default))

    def text_again(self, name: str) -> Callable[[], str]:
        """Return a function that reads a setting's text again: a file may change later.

        The function raises ConfigError if the text cannot be read then.
        """
        word = self._words.get(name, "")

        def read() -> str:
            try:
                return str(reader_params.value_of(name, word))
            except ValueError as error:
                raise ConfigError(str(error)) from error

        return read

    def number(self, name: str, default: int) -> int:
        """Return a setting that is a whole number above 0."""
        value = str(self._take(name, default))
        if not value.isdecimal() or int(value) == 0:
            raise ConfigError(f"{FLAG}: {name}={value}: expected a whole number above 0")
        return int(value)

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of names, written with commas; empty if it is not set."""
        value = self._take(name, ())
        parts = value if isinstance(value, tuple | list) else str(value).split(",")
        return tuple(str(part).strip() for part in parts)

    def delimiter(self, default: str) -> str:
        """Return the character between the fields of a line; it may be given by its name."""
        return delimiter_named(self.text("delimiter", default), f"{FLAG}: ")

    def finish(self, what: str) -> None:
        """Refuse settings that `what` does not know."""
        for name in self._values:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {sorted(self._known)}"
                raise ConfigError(f"{FLAG}: {what} has no setting {name!r}; {hint}")

    def _take(self, name: str, default: object) -> object:
        self._known.add(name)
        return self._values.get(name, default)


def delimiter_named(value: str, where: str) -> str:
    """Return the character of a delimiter, given by itself or by its name.

    Raises:
        ConfigError: It is neither; the message begins with `where`.
    """
    value = _DELIMITERS.get(value, value)
    if len(value) != 1:
        raise ConfigError(
            f"{where}delimiter={value}: expected one character, or one of "
            + ", ".join(name for name in _DELIMITERS if name.isalpha())
        )
    return value
