"""Which folder a job gets, and when the same command goes on with the job in it."""

import pytest

from elasticdl.checkpoints.versions import version_folder
from elasticdl.checkpoints.writing import write_checkpoint
from elasticdl.cli.flags import build_config
from elasticdl.cli.job_folder import holds_job, note_of_model, remember_model, reopen
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.launchers.process.folder import prepare
from elasticdl.launchers.process.job import LocalSubmitter
from elasticdl.runtime import process
from elasticdl.state.open import DEFAULT_FILE
from elasticdl.state.sqlite import SqliteState


def config(folder, **words):
    words = {"model_def": "m.forward", "training_data": "d.csv", "job_dir": folder} | words
    return build_config("train", {name: str(value) for name, value in words.items()})


@pytest.fixture
def begun(tmp_path):
    """A folder in which a job was begun, and its journal."""
    prepare(config(tmp_path / "job"))
    state = SqliteState(tmp_path / "job" / DEFAULT_FILE)
    state.append([["created", {}, []]])
    yield tmp_path / "job", state
    state.close()


def test_job_of_the_same_command_is_gone_on_with(begun):
    folder, state = begun
    state.close()
    secret = (folder / process.TOKEN_FILE).read_text()
    assert holds_job(config(folder))
    assert prepare(config(folder)) == folder
    assert (folder / process.TOKEN_FILE).read_text() == secret


def test_folder_may_have_moved(begun, tmp_path):
    folder, state = begun
    state.close()
    assert holds_job(config(folder.rename(tmp_path / "elsewhere")))


def test_new_folder_holds_no_job(tmp_path):
    assert not holds_job(config(tmp_path))
    assert not holds_job(config(tmp_path / "nowhere"))


@pytest.mark.parametrize("state", ["sqlite", "etcd://127.0.0.1:1/job"])
def test_a_new_job_has_nothing_to_reopen(tmp_path, state):
    several = {"distribution_strategy": "ParameterServerStrategy", "num_ps_pods": 1}
    reopen(config(tmp_path / "nowhere", state=state, **several))  # asks no etcd either
    assert not (tmp_path / "nowhere").exists()


def test_job_that_was_killed_before_its_master_began_is_gone_on_with(tmp_path):
    folder = prepare(config(tmp_path / "job"))
    assert holds_job(config(folder))


def test_other_settings_are_named(begun):
    folder, state = begun
    state.close()
    with pytest.raises(ConfigError, match="--num_workers was 1, is 7; --seed was 0, is 9"):
        holds_job(config(folder, num_workers=7, seed=9))


def test_a_model_file_that_was_changed_since_is_told(tmp_path):
    folder, file = prepare(config(tmp_path / "job")), tmp_path / "m.py"
    file.write_text("def feed(dataset): ...")
    assert note_of_model(config(folder), file) == ""
    remember_model(config(folder), folder, file)
    assert note_of_model(config(folder), file) == ""
    file.write_text("def feed(dataset): return dataset.shuffle(9)")
    assert "m.py was changed since the job ran last" in note_of_model(config(folder), file)
    other = config(
        folder,
        model_def="n.forward",
        model_changes="true",
        distribution_strategy="ParameterServerStrategy",
    )
    assert note_of_model(other, file) == ""


def test_job_that_has_ended_is_refused_with_what_to_do(begun):
    folder, state = begun
    state.append([["ended", "failed", "disk full", 3.0]])
    state.close()
    with pytest.raises(ConfigError, match=r"has failed \(disk full\); name another folder"):
        holds_job(config(folder))


def test_job_that_is_running_is_refused(begun):
    folder, _ = begun
    with pytest.raises(ConfigError, match="another master has it open"):
        holds_job(config(folder))


def test_torn_settings_are_named(tmp_path):
    (tmp_path / process.CONFIG_FILE).write_text('{"comm')
    with pytest.raises(ConfigError, match=f"expected the settings of a job in {tmp_path}"):
        holds_job(config(tmp_path))


def test_job_keeps_the_checkpoint_that_it_began_with(tmp_path):
    kept, folder = tmp_path / "c", tmp_path / "job"
    write_checkpoint(kept, 5, "m", lambda directory: [])
    prepare(config(folder, checkpoint_dir_for_init=kept))
    write_checkpoint(kept, 9, "m", lambda directory: [])
    assert holds_job(config(folder, checkpoint_dir_for_init=kept))
    began = JobConfig.read(folder / process.CONFIG_FILE).checkpoint.checkpoint_dir_for_init
    assert began == version_folder(kept, 5)
    with pytest.raises(ConfigError, match="--checkpoint_dir_for_init was"):
        holds_job(config(folder, checkpoint_dir_for_init=version_folder(kept, 9)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"command": "train", "old": 1}', "model: Field required; old: Extra inputs"),
        ("{", "the file: Invalid JSON"),
        (b"\xff", "expected the settings of a job"),
    ],
)
def test_settings_of_another_version_are_told_by_their_file(tmp_path, text, said):
    folder = prepare(config(tmp_path / "job"))
    path = folder / process.CONFIG_FILE
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    job = LocalSubmitter().find(str(folder))
    with pytest.raises(ConfigError, match=f"{path}: .*{said}"):
        job.end(0.0)
