"""`--config` and `--write_config`: flags in a file."""

import pytest

from elasticdl.cli.main import run_command
from elasticdl.packages.slurm.settings import SlurmSection

NEEDED = ["--model_def=m.model.forward", "--training_data=data.csv"]


@pytest.fixture
def ran(monkeypatch):
    """The configurations that were run, and how."""
    calls = []
    monkeypatch.setattr(
        "elasticdl.cli.run.run", lambda config, stay, look: calls.append((config, stay)) or 0
    )
    return calls


@pytest.fixture
def file(tmp_path):
    return tmp_path / "job.yaml"


def test_flags_come_from_a_file_and_the_command_line_wins(ran, file):
    file.write_text(
        "model_def: m.model.forward\ntraining_data: a.csv\nnum_epochs: 3\nuse-async: false\n"
        "learning_rate: 0.5\nvalidation_data:\n"
    )
    assert run_command(["train", f"--config={file}", "--num_epochs=7", "--detach"]) == 0
    ((config, stay),) = ran
    assert config.model.model_def == "m.model.forward"
    assert (config.training.num_epochs, config.training.use_async) == (7, False)
    assert config.training.learning_rate == 0.5
    assert config.data.validation_data == ""
    assert stay == "detach"


def test_a_value_is_what_is_written_whatever_yaml_makes_of_such_words(ran, file):
    file.write_text(
        "launcher: slurm\nslurm_time_limit: 12:00:00\ntls: off\ninsecure: yes\nuse_async: True\n"
        "job_name: 2024-01-31\nnum_workers: 1_0\nvalidation_data: ~\nvalidation_split: null\n"
        "model_params: 'null'\noutput: no\n"
    )
    assert run_command(["train", f"--config={file}", *NEEDED]) == 0
    ((config, _),) = ran
    assert config.of(SlurmSection).slurm_time_limit == "12:00:00"
    assert (config.cluster.tls, config.cluster.insecure) == ("off", True)
    assert (config.cluster.job_name, config.cluster.num_workers) == ("2024-01-31", 10)
    assert (config.training.use_async, config.data.validation_data) == (True, "")
    assert (config.model.model_params, str(config.checkpoint.output)) == ("null", "no")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("num_epoch: 3", "unknown flag --num_epoch; did you mean --num_epochs?"),
        ("saved_model: m", "--saved_model has no meaning for elasticdl train"),
        ("num_epochs: [3]", "num_epochs: expected a text, a number, true or false, found list"),
        ("data_reader_params: {password: s3cret}", "true or false, found dict"),
        ("- num_epochs", "expected lines of the form NAME: VALUE, found list"),
        ("a: b: c", "expected YAML"),
        ("num_epochs: 3\nnum_epochs: 4", "num_epochs is given twice"),
        ("num_epochs: 3\nnum-epochs: 4", "num_epochs is given twice"),
        ("num_epochs: many", "--num_epochs: expected a valid integer"),
        ("num_workers: 2", "--num_workers has no effect with --distribution_strategy=Local"),
    ],
)
def test_what_is_no_flag_is_refused(ran, file, capsys, text, complaint):
    file.write_text(text + "\n")
    assert run_command(["train", f"--config={file}", *NEEDED]) == 2
    assert complaint in capsys.readouterr().err
    assert not ran


def test_a_file_that_is_not_there_is_named(ran, file, capsys):
    assert run_command(["train", f"--config={file}", *NEEDED]) == 2
    assert f"--config={file}: No such file" in capsys.readouterr().err


def test_a_written_file_makes_the_same_job(ran, file):
    words = [
        *("train", *NEEDED, "--num_epochs=3", "--use_async", "--shuffle_tasks=false"),
        *("--distribution_strategy=ParameterServerStrategy", "--ps_memory_limit=4GiB"),
        *("--model_params=a=1;b='x: y'", "--job_name=7", "--learning_rate=1e-3"),
    ]
    assert run_command(words) == 0
    assert run_command([*words, f"--write_config={file}"]) == 0
    assert run_command(["train", f"--config={file}"]) == 0
    (first, _), (second, _) = ran
    assert second == first
    lines = file.read_text().splitlines()
    assert "num_epochs: 3" in lines
    assert "# minibatch_size: 64" in lines
    assert "# Passes over the training data." in lines


def test_a_file_that_is_there_is_not_written_over(ran, file, capsys):
    file.write_text("precious")
    assert run_command(["train", *NEEDED, f"--write_config={file}"]) == 1
    assert "there is such a file" in capsys.readouterr().err
    assert file.read_text() == "precious"


def test_wait_and_detach_exclude_each_other(ran, capsys):
    assert run_command(["train", *NEEDED, "--wait", "--detach"]) == 2
    assert "expected one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--detach"], "--detach: a job with --distribution_strategy=Local is this command"),
        (
            ["--detach", "--summary=s", "--distribution_strategy=ParameterServerStrategy"],
            "--summary is written by a command that waits for the end",
        ),
    ],
)
def test_what_cannot_be_detached_is_refused(capsys, flags, complaint):
    assert run_command(["train", *NEEDED, *flags]) == 1
    assert complaint in capsys.readouterr().err


def test_a_file_with_a_password_is_for_its_owner_alone(ran, file):
    words = ["train", *NEEDED, f"--write_config={file}"]
    assert run_command([*words, "--data_reader_params=password=hunter2"]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert run_command(["train", f"--config={file}"]) == 0
    assert ran[0][0].data.data_reader_params == "password=hunter2"
