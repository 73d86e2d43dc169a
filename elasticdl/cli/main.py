"""Defines `elasticdl`: train, evaluate, predict, and commands for running jobs and data files."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich_click as click
from click.core import ParameterSource

from elasticdl import registry
from elasticdl.cli import job_file
from elasticdl.cli.export import export
from elasticdl.cli.flags import (
    build_config,
    check_given,
    in_order_of_use,
    option,
    refuse_flags_as_values,
    unknown_flag,
)
from elasticdl.cli.jobs import COMMANDS
from elasticdl.cli.look import look_of, look_options
from elasticdl.cli.stay import dry_run_options, stay_of, stay_options
from elasticdl.cli.terminal import echo
from elasticdl.config import Command
from elasticdl.distribution import DISTRIBUTION
from elasticdl.errors import ConfigError, ElasticdlError
from elasticdl.launchers import choose
from elasticdl.runtime.ending import end
from elasticdl.settings.reader_params import without_password

_FAILED, _WRONG_USAGE, _INTERRUPTED = 1, 2, 130
_OF_MACHINE = (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A user can tell the cause of these errors: a file of somebody else, or a full disk."""
_CONTEXT = {
    "token_normalize_func": lambda word: word.replace("-", "_"),  # --num-epochs is --num_epochs
    "help_option_names": ["--help", "-h"],
}
_ROOT_HELP = """Train deep models on many machines while machines come and go.

You write a model file without any code for distribution. elasticdl runs it in one process, or on a
master, workers and parameter servers (ps replicas). If one of them is killed, the job goes on.

\b
Example:
  elasticdl train \\
    --model_zoo=model_zoo --model_def=flights.deepfm.forward \\
    --training_data=data/train --validation_data=data/test \\
    --distribution_strategy=ParameterServerStrategy \\
    --num_workers=2 --num_ps_pods=2 --num_epochs=3 --output=model
"""
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)  # by words or by --config
_HELP = {
    "train": """Train a model.

    Workers take tasks, which are parts of the training data. The job evaluates the model
    (--validation_data), writes checkpoints (--checkpoint_dir) and the trained model (--output). At
    its end it prints the ledger: how many records were trained once, repeated, or lost.""",
    "evaluate": """Compute the metrics of a trained model.

    Give a checkpoint (--checkpoint_dir_for_init) or an exported model (--saved_model).""",
    "predict": """Predict with a trained model.

    Give a checkpoint (--checkpoint_dir_for_init) or an exported model (--saved_model).
    Predictions go to --output, or to the PredictionOutputsProcessor of the model file.""",
}


