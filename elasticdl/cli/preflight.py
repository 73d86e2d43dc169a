"""Finds mistakes before a job starts, without importing the user's file or a framework.

A mistake in a flag is found in a tenth of a second, before four processes start a framework.
Nothing is written for a job that cannot work.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from elasticdl import registry
from elasticdl.backends.exported import backend_of_export, is_export
from elasticdl.backends.known import known
from elasticdl.checkpoints.first_rows import first_rows
from elasticdl.checkpoints.versions import resolve
from elasticdl.cli.job_folder import holds_job
from elasticdl.cli.model_file import has_tables, imported_by
from elasticdl.config import JobConfig
from elasticdl.data.base import Answers, HasClasses
from elasticdl.data.open import open_reader
from elasticdl.data.sources import read_once_of, reader_params
from elasticdl.data.text import TextReader
from elasticdl.distribution import install, is_missing
from elasticdl.errors import ConfigError, DataError, ElasticdlError, ModelError
from elasticdl.job import Strategy
from elasticdl.launchers import choose
from elasticdl.launchers.process.folder import MADE_FIRST, check_not_running
from elasticdl.locations import Location, is_remote, reaching
from elasticdl.model_spec import check_params
from elasticdl.observe.page import pages
from elasticdl.settings.conflicts import check_destinations
from elasticdl.settings.section import Needs, Section
from elasticdl.state.open import check_state, state_file

_TRIES = 20
_NEEDS_OF_SEEING = (
    Needs("dashboard_port", "dashboard", ("aiohttp", "prometheus_client")),
    Needs("metrics_port", "dashboard", ("aiohttp", "prometheus_client")),
    Needs("tensorboard_log_dir", "tensorboard", ("tensorboardX",)),
)


def check(config: JobConfig) -> list[str]:
    """Raise the first problem that would make the job fail later; return notes for the user.

    Raises:
        ConfigError: A folder is missing, or a result cannot be written.
        DataError: A data file is missing or of no known format.
        ModelError: The model file is missing, does not parse, or lacks a function.
        CheckpointError: There is no checkpoint where one is to be read.
    """
    if not config.launcher.sees_files:
        _notes_of_packages(config)
        _check_elsewhere(config)
        return []
    if config.model.script is not None:
        _check_script(config.model.script)
        # A script need not define any function, so none is looked for.
        model_file, names = config.model.script, None
    else:
        model_file = find_model_file(config)
        names = defined_names(model_file)
    notes = check_state(config.cluster.state)
    _check_packages(config)
    if names is not None:
        _check_functions(config, model_file, names)
    if config.model.script is None:
        _check_model(config, model_file)
    check_params(config.model.model_params)
    notes += _notes_of_packages(config)
    is_script = config.model.script is not None
    # A model file with its own reader may read data that no reader of elasticdl can check.
    if is_script or (names is not None and config.model.custom_data_reader not in names):
        classes: dict[str, tuple[str, ...]] = {}
        for flag in ("training_data", "validation_data", "prediction_data"):
            notes += _check_data(flag, config, classes)
        _check_classes(classes)
    _check_sources(config)
    _check_destinations(config)
    return notes


def framework(config: JobConfig) -> str:
    """Return the name of what processes load before the first record, such as a framework."""
    try:
        found = imported_by(config.model.script or find_model_file(config))
    except (ElasticdlError, OSError, SyntaxError, ValueError):
        return "the model"  # what is wrong is told by `check`
    used = (each for each in known().values() if not found.isdisjoint(each.imports))
    loaded = next(filter(None, (each.loads(config) for each in used)), "")
    return f"{loaded} and the model" if loaded else "the model"


def _check_script(script: Path) -> None:
    if not script.is_file():
        raise ConfigError(f"elasticdl run: expected a Python file, found none at {script}")
    defined_names(script)


def _check_packages(config: JobConfig) -> None:
    """Check that the packages for following the job are installed."""
    own: list[tuple[Section, Needs]] = [(config.seeing, each) for each in _NEEDS_OF_SEEING]
    of_packages = config.package_sections()
    for section, needs in own + [(each, needs) for each in of_packages for needs in each.needs]:
        missing = [name for name in needs.modules if is_missing(name)]
        if getattr(section, needs.flag) not in (None, "") and missing:
            raise ConfigError(
                f"--{needs.flag} needs a package that is missing ({', '.join(missing)}): "
                f"{install(needs.extra)}"
            )
    if config.seeing.dashboard_port is not None or config.seeing.metrics_port is not None:
        pages()
    if config.seeing.tensorboard_log_dir is not None and not registry.places("trackers"):
        raise ConfigError(
            "--tensorboard_log_dir: no package here writes for TensorBoard; reinstall elasticdl"
        )
    if config.has_worlds and not registry.places("rings"):
        raise ConfigError(
            f"--distribution_strategy={config.training.distribution_strategy}: no package here "
            "brings all-reduce; reinstall elasticdl, or choose another strategy"
        )
    if config.cluster.ps_autoscale and not registry.places("advisers"):
        raise ConfigError(
            "--ps_autoscale: no package here says when a job needs more ps replicas; reinstall "
            "elasticdl"
        )
    for each in of_packages:
        each.check_machine(config)


def _notes_of_packages(config: JobConfig) -> list[str]:
    checks: dict[str, Callable[[JobConfig], list[str]]] = registry.brought("checks")
    return [note for check in checks.values() for note in check(config)]


def _check_elsewhere(config: JobConfig) -> None:
    """Check a job as far as this machine can: its data, and perhaps its model, are elsewhere."""
    check_params(config.model.model_params)
    if not choose.parts_of(config).sees_model_zoo(config):
        return
    if config.model.script is not None:
        _check_script(config.model.script)
    else:
        model_file = find_model_file(config)
        names = defined_names(model_file)
        if names is not None:
            _check_functions(config, model_file, names)
        _check_model(config, model_file)


def find_model_file(config: JobConfig) -> Path:
    """Return the file that `--model_def` names.

    Raises:
        ConfigError: There is no such folder.
        ModelError: There is no such file.
    """
    zoo, model_def = config.model.model_zoo, config.model.model_def
    module, _, function = model_def.rpartition(".")
    is_path = function == "py" or not all(part.isidentifier() for part in model_def.split("."))
    if not module or is_path:
        raise ModelError(
            f"--model_def: expected package.module.function, for example mnist.model.forward, "
            f"found {model_def!r}{_of_path(model_def)}"
        )
    here = Path(*module.split(".")).with_suffix(".py")
    hint = f"; of {here} in this folder say --model_zoo=." if here.is_file() else ""
    if not zoo.is_dir():
        raise ConfigError(f"--model_zoo: expected a folder, found none at {zoo}{hint}")
    path = zoo.joinpath(*module.split("."))
    for candidate in (path.with_name(path.name + ".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    found = sorted(".".join(file.relative_to(zoo).with_suffix("").parts) for file in _modules(zoo))
    near = difflib.get_close_matches(module, found, n=1)
    hint = f"; did you mean {near[0]}.{function}?" if near else hint
    raise ModelError(f"--model_def={model_def}: expected the file {path}.py, found none{hint}")


def _of_path(model_def: str) -> str:
    """Return the name of the function of a file, if `--model_def` is a path."""
    file = Path(model_def)
    if not file.is_file():
        return ""
    return f"; of this file say --model_zoo={file.parent} --model_def={file.stem}.FUNCTION"


def defined_names(path: Path) -> set[str] | None:
    """Return the names that a module defines at its top; None if the file does not tell.

    Raises:
        ModelError: The file is not Python; the error names the line.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise ModelError(f"{path}:{line}: {getattr(error, 'msg', error)}") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    names = set(_names(tree.body))
    # A `__getattr__` of the module, or an import with a star, may define any name.
    return None if names & {"*", "__getattr__"} else names


