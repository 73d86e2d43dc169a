"""Flags are the fields of the configuration."""

import re
from pathlib import Path

import pytest

from elasticdl.cli.flags import build_config, check_given, flags, unknown_flag
from elasticdl.cli.main import run_command
from elasticdl.errors import ConfigError
from elasticdl.job import Strategy

TRAIN = {"model_def": "mnist.model.forward", "training_data": "data"}

PS = {"distribution_strategy": "ParameterServerStrategy"}


def run(capsys, *words):
    code = run_command(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_field_is_one_flag():
    names = [flag.name for flag in flags()]
    assert len(names) == len(set(names))
    assert {"model_def", "training_data", "num_workers", "summary"} <= set(names)


def test_words_become_values():
    config = build_config(
        "train",
        TRAIN
        | {
            "num_epochs": "3",
            "use_async": "true",
            "shuffle_tasks": "false",
            "learning_rate": "0.1",
            "distribution_strategy": "ParameterServerStrategy",
            "checkpoint_dir": "ckpt",
            "validation_data": "",
        },
    )
    assert config.training.num_epochs == 3
    assert config.training.use_async is True
    assert config.training.shuffle_tasks is False
    assert config.training.learning_rate == 0.1
    assert config.training.distribution_strategy is Strategy.PARAMETER_SERVER
    assert config.checkpoint.checkpoint_dir.name == "ckpt"
    assert config.data.validation_data == ""


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"grads_to_wait": "2"}, "--grads_to_wait and --sync_version_tolerance are of synchronous"),
        ({"use_async": "false", "max_staleness": "2"}, "--max_staleness bounds asynchronous"),
        ({"get_model_steps": "2", "max_staleness": "2"}, "--get_model_steps=2 computes on older"),
        ({"get_model_steps": "2", "use_async": "false"}, "--get_model_steps=2 computes on older"),
        ({"push_steps": "4"}, "--push_steps=4 saves pushes .* found Local"),
        (PS | {"push_steps": "4", "use_async": "false"}, "does not go with --use_async=false"),
        (PS | {"push_steps": "4", "max_staleness": "2"}, "does not go with --max_staleness=2"),
        (PS | {"push_steps": "0"}, "--push_steps"),
        ({"exchange_minibatches": "4"}, "--exchange_minibatches=4 saves frames .* found Local"),
        (PS | {"exchange_minibatches": "auto", "use_async": "false"}, "=auto does not go with"),
        (PS | {"exchange_minibatches": "4", "max_staleness": "2"}, "not go with --max_staleness=2"),
        (PS | {"exchange_minibatches": "4", "push_steps": "2"}, "pushes each gradient as an"),
        (PS | {"exchange_minibatches": "0"}, "expected auto or a number from 1 to 64, found '0'"),
    ],
)
def test_flags_of_different_kinds_of_synchrony_are_refused_together(flags, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build_config("train", TRAIN | {"use_async": "true"} | flags)


def test_synchronous_training_waits_for_all_workers_and_pulls_nothing_ahead():
    flags = {"use_async": "false", "num_workers": "3"}
    config = build_config("train", TRAIN | flags)
    assert (config.grads_to_wait, config.pipeline_depth) == (3, 0)
    assert build_config("train", TRAIN | flags | {"grads_to_wait": "2"}).grads_to_wait == 2


@pytest.mark.parametrize(
    ("flag", "word", "complaint"),
    [
        ("num_epochs", "x", "--num_epochs: expected a valid integer, found 'x'"),
        ("num_epochs", "0", "--num_epochs: expected a number greater than 0, found '0'"),
        ("learning_rate", "inf", "--learning_rate: expected a finite number, found 'inf'"),
        ("heartbeat_seconds", "nan", "--heartbeat_seconds: expected a finite number, found 'nan'"),
        ("use_async", "maybe", "--use_async: expected a valid boolean, found 'maybe'"),
        ("on_nan", "go", "--on_nan: expected 'stop' or 'skip', found 'go'"),
        (
            "distribution_strategy",
            "Ps",
            "--distribution_strategy: expected 'Local', 'ParameterServerStrategy', "
            "'AllreduceStrategy' or 'HybridStrategy', found 'Ps'",
        ),
        (
            "master_port",
            "70000",
            "--master_port: expected a number less than or equal to 65535, found '70000'",
        ),
        ("job_name", "../x", "--job_name: expected text of the form ^"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_was_expected(flag, word, complaint):
    with pytest.raises(ConfigError) as raised:
        build_config("train", TRAIN | {flag: word})
    assert str(raised.value).startswith(complaint)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("command", "words", "complaint"),
    [
        ("train", {"training_data": None}, "elasticdl train needs --training_data"),
        ("train", {"model_def": None}, "--model_def is needed"),
        ("train", {"checkpoint_steps": "5"}, "--checkpoint_steps needs --checkpoint_dir"),
        ("train", {"evaluation_steps": "5"}, "--evaluation_steps needs --validation_data"),
        (
            "train",
            {"validation_split": "0.1", "validation_data": "v"},
            "--validation_split=0.1 holds .* --validation_data=v names others: expected one",
        ),
        ("evaluate", {"validation_data": "x"}, "elasticdl evaluate needs a trained model"),
    ],
)
def test_flags_that_do_not_fit_together_are_named(command, words, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build_config(command, TRAIN | words)


def test_all_wrong_values_are_told_at_once():
    with pytest.raises(ConfigError, match=r"(?s)--num_epochs.*--num_workers"):
        build_config("train", TRAIN | {"num_epochs": "x", "num_workers": "y"})


def test_processes_are_not_counted_where_there_is_one():
    config = build_config("train", TRAIN | {"num_workers": "2"})
    with pytest.raises(ConfigError, match="--num_workers has no effect"):
        check_given(config, {"num_workers"})
    check_given(config, set())


def test_checkpoints_are_not_kept_where_none_are_written():
    words = TRAIN | {"keep_checkpoint_max": "2"}
    with pytest.raises(ConfigError, match="--keep_checkpoint_max needs --checkpoint_dir"):
        check_given(build_config("train", words), {"keep_checkpoint_max"})
    config = build_config("train", words | {"checkpoint_dir": "checkpoints"})
    check_given(config, {"keep_checkpoint_max", "checkpoint_dir"})


@pytest.mark.parametrize("strategy", ["Local", "AllreduceStrategy"])
def test_ps_replicas_do_not_recover_where_there_are_none(strategy):
    words = TRAIN | {"distribution_strategy": strategy, "ps_recovery": "replay"}
    with pytest.raises(ConfigError, match="--ps_recovery has no effect"):
        check_given(build_config("train", words), {"ps_recovery"})


@pytest.mark.parametrize(
    ("flag", "word", "complaint"),
    [
        ("max_staleness", "2", "--max_staleness is about ps replicas"),
        ("use_async", "false", "--use_async=false is about ps replicas"),
        ("ps_memory_limit", "1GB", "--ps_memory_limit is about ps replicas"),
        ("push_steps", "4", "--push_steps=4 saves pushes to ps replicas"),
        ("exchange_minibatches", "4", "--exchange_minibatches=4 saves frames to ps replicas"),
    ],
)
def test_all_reduce_refuses_what_it_cannot_do(flag, word, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build_config("train", TRAIN | {"distribution_strategy": "AllreduceStrategy", flag: word})


def test_rows_go_to_a_disk_beyond_a_limit_of_memory_and_the_replicas_stay():
    room = {"ps_disk": "rows", "ps_memory_limit": "1GiB"}
    config = build_config("train", TRAIN | PS | room)
    assert config.cluster.ps_room == (str(Path("rows").absolute()), 1 << 30)
    assert "--ps_disk" in config.why_ps_stay
    with pytest.raises(ConfigError, match=r"--ps_disk=rows takes .* expected --ps_memory_limit"):
        build_config("train", TRAIN | PS | {"ps_disk": "rows"})
    with pytest.raises(ConfigError, match="--ps_disk is about ps replicas"):
        build_config("train", TRAIN | room | {"distribution_strategy": "AllreduceStrategy"})
    assert build_config("train", TRAIN | {"ps_memory_limit": "1GiB"}).cluster.ps_room is None


def test_all_reduce_has_no_ps_replicas_to_count():
    config = build_config("train", TRAIN | {"distribution_strategy": "AllreduceStrategy"})
    with pytest.raises(ConfigError, match="--num_ps_pods has no effect"):
        check_given(config, {"num_workers", "num_ps_pods"})
    check_given(config, {"num_workers"})


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("use_async", "false"),
        ("get_model_steps", "2"),
        ("push_steps", "4"),
        ("exchange_minibatches", "4"),
        ("staleness_lr_modulation", "true"),
        ("ps_recovery", "latest"),
        ("global_batch_size", "64"),
    ],
)
def test_a_hybrid_job_refuses_what_it_cannot_do(flag, word):
    with pytest.raises(ConfigError, match=flag):
        build_config("train", TRAIN | {"distribution_strategy": "HybridStrategy", flag: word})


@pytest.mark.parametrize("strategy", ["AllreduceStrategy", "HybridStrategy"])
def test_workers_reduce_under_tls(strategy):
    config = build_config("train", TRAIN | {"distribution_strategy": strategy, "tls": "job"})
    assert config.has_worlds


def test_a_hybrid_job_has_ps_replicas_and_worlds():
    words = TRAIN | {"distribution_strategy": "HybridStrategy", "num_ps_pods": "3"}
    config = build_config("train", words)
    check_given(config, {"num_workers", "num_ps_pods"})
    assert (config.num_ps, config.has_worlds, config.is_synchronous) == (3, True, True)


@pytest.mark.parametrize(("word", "depth"), [(None, 0), ("0", 0), ("1", 1), ("8", 2)])
def test_workers_of_a_hybrid_job_pull_rows_ahead_and_hold_the_bound_by_themselves(word, depth):
    words = TRAIN | {"distribution_strategy": "HybridStrategy"}
    config = build_config("train", words | ({} if word is None else {"max_staleness": word}))
    assert (config.pipeline_depth, config.staleness_bound) == (depth, None)


def test_an_unknown_flag_is_answered_with_the_nearest():
    assert unknown_flag("train", "--num-worker") == (
        "unknown flag --num_worker; did you mean --num_workers?"
    )
    assert unknown_flag("train", "--zzzzzz") == "unknown flag --zzzzzz"


def test_a_removed_flag_is_answered_with_its_replacement():
    assert unknown_flag("train", "--otlp_endpoint").startswith(
        "--otlp_endpoint was removed; in its place: a collector of OpenTelemetry reads /metrics"
    )


def test_a_flag_of_another_command_is_refused():
    assert unknown_flag("predict", "--num_epochs") == (
        "--num_epochs has no meaning for elasticdl predict, only for elasticdl train"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train", "--num_worker=2"], "unknown flag --num_worker; did you mean --num_workers?"),
        (["train", "--data=x"], "did you mean --training_data or --validation_data?"),
        (["train", "--strategy=x"], "did you mean --distribution_strategy?"),
        (["status"], "JOB is needed"),
        (["train", "--num-epoch", "2"], "unknown flag --num_epoch; did you mean --num_epochs?"),
        (["predict", "--training_data=x"], "--training_data has no meaning"),
        (["train", "--model_def=a.b", "--num_epochs=x"], "--num_epochs: expected a valid integer"),
        (["train"], "--model_def is needed"),
        (["trian"], "Did you mean 'train'?"),
        (["train", "--model_def=a.b", "epochs=3"], "a flag is written --name=value"),
        (["train", "--model_def=a.b", "--num_workers", "-1"], "--num_workers: expected a number"),
        (["train", "--model_def=a.b", "--learning_rate", "-.5"], "greater than 0, found '-.5'"),
        (["train", "--model_def=a.b", "--use_async", "-1"], "a value is written --name=-1"),
        (["scale", "job", "-1"], "found -1 where a flag was expected"),
        (
            ["train", "--model_def=a.b", "--output", "--num-workers=2"],
            "--output: expected a value, found the flag --num-workers=2",
        ),
    ],
)
def test_wrong_usage_is_one_message_and_exit_code_2(capsys, words, complaint):
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert complaint in err
    assert err.rstrip().splitlines()[-1].startswith("See elasticdl")


def test_dashes_and_bare_switches_are_understood(capsys, tmp_path):
    code, _, err = run(
        capsys,
        *("train", f"--model-zoo={tmp_path}", "--model-def=a.b", "--training-data=x"),
        *("--use-async", "--num-epochs=3"),
    )
    assert code == 1  # past the flags: the model file is what is missing
    assert "--model_def=a.b" in err


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_help_shows_each_flag_of_the_command_with_its_default(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    for flag in flags(command):
        assert f"--{flag.name} " in out
    for panel in ("Model", "Data", "Processes"):
        assert f"─ {panel} ─" in out
    assert "[default: 64]" in out
    assert ("--num_epochs" in out) == (command == "train")


def test_help_begins_with_the_ten_flags_that_most_jobs_say(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    _, out, _ = run(capsys, "train", "--help")
    first = out.split("╰─")[0]
    assert "─ What most jobs say ─" in first
    assert re.findall(r"^│ [ *]  --(\w+)", first, re.M) == [
        *("model_zoo", "model_def", "training_data", "validation_data", "num_epochs"),
        *("minibatch_size", "learning_rate", "distribution_strategy", "num_workers", "output"),
    ]
    assert out.count("--model_def ") == 1


def test_help_begins_with_an_example(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "elasticdl train \\\n" in "\n".join(line.strip() for line in out.splitlines())


def test_the_version_is_told(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert re.fullmatch(r"elasticdl \d+\.\d+\.\d+\n", out)


def test_worker_threads_are_a_number_or_auto(capsys):
    assert build_config("train", TRAIN).cluster.worker_threads == "auto"
    assert build_config("train", TRAIN | {"worker_threads": "4"}).cluster.worker_threads == 4
    for word in ("0", "-1", "two"):
        with pytest.raises(ConfigError, match="--worker_threads: expected auto or a number above"):
            build_config("train", TRAIN | {"worker_threads": word})


def test_a_model_is_run_eagerly_or_compiled():
    assert build_config("train", TRAIN | {"torch_compile": "true"}).model.torch_compile
    with pytest.raises(ConfigError, match="--run_eagerly runs the model as plain Python, --torch"):
        build_config("train", TRAIN | {"torch_compile": "true", "run_eagerly": "true"})


def test_devices_of_workers_are_names_of_devices():
    job = TRAIN | {"distribution_strategy": "AllreduceStrategy", "num_workers": "3"}
    config = build_config("train", job | {"worker_devices": "cuda:0, cuda:1"})
    assert config.cluster.worker_devices == "cuda:0,cuda:1"
    for words, message in (
        (job | {"worker_devices": "gpu"}, "expected cpu, cuda:N, or several .* found 'gpu'"),
        (job | {"worker_devices": "cuda:0,,cpu"}, "found '' in 'cuda:0,,cpu'"),
        (TRAIN | {"worker_devices": "cuda:0,cuda:1"}, "of which there is one: expected one device"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_config("train", words)


def test_run_eagerly_is_for_one_process():
    words = TRAIN | {"run_eagerly": "true"}
    assert build_config("train", words).model.run_eagerly
    with pytest.raises(ConfigError, match="--run_eagerly is for looking into a model in one"):
        build_config("train", words | {"distribution_strategy": "ParameterServerStrategy"})


DETERMINISTIC = TRAIN | {
    "distribution_strategy": "AllreduceStrategy",
    "deterministic": "true",
    "minibatch_size": "32",
    "num_minibatches_per_task": "2",
    "global_batch_size": "128",
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"distribution_strategy": "Local", "global_batch_size": None}, "AllreduceStrategy"),
        ({"global_batch_size": None}, "needs --global_batch_size"),
        ({"global_batch_size": "96"}, "a multiple of 64"),
    ],
    ids=["another strategy", "no global batch", "no whole tasks"],
)
def test_a_deterministic_job_refuses_what_depends_on_the_number_of_workers(words, message):
    assert build_config("train", DETERMINISTIC).training.tasks_per_update == 2
    given = {name: word for name, word in (DETERMINISTIC | words).items() if word is not None}
    with pytest.raises(ConfigError, match=message):
        build_config("train", given)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"job_dir": "/" + "d" * 491}, "--job_dir: expected a path of at most 491 bytes.* of 492"),
        ({"state": f"sqlite:///{'d' * 504}"}, "--state: expected a path of at most 504 bytes"),
        ({"job_name": "n" * 300}, "--job_name: expected at most"),
        (
            {"job_dir": "/" + "d/" * 1950, "state": "etcd://h:1/j"},
            "--job_dir: expected a path of at most 3827 bytes",
        ),
    ],
)
def test_a_path_in_which_the_job_could_open_no_file_is_refused(words, said):
    words = {"distribution_strategy": "ParameterServerStrategy", "num_ps_pods": "1"} | words
    with pytest.raises(ConfigError, match=said):
        build_config("train", TRAIN | words)
    shorter = {name: word[: -len(word) // 2] for name, word in words.items() if name == "job_dir"}
    build_config("train", TRAIN | shorter)


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
@pytest.mark.parametrize("word", ["?", "-7", "a=1;b"])
def test_an_error_of_a_value_names_a_flag(command, word):
    for flag in flags(command):
        try:
            build_config(command, {"model_def": "a.forward", flag.name: word})
        except ConfigError as error:
            for line in str(error).splitlines():
                assert "--" in line or line.startswith("elasticdl "), line