class _InOrder(click.RichGroup):
    """A group that lists its own commands as they were added, then those of packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *registry.places("commands")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = registry.places("commands").get(cmd_name)
        return registry.load(place) if place else super().get_command(ctx, cmd_name)


@click.group(name="elasticdl", cls=_InOrder, context_settings=_CONTEXT, help=_ROOT_HELP)
@click.version_option(package_name=DISTRIBUTION, message="elasticdl %(version)s")
@click.rich_config(help_config={"max_width": 100, "text_paragraph_linebreaks": "\n\n"})
def cli() -> None:
    """The root of all commands."""


def _make_command(name: Command) -> click.RichCommand:
    @click.pass_context
    def callback(
        context: click.RichContext,
        /,
        use_go_ps: str | None,
        wait: bool,
        detach: bool,
        quiet: bool,
        log_format: str,
        config: None,
        write_config: Path | None,
        dry_run: bool = False,
        **words: str | None,
    ) -> int:
        if use_go_ps is not None:
            click.echo("note: --use_go_ps has no effect: there is one parameter server", err=True)
        given = {
            flag: word
            for flag, word in words.items()
            if word is not None and context.get_parameter_source(flag) in _GIVEN
        }
        try:
            refuse_flags_as_values(given)
            settings = build_config(name, given)
            check_given(settings, given)
        except ConfigError as error:
            raise click.UsageError(str(error), context) from error
        stay = stay_of(context, wait, detach)
        if write_config is not None:
            job_file.write(write_config, name, settings, given)
            return 0
        if dry_run:
            return choose.dry_run(settings)
        look = look_of(context, quiet, log_format)
        from elasticdl.cli.run import run  # what --help and a typing error need not wait for

        return run(settings, stay, look)

    return click.RichCommand(
        name=name,
        callback=callback,
        params=[
            *(option(flag, panel) for flag, panel in in_order_of_use(name)),
            *_of_command(name),
            *_not_of_the_job(),
        ],
        help=_HELP[name],
    )


def _not_of_the_job() -> list[click.Parameter]:
    """Return the options about the command itself, and the options of earlier versions."""
    return [
        *dry_run_options(),
        click.Option(["--use_go_ps"], is_flag=False, flag_value="", hidden=True),
    ]


def _of_command(name: Command) -> list[click.Option]:
    """Return the options that say what the command does with the job's settings."""

    def read(context: click.Context, option: click.Parameter, path: Path | None) -> None:
        if path is not None:
            try:
                context.default_map = job_file.read(path, name)
            except ConfigError as error:
                raise click.UsageError(str(error), context) from error

    return [
        *stay_options(),
        *look_options(),
        click.RichOption(
            ["--config"],
            type=click.Path(path_type=Path),
            is_eager=True,  # it gives defaults to the others
            callback=read,
            panel="Command",
            help="Read flags from this YAML file. Flags on the command line have priority.",
        ),
        click.RichOption(
            ["--write_config"],
            type=click.Path(path_type=Path),
            panel="Command",
            help="Write these flags to a file for --config, and start no job.",
        ),
    ]


for _name in ("train", "evaluate", "predict"):
    cli.add_command(_make_command(_name))


for _command in COMMANDS:
    cli.add_command(_command)

cli.add_command(export)


def main(argv: Sequence[str] | None = None) -> None:
    """Run `elasticdl`, and end the process with its exit code."""
    end(run_command(sys.argv[1:] if argv is None else argv))


def run_command(argv: Sequence[str]) -> int:
    """Run `elasticdl`; any failure becomes a message on stderr and an exit code."""
    # Once imported, gRPC's C++ core writes to the terminal; the display says the same in better
    # words.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        result: Any = cli.main(args=list(argv), prog_name="elasticdl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "elasticdl"
        _complain(f"{_explain(error)}\nSee {where} --help.")
        return _WRONG_USAGE
    except click.ClickException as error:
        _complain(error.format_message())
        return _FAILED
    except ElasticdlError as error:
        _complain(str(error))
        return _FAILED
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it (`| head`), so no message can be printed there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except OSError as error:
        if error.errno not in _OF_MACHINE:
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        _complain(f"{place}{error.strerror}")
        return _FAILED


def _explain(error: click.UsageError) -> str:
    command = error.ctx.info_name if error.ctx and error.ctx.info_name else ""
    if isinstance(error, click.NoSuchOption):
        value = error.option_name.lstrip("-")
        if value[:1].isdigit():
            return f"found -{value} where a flag was expected; a value is written --name=-{value}"
        if command in _HELP:
            return unknown_flag(command, error.option_name)
        near = sorted(error.possibilities or ())
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown flag {error.option_name}{hint}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        if isinstance(error.param, click.Argument):
            return f"{error.param.human_readable_name} is needed"
        return f"{error.param.opts[0]} is needed ({getattr(error.param, 'help', '')})"
    message = error.format_message()
    if message.startswith("Got unexpected extra argument"):
        message += "; a flag is written --name=value"
    return message[:1].lower() + message[1:]


def _complain(message: str) -> None:
    echo(f"error: {without_password(message)}", err=True)


if __name__ == "__main__":
    main()
