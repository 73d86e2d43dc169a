"""Words of others in a terminal and in a log: no control characters, no lines that are forged."""

import io
import logging

import pytest
from rich.table import Table

from elasticdl.cli.display import Display
from elasticdl.cli.terminal import Terminal, echo
from elasticdl.launchers.last_words import last_error
from elasticdl.runtime.log_lines import Sparingly, TextLines
from elasticdl.runtime.printable import one_line, printable

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egpj\u2028 end\udcff\x00\x7f\x08"
FORGED = "no such file\n2026-11-25 13:00:00.000 master ERROR ConfigError: forged"
HEAD = "%(asctime)s.%(msecs)03d worker-3 %(levelname)s %(message)s"


def test_control_characters_are_written_out_and_all_else_stays():
    assert printable(EVIL) == (
        r"\x1b]0;owned\x07\x1b[2J\x0d\x9b31m\u202egpj\u2028 end\udcff\x00\x7f\x08"
    )
    for text in ("plain", "tab\tand\nnew line", "日本語 ünï 🎉", "\\x1b as a word"):
        assert printable(text) == text
    assert one_line("a\nb\x1b") == r"a\nb\x1b"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_display_obeys_no_control_characters_of_others(is_terminal):
    file = io.StringIO()
    console = Terminal(file=file, force_terminal=is_terminal, width=120)
    display = Display(console=console)
    display.note(f"a worker failed: {EVIL}\n[0:12] the job is finished")
    printed = file.getvalue()
    assert "\x1b]" not in printed
    assert not set(printed) & set("\x07\x9b\u202e\u2028\x00\x7f\x08\r")
    assert r"\x1b]0;owned" in printed  # rich leaves out some of the others
    assert not any(line.startswith("[0:12]") for line in printed.splitlines())


@pytest.mark.parametrize("word", ["[fd00::1]:4000", "topic:100:5", "out[/best]"])
def test_a_terminal_prints_words_of_others_as_they_are(word):
    console = Terminal(file=io.StringIO())
    table = Table(word)
    table.add_row(word)
    console.print(word, table)
    assert console.file.getvalue().count(word) == 3


def test_a_command_prints_no_control_characters_of_others(capsys):
    echo(f"error: {EVIL}", err=True)
    assert "\x1b" not in capsys.readouterr().err


def lines_of(message, error=None):
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, message, (), None)
    if error is not None:
        try:
            raise error
        except type(error) as raised:
            record.exc_info = (type(raised), raised, raised.__traceback__)
    return TextLines(HEAD, "%Y-%m-%d %H:%M:%S").format(record).splitlines()


@pytest.mark.parametrize(
    "lines", [lines_of(FORGED), lines_of("failed", ValueError(FORGED))], ids=["message", "error"]
)
def test_what_others_say_makes_no_line_of_a_log(lines):
    assert lines[-1] == "| 2026-11-25 13:00:00.000 master ERROR ConfigError: forged"
    assert last_error(lines) == ""


def test_a_log_has_no_control_characters():
    assert lines_of(EVIL)[0].endswith(printable(EVIL))


def test_lines_that_strangers_cause_are_few_and_their_number_is_told():
    now = [0.0]
    sparingly = Sparingly(lines=3, seconds=10.0, clock=lambda: now[0])

    def passes():
        record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "no %s", ("token",), None)
        return record.getMessage() if sparingly.filter(record) else None

    assert [passes() for _ in range(1000)] == ["no token"] * 3 + [None] * 997
    now[0] = 10.0
    assert passes() == "no token (997 more such lines were left out)"
    now[0] = 20.0
    assert passes() == "no token"
