"""Implements `elasticdl run script.py`: a user's own training loop on several workers."""

from __future__ import annotations

from pathlib import Path

import rich_click as click
from click.core import ParameterSource

from elasticdl import registry
from elasticdl.cli.flags import (
    Flag,
    build_config,
    check_given,
    flags,
    option,
    refuse_flags_as_values,
)
from elasticdl.cli.look import look_of, look_options
from elasticdl.cli.stay import dry_run_options, stay_of, stay_options
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Strategy
from elasticdl.launchers import choose
from elasticdl.settings.section import PackageSection

_HELP = """Run a script with your own training loop on several workers.

Each worker runs the script, in PyTorch or in Keras on TensorFlow. elasticdl.controller gives it
minibatches of --training_data, and averages its gradients with those of the other workers. The
words after -- are arguments of the script. With --launcher=kubernetes and without --image_name, the
folder of the script (up to 1 MiB) is sent to the pods.

\b
Example:
  elasticdl run train.py --training_data=data/train --num_workers=3 -- --units=64
"""
_OTHER_SECTIONS = frozenset({"model", "evaluation"})
_OTHER_FLAGS = frozenset(
    {
        # A script evaluates by itself, and makes its own optimizer.
        "validation_data",
        "validation_split",
        "prediction_data",
        "learning_rate",
        "keep_best",
        # A script draws its own random numbers.
        "deterministic",
        # A script's updates are made by all-reduce, without these flags.
        "distribution_strategy",
        "use_async",
        "grads_to_wait",
        "sync_version_tolerance",
        "max_staleness",
        "get_model_steps",
        "push_steps",
        "exchange_minibatches",
        "staleness_lr_modulation",
        "num_ps_pods",
        "ps_memory_limit",
        "ps_disk",
        "ps_autoscale",
        "ps_recovery",
        "ps_redo_mb",
        "pretrained_rows",
        # These flags need a model file.
        "saved_model",
        "output_tables",
        "export_tables",
        "export_threshold",
        "export_since_version",
    }
)


def _flags() -> list[Flag]:
    brought: dict[str, type[PackageSection]] = registry.brought("sections")
    others = {*_OTHER_SECTIONS, *(name for name, kind in brought.items() if kind.needs_model_file)}
    return [
        flag
        for flag in flags("train")
        if not others & {*flag.path} and flag.name not in _OTHER_FLAGS
    ]


# A job without a model of its own counts minibatches on a ps replica that holds nothing else.
_SHARDS_ONLY = {
    "distribution_strategy": str(Strategy.PARAMETER_SERVER),
    "num_ps_pods": "1",
}
_OF_A_MODEL = ("output", "global_batch_size")


def configure(
    script: Path,
    arguments: tuple[str, ...],
    words: dict[str, str | None],
    shards_only: bool = False,
) -> JobConfig:
    """Return the configuration of a job that runs a script.

    Raises:
        ConfigError: A value does not fit its flag, or flags do not fit together; one line each.
    """
    # `--model_def` is required, and a script has no model function: its file stands for it.
    model = {"model_zoo": str(script.parent), "model_def": script.name}
    strategy = {"distribution_strategy": str(Strategy.ALLREDUCE)}
    if shards_only:
        strategy = _SHARDS_ONLY
        for flag in _OF_A_MODEL:
            if words.get(flag) is not None:
                raise ConfigError(
                    f"--{flag} needs a model that the job trains, and with --shards_only the "
                    "script trains its own: expected one of these flags"
                )
    config = build_config("train", {**words, **model, **strategy})
    if choose.parts_of(config).sees_model_zoo(config):
        script = script.resolve()  # else it is in the image, or on a volume
    of_script = {"script": script, "script_arguments": arguments, "model_zoo": script.parent}
    return config.model_copy(update={"model": config.model.model_copy(update=of_script)})


@click.pass_context
def _run(
    context: click.RichContext,
    /,
    script: Path,
    arguments: tuple[str, ...],
    wait: bool,
    detach: bool,
    quiet: bool,
    log_format: str,
    shards_only: bool,
    dry_run: bool = False,
    **words: str | None,
) -> int:
    # Else a default would look as if somebody had asked for it.
    given = {
        name: word
        for name, word in words.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    try:
        refuse_flags_as_values({name: word for name, word in given.items() if word is not None})
        config = configure(script, arguments, given, shards_only)
        check_given(config, given)
    except ConfigError as error:
        raise click.UsageError(str(error), context) from error
    stay = stay_of(context, wait, detach)
    if dry_run:
        return choose.dry_run(config)
    look = look_of(context, quiet, log_format)
    from elasticdl.cli.run import run  # what --help and a typing error need not wait for

    return run(config, stay, look)


run_script = click.RichCommand(
    name="run",
    callback=_run,
    params=[
        click.Argument(["script"], type=click.Path(path_type=Path)),
        click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED),
        click.RichOption(
            ["--shards_only"],
            is_flag=True,
            panel="Command",
            help="Only give the script minibatches, and count each once. The script makes its own "
            "updates, in any framework. No worker waits for another.",
        ),
        *(option(flag) for flag in _flags()),
        *stay_options(),
        *look_options(),
        *dry_run_options(),
    ],
    help=_HELP,
)
