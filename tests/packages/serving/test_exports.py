"""When a job exports the next version, and what it does when that fails."""

from pathlib import Path

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import ConfigError
from elasticdl.job import ServedProgram, TaskKind
from elasticdl.master.actions import AskAudit, DoWork, Note
from elasticdl.master.features.outputs import WrittenPrograms
from elasticdl.master.parameters.answers import WorkDone, WorkFailed
from elasticdl.master.phases import Phase
from elasticdl.packages.serving.publishing import Published

PROGRAM, ANOTHER = ServedProgram("program-1", "1"), ServedProgram("program-2", "2")


@pytest.fixture
def make_game(recovery_game):
    def make(**settings):
        flags = {"export_dir": Path("exports"), "recovery_seconds": 0, "validation_data": ""}
        game = recovery_game(**flags, **settings)
        game.core.features.of(WrittenPrograms).written("key", PROGRAM, game.play.now)
        return game

    return make


def tick(game, seconds=0.0):
    game.play.now += seconds
    game.core.tick(game.play.now)


def asked(game):
    return [action.version for action in game.play.do(DoWork)]


def asked_with_program(game):
    return [(action.version, action.step.program) for action in game.play.do(DoWork)]


def written(game, version):
    done = Published(1, False, 5, 0, 99, True)
    game.core.answered(WorkDone(version, done), game.play.now)


def train(game, num_tasks=1):
    for _ in range(num_tasks):
        game.play.run(until=lambda task: task.kind is TaskKind.TRAINING)


def notes(game):
    return [(note.text, note.is_warning) for note in game.play.do(Note)]


def test_a_version_is_due_after_its_time_if_something_was_trained(make_game):
    game = make_game(export_every="10s")
    tick(game)
    assert asked(game) == []
    train(game)
    tick(game)
    assert asked(game) == [3]
    train(game)
    tick(game, 20.0)
    assert asked(game) == []  # one at a time
    written(game, 3)
    tick(game)
    assert asked(game) == [6]
    written(game, 6)
    tick(game, 9.0)
    assert asked(game) == []


def test_a_version_is_due_after_so_many_updates(make_game):
    game = make_game(export_every="6")
    found = []
    for _ in range(3):
        train(game)
        tick(game)
        if new := asked(game):
            found += new
            written(game, new[0])
    assert found == [6]


def test_none_is_written_while_a_replica_is_made_whole_again(make_game):
    game = make_game(export_every="1s")
    train(game, 2)
    (version,) = asked(game)
    written(game, version)
    game.lose()
    tick(game, 5.0)
    assert asked(game) == []
    game.back(minibatches=[3])
    tick(game, 5.0)
    assert asked(game) == []  # the second task is replayed
    train(game)
    tick(game, 5.0)
    assert len(asked(game)) == 1


def test_a_failure_is_told_and_tried_again_while_training_goes_on(make_game):
    game = make_game(export_every="1s")
    train(game)
    tick(game)
    assert asked(game) == [3]
    notes(game)
    game.core.answered(WorkFailed(3, "exports: No space left on device"), game.play.now)
    ((text, is_warning),) = notes(game)
    assert "No space left on device; the version is tried again in 1 s" in text
    assert is_warning
    train(game)
    tick(game, 2.0)
    assert asked(game) == [6]


def test_what_another_model_has_trained_is_exported_with_its_program_alone(make_game):
    game = make_game(export_every="1s")
    train(game)
    tick(game)
    assert asked_with_program(game) == [(3, PROGRAM)]
    written(game, 3)
    programs = game.core.features.of(WrittenPrograms)
    assert not programs.is_needed(1, "key")
    assert programs.is_needed(1, "another")  # of a file that was changed meanwhile
    assert programs.is_needed(0, "another")
    train(game)
    tick(game, 5.0)
    assert asked(game) == []
    game.master_restarts()
    tick(game, 5.0)
    assert asked(game) == []
    programs = game.core.features.of(WrittenPrograms)
    programs.written("another", ANOTHER, game.play.now)
    programs.written("another", PROGRAM, game.play.now)  # of one that was as fast
    tick(game)
    assert asked_with_program(game) == [(6, ANOTHER)]


def test_a_program_that_a_changed_file_has_changed_is_exported_after_a_start(make_game):
    game = make_game(export_every="1s")
    train(game)
    tick(game)
    game.master_restarts()
    tick(game)
    assert asked_with_program(game)[-1] == (3, PROGRAM)
    written(game, 3)
    programs = game.core.features.of(WrittenPrograms)
    assert programs.is_needed(0, "key")
    programs.written("key", ANOTHER, game.play.now)  # as a vocabulary is longer now
    assert not programs.is_needed(0, "key")
    programs.written("key", PROGRAM, game.play.now)  # of one that was as fast
    train(game)
    tick(game, 5.0)
    assert asked_with_program(game) == [(6, ANOTHER)]


def test_the_last_version_comes_before_the_proof_and_again_after_a_loss(make_game):
    game = make_game(export_every="1h")
    train(game)
    tick(game)
    assert asked(game) == [3]
    written(game, 3)
    game.play.run()
    assert game.core.phase is Phase.AUDITING
    tick(game)
    assert asked(game) == [12]
    game.lose()
    game.back(minibatches=[3, 3, 3, 3])
    written(game, 12)  # of before
    tick(game)
    assert (asked(game), game.play.do(AskAudit)) == ([12], [])
    game.master_restarts()
    tick(game)
    assert asked(game) == [12]
    written(game, 12)
    tick(game)
    assert (asked(game), len(game.play.do(AskAudit))) == ([], 1)


def test_a_last_version_that_cannot_be_written_is_a_problem_of_the_job(make_game):
    game = make_game(export_every="1h")
    game.play.run()
    for _ in range(200):
        tick(game, 31.0)
        if not asked(game):
            break
        words = "https://me:swordfish@host/exports: Permission denied"
        game.core.answered(WorkFailed(12, words), game.play.now)
    tick(game)
    assert len(game.play.do(AskAudit)) == 1
    (problem,) = game.core.history.problems
    assert "export: https://me:***@host/exports: Permission denied" in problem


ON_PS = {"distribution_strategy": "ParameterServerStrategy"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"export_every": "5m"}, "--export_every needs --export_dir"),
        ({"export_dir": "e", "export_every": "often"}, "expected a time such as 30s"),
        ({"export_dir": "e", "distribution_strategy": "AllreduceStrategy"}, "expected not"),
        ({"export_dir": "e", "num_model_servers": "2", **ON_PS}, "not go with --export_dir"),
        ({"export_dir": "s3://user:word@b/e"}, "expected no password"),
    ],
)
def test_an_export_that_nobody_could_write_is_refused(words, message):
    given = {"model_def": "m.forward", "training_data": "d.csv", **words}
    with pytest.raises(ConfigError, match=message):
        build_config("train", given)
