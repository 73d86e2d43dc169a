"""Settings of a trace: which minibatches are traced, which of their values, and where."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from elasticdl.settings.section import Needs, Only, PackageSection

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

_TRAIN = Only(("train",))

TENSORS = ("ids", "rows", "gradients", "predictions", "labels", "dense", "dense_gradients")
_USUAL = ("ids", "rows", "gradients", "predictions", "labels")
_EXAMPLE = 'expected "every=10; tables=user,item; tensors=ids,predictions", any of these'


@dataclass(frozen=True, slots=True)
class TraceChoice:
    """The choice of what to trace.

    every: One minibatch of the data in this number is traced, in any worker.
    tables: The tables whose ids, rows and gradients are traced; empty: all tables.
    tensors: The traced values of a minibatch, of `TENSORS`.
    records: The number of first records of a traced minibatch; 0: all of them.
    megabytes, seconds: A file of this size or this age is ended.
    """

    every: int = 100
    tables: tuple[str, ...] = ()
    tensors: tuple[str, ...] = _USUAL
    records: int = 16
    megabytes: int = 64
    seconds: int = 30

    @classmethod
    def of(cls, text: str) -> TraceChoice | None:
        """Read the flag; None if it is empty.

        Raises:
            ValueError: The text has a word that does not belong to a trace.
        """
        if not text:
            return None
        given: dict[str, int | tuple[str, ...]] = {}
        for item in filter(None, map(str.strip, text.split(";"))):
            name, equals, word = (part.strip() for part in item.partition("="))
            if not equals or name not in _NAMES:
                raise ValueError(f"--trace: {item!r} is not known: {_EXAMPLE}; {', '.join(_NAMES)}")
            if name in ("tables", "tensors"):
                given[name] = tuple(filter(None, map(str.strip, word.split(","))))
                continue
            number = 0 if (name, word) == ("records", "all") else _number(name, word)
            given[name] = number
        for tensor in given.get("tensors", _USUAL):  # type: ignore[union-attr]
            if tensor not in TENSORS:
                raise ValueError(
                    f"--trace: tensors={tensor}: expected some of {', '.join(TENSORS)}"
                )
        return cls(**given)  # type: ignore[arg-type]


_NAMES = tuple(field.name for field in fields(TraceChoice))


def _number(name: str, word: str) -> int:
    if not (word.isascii() and word.isdecimal() and int(word)):
        also = ", or all" if name == "records" else ""
        raise ValueError(f"--trace: {name}={word}: expected a whole number above 0{also}")
    return int(word)


class TraceSection(PackageSection):
    """Trace of what is trained."""

    changes_nothing: ClassVar[bool] = True
    needs_model_file: ClassVar[bool] = True
    needs: ClassVar[tuple[Needs, ...]] = (Needs("trace", "parquet", ("pyarrow",)),)

    trace: Annotated[
        str,
        Field(
            description="Write chosen records as they are trained, with ids, rows, gradients and "
            'predictions, to Parquet files: "every=10; tables=user,item; tensors=ids,predictions".'
        ),
        _TRAIN,
    ] = ""
    trace_dir: Annotated[
        Path | None,
        Field(description="Folder for the files of --trace [default: trace in --job_dir]."),
        _TRAIN,
    ] = None

    def check(self, job: JobConfig) -> None:
        """Refuse words that belong to no trace, and a trace that nobody could read."""
        if TraceChoice.of(self.trace) is None:
            if self.trace_dir is not None:
                raise ValueError("--trace_dir needs --trace, which says what is written there")
            return
        if not job.launcher.sees_files and self.trace_dir is None:
            place = job.launcher.place_name
            raise ValueError(
                f"--trace: on {job.launcher.title} the folder of a worker goes with its {place}: "
                "expected --trace_dir, a folder on a volume that stays"
            )

    def check_machine(self, job: JobConfig) -> None:
        """Refuse a folder that cannot be written to."""
        from elasticdl.cli.preflight import check_folder

        if self.trace_dir is not None:
            check_folder("trace_dir", self.trace_dir)