def _modules(zoo: Path) -> Iterator[Path]:
    """Yield the model files of a zoo, down to the usual depth of packages."""
    for depth in range(1, 4):
        for file in zoo.glob("/".join(["*"] * depth) + ".py"):
            if not file.name.startswith(("_", "test_")):
                yield file


def _names(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    yield alias.asname or alias.name.split(".")[0]
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.TryStar():
                for field in ("body", "orelse", "handlers", "finalbody"):
                    yield from _names(getattr(node, field, ()))
            case ast.ExceptHandler():
                yield from _names(node.body)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for part in ast.walk(target):
                        if isinstance(part, ast.Name):
                            yield part.id


def _needs(config: JobConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield flags that name functions, and the names of which the model file must define one."""
    model = config.model
    yield "model_def", (model.model_def.rpartition(".")[2],)
    yield "feed", (model.feed, "dataset_fn")
    for flag, name in model.named().items():
        yield flag, (name,)
    if config.command == "train":
        yield "optimizer", (model.optimizer,)
    if config.command == "evaluate":
        # The loss of a checkpoint is measured too; an export has no loss.
        of_loss = () if config.checkpoint.saved_model else (model.loss,)
        names = model.eval_metrics_fn, model.weighted_metrics_fn, *of_loss
        yield "eval_metrics_fn", names


def check_function(path: Path, defined: set[str] | None, flag: str, *names: str) -> None:
    """Check that a model file defines a function.

    Args:
        path: The file.
        defined: The names that it defines; None: it does not tell.
        flag: The flag that names the function.
        names: The names that the function may have.

    Raises:
        ModelError: It defines none of the names.
    """
    if defined is not None and defined.isdisjoint(names):
        near = difflib.get_close_matches(names[0], defined, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        expected = " or ".join(repr(name) for name in names)
        raise ModelError(f"{path}: expected a function {expected} (--{flag}), found none{hint}")


def _check_functions(config: JobConfig, path: Path, names: set[str]) -> None:
    for flag, choices in _needs(config):
        check_function(path, names, flag, *choices)
    processor = config.model.prediction_outputs_processor
    if config.command != "predict":
        return
    output = config.checkpoint.output
    if output is None and processor not in names:
        raise ConfigError(
            f"elasticdl predict needs --output, where to write predictions, because {path} "
            f"defines no {processor}"
        )
    if output is not None and processor in names:
        raise ConfigError(
            f"--output={output}: {path} defines {processor}, which takes the predictions, so no "
            "file would be written: leave out --output, or the class"
        )


def _check_model(config: JobConfig, path: Path) -> None:
    """Refuse a model that workers would refuse later, after each has started its framework."""
    if not config.has_worlds:
        return
    strategy = config.training.distribution_strategy
    function = config.model.model_def.rpartition(".")[2]
    found = has_tables(path, function)
    if found is True and strategy is Strategy.ALLREDUCE:
        raise ModelError(
            f"{path}: {function}() has embedding tables of elasticdl (Embedding, or a Table's "
            f"vectors), and with --distribution_strategy={strategy} each worker would hold all "
            f"their rows: expected --distribution_strategy={Strategy.HYBRID} or "
            f"{Strategy.PARAMETER_SERVER}, or the framework's own Embedding if the tables are small"
        )
    if found is False and strategy is Strategy.HYBRID:
        raise ModelError(
            f"{path}: {function}() has no embedding tables, and --distribution_strategy={strategy} "
            "is for models with them: expected "
            f"--distribution_strategy={Strategy.ALLREDUCE}"
        )


def _check_classes(classes: dict[str, tuple[str, ...]]) -> None:
    """Refuse folders of images that number their classes in another way than the training data."""
    ours = classes.get("training_data", ())
    theirs = classes.get("validation_data", ())
    if ours and theirs and theirs != ours[: len(theirs)]:
        raise DataError(
            f"--validation_data: its folders are {', '.join(theirs)}, those of --training_data "
            f"{', '.join(ours)}: the order of the folders' names numbers the classes, so the "
            "numbers would differ; make the same folders, also empty ones"
        )


def _check_data(flag: str, config: JobConfig, classes: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Check that the files exist, have one known format, and that their reader has the settings.

    The classes of a folder of images are added to `classes`.
    """
    text = getattr(config.data, flag)
    if not text or (flag == "training_data" and read_once_of(config) is not None):
        return
    try:
        reader = open_reader(text, reader_params(config, text))
        if isinstance(reader, TextReader):
            reader.check_start()
        if isinstance(reader, Answers) and not holds_job(config):
            reader.check()  # a job that goes on waits for its source
    except DataError as error:
        raise DataError(f"--{flag}: {error}") from error
    if isinstance(reader, HasClasses):
        classes[flag] = reader.classes
    is_mixed = config.training.shuffle == "records"
    if flag == "training_data" and isinstance(reader, HasClasses) and not is_mixed:
        yield (
            f"--training_data: {text} has a folder for each class, so a task has images of one "
            "class, and so has a minibatch: models hardly learn from them; --shuffle=records mixes "
            "the classes"
        )


def _check_sources(config: JobConfig) -> None:
    checkpoint = config.checkpoint.checkpoint_dir_for_init
    if checkpoint is not None:
        _check_is_no_export(checkpoint, config)
        resolve(checkpoint)
    if rows := config.checkpoint.pretrained_rows:
        first_rows().check(rows)
    saved_model = config.checkpoint.saved_model
    if saved_model is not None:
        backend_of_export(saved_model)


def _check_is_no_export(checkpoint: Location, config: JobConfig) -> None:
    if isinstance(checkpoint, Path) and is_export(checkpoint):
        remedy = (
            "training goes on from what --checkpoint_dir of a job has"
            if config.command == "train"
            else "give it as --saved_model"
        )
        raise ConfigError(
            f"--checkpoint_dir_for_init: expected a checkpoint, found an exported model at "
            f"{checkpoint}: {remedy}"
        )


def _check_destinations(config: JobConfig) -> None:
    checkpoint, job_dir = config.checkpoint, config.cluster.job_dir
    is_new = not holds_job(config)
    for flag, folder in (
        ("output", checkpoint.output),
        ("export_tables", checkpoint.export_tables),
    ):
        if folder is not None and is_new:  # else it may have been written already
            check_new_folder(flag, folder)
    if job_dir is not None and is_new:
        _check_new_job_dir(job_dir)
    if checkpoint.checkpoint_dir is not None:
        check_folder("checkpoint_dir", checkpoint.checkpoint_dir)
    if config.cluster.ps_disk is not None:
        check_folder("ps_disk", config.cluster.ps_disk)
    if config.cluster.state is not None:
        _check_journal(state_file(config.cluster.state, Path()))
    if config.seeing.tensorboard_log_dir is not None:
        check_folder("tensorboard_log_dir", config.seeing.tensorboard_log_dir)
    if checkpoint.summary is not None:
        if checkpoint.summary.is_dir():
            raise ConfigError(
                f"--summary: expected a file name, found a folder, {checkpoint.summary}"
            )
        if config.command == "train":
            _check_apart_from_results(checkpoint.summary, config)
        check_folder("summary", checkpoint.summary.absolute().parent)


def _check_apart_from_results(summary: Path, config: JobConfig) -> None:
    """Refuse a summary in the folder of a result.

    The summary of an interrupted job would keep the resumed job from writing the result.
    """
    output, tables = config.checkpoint.output, config.checkpoint.export_tables
    try:
        check_destinations({"output": output, "export_tables": tables, "summary": summary})
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check_journal(path: Path | None) -> None:
    """Check that a journal in a file can be written; the master does not make the file's folder.

    Raises:
        ConfigError: The journal cannot be written.
    """
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        found = f"the folder {path}" if path.is_dir() else f"no folder {path.parent}"
        raise ConfigError(f"--state: expected a file in a folder that is there, found {found}")
    check_folder("state", path.parent)


def _check_new_job_dir(job_dir: Path) -> None:
    """Check that a job can begin in a folder, even if another command begins one there now.

    Raises:
        ConfigError: The folder is not empty, or cannot be written to.
        LaunchError: The job in it is running.
    """
    try:
        check_new_folder("job_dir", job_dir, but=MADE_FIRST)
    except ConfigError:
        # A running job explains the folder's files better than the number of entries does.
        check_not_running(job_dir)
        raise


def check_new_folder(flag: str, folder: Location, but: tuple[str, ...] = ()) -> None:
    """Check that results can be written to a folder; the check leaves no file there.

    Args:
        flag: The flag that names the folder.
        folder: The folder.
        but: The patterns of file names that the folder may have.

    Raises:
        ConfigError: The folder is not empty, or cannot be written to; the error names the flag.
    """
    check_folder(flag, folder)
    with reaching(folder):
        found = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    entries = [name for name in found if not any(fnmatchcase(name, each) for each in but)]
    if entries:
        raise ConfigError(
            f"--{flag}: expected a folder that is new or empty, found {folder} with "
            f"{len(entries)} entries; name another or remove it"
        )


def check_folder(flag: str, folder: Location) -> None:
    """Check that a folder can be written to, or be made; a URL has to answer.

    The check makes the folder and a file, since access rights do not tell enough: a file system may
    be read-only, full, or made by the kernel, and a name may be too long. All that was made is
    removed.
    """
    if is_remote(folder):
        with reaching(folder):
            folder.exists()
        return
    for left in reversed(range(_TRIES)):
        try:
            _try_to_write(flag, folder.absolute())
            return
        except (OSError, ValueError) as error:
            # Another command looks at the same folder too: it makes it and removes it meanwhile.
            if left and isinstance(error, FileExistsError | FileNotFoundError):
                continue
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--{flag}: expected a folder to write in, found that {folder} cannot be made or "
                f"written to: {why}"
            ) from error


def _try_to_write(flag: str, path: Path) -> None:
    """Make a folder and a file in it, and remove all that was made.

    Raises:
        ConfigError: The path is no folder, or access is denied.
        OSError: The folder or the file cannot be made.
    """
    existing = next(each for each in (path, *path.parents) if each.exists())
    if not existing.is_dir():
        raise ConfigError(f"--{flag}: expected a folder, found the file {existing}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--{flag}: expected a folder to write in, found no permission for {existing}"
        )
    missing = [each for each in (path, *path.parents) if each.is_relative_to(existing)]
    made: list[Path] = []
    try:
        for each in reversed(missing[: missing.index(existing)]):
            each.mkdir()
            made.append(each)
        with tempfile.TemporaryFile(dir=path, prefix=".elasticdl-") as file:
            file.write(b"elasticdl")
            file.flush()
    finally:
        for each in reversed(made):
            with contextlib.suppress(OSError):  # somebody has put something there meanwhile
                each.rmdir()
