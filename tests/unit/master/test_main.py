"""With which exit code a master ends, and whether another one is to go on."""

from types import SimpleNamespace

import pytest

from elasticdl.errors import ConfigError, DataError, LaunchError, StateError, TakenOverError
from elasticdl.master import __main__ as main_of_master
from elasticdl.runtime import process

LOST = main_of_master._LostError


def cannot_open():
    return OSError(24, "Too many open files")


@pytest.mark.parametrize(
    ("error", "code", "is_final"),
    [
        # What keeps a job from its beginning would keep the next master from it too.
        (ConfigError("no such flag"), 1, True),
        (DataError("no such file"), 1, True),
        # The journal is another master's, which needs no third one; or it may be back soon.
        (TakenOverError("another master"), 1, False),
        (StateError("disk full"), process.OWN_FAILURE_EXIT_CODE, False),
        # A job that runs goes on, whatever its master failed of.
        (LOST(cannot_open()), process.OWN_FAILURE_EXIT_CODE, False),
        (LOST(LaunchError("cannot start")), process.OWN_FAILURE_EXIT_CODE, False),
        (LOST(KeyError("a defect")), process.OWN_FAILURE_EXIT_CODE, False),
    ],
)
def test_only_a_decided_end_is_the_last(monkeypatch, capsys, error, code, is_final):
    told = []
    arguments = SimpleNamespace(config=None, job_dir=None)
    monkeypatch.setattr(process, "start", lambda role: arguments)
    monkeypatch.setattr(main_of_master, "end_now", told.append)
    parts = SimpleNamespace(tell_end=lambda config, job_dir, code: told.append("final"))
    monkeypatch.setattr(main_of_master.choose, "parts_of", lambda config: parts)

    async def run(_arguments):
        raise error

    monkeypatch.setattr(main_of_master, "_run", run)
    main_of_master.main()
    assert told == (["final", code] if is_final else [code])
    assert str(getattr(error, "error", error)) in capsys.readouterr().err
