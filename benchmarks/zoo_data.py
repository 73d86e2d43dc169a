"""The data of `zoo.py`: prepared from original files, taken from a package, or made up."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobs import environment

DAC_LINES = 200_000
CSV = "skip_header=true"


@dataclass(frozen=True, slots=True)
class Data:
    """Training and test data, and how they are read.

    linear: Flags of `peers/zoo_linear.py`.
    statistics: A file of `elasticdl data analyze`, for model files that look things up in it.
    """

    train: Path
    test: Path
    linear: tuple[str, ...]
    reader_params: str = ""
    statistics: Path | None = None


def make_data(name: str, given: Path | None, scratch: Path, short: bool) -> Data | None:
    """Make data below `scratch`; None if it needs original files that `given` does not have."""
    return _MAKERS[name](given or Path("/nowhere"), scratch / f"{name}-data", short)


def _adult(given: Path, folder: Path, short: bool) -> Data | None:
    train, test = _one(given, "adult/adult.data*"), _one(given, "adult/adult.test*")
    if train is None or test is None:
        return None
    _python("adult.prepare", f"--train={train}", f"--test={test}", f"--output={folder}")
    return _csv(folder, "--label=income", "--positive=>50K")


def _adult_sorted(given: Path, folder: Path, short: bool) -> Data | None:
    data = _adult(given, folder, short)
    if data is not None:
        header, *lines = data.train.read_text().splitlines(keepends=True)
        data.train.write_text(header + "".join(sorted(lines, key=lambda line: line.split(",")[-1])))
    return data


def _census(given: Path, folder: Path, short: bool) -> Data | None:
    data = _one(given, "census_kdd/census-income*")
    if data is None:
        return None
    _python("census.prepare", f"--data={data}", f"--output={folder}")
    # Some columns of names are written as numbers.
    script = "from census.model import *; print(*CATEGORIES, sep=',')"
    names = _run([sys.executable, "-c", script])
    return _csv(folder, "--label=income", "--positive=50000+.", f"--categories={names}")


def _din(given: Path, folder: Path, short: bool) -> Data:
    count = 4000 if short else 100_000
    _python("din.make_data", f"--output={folder}", f"--num_records={count}")
    return _csv(folder, "--label=clicked", "--positive=1", "--categories=item,category")


def _lr(given: Path, folder: Path, short: bool) -> Data:
    count = 20_000 if short else 100_000
    _python("lr.make_data", f"--output={folder}", f"--num_records={count}")
    return _csv(folder, "--label=clicked", "--positive=1", "--categories=*")


def _iris(given: Path, folder: Path, short: bool) -> Data:
    _python("iris.prepare", f"--output={folder}")
    return _csv(folder, "--label=kind", "--leave_out=id")


def _flights(given: Path, folder: Path, short: bool) -> Data:
    _python("flights.prepare", f"--output={folder}")
    linear = ("--label=late", "--positive=1", "--categories=*")
    return Data(folder / "train", folder / "validation", linear)


def _mnist(given: Path, folder: Path, short: bool) -> Data | None:
    images, labels = _one(given, "mnist/train-images*"), _one(given, "mnist/train-labels*")
    if images is None or labels is None:
        return None
    _python("mnist.prepare", f"--images={images}", f"--labels={labels}", f"--output={folder}")
    return Data(folder / "train", folder / "validation", ("--label=label", "--pixels=image"))


def _cifar10(given: Path, folder: Path, short: bool) -> Data | None:
    train, test = _one(given, "cifar10/*train*.tar.gz"), _one(given, "cifar10/*test*.tar.gz")
    if train is None or test is None:
        return None
    for archive in (train, test):
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
    return Data(folder / "train", folder / "test", ("--label=label", "--pixels=image"))


def _dac(given: Path, folder: Path, short: bool) -> Data:
    folder.mkdir()
    lines, count = folder / "train.txt", 20_000 if short else DAC_LINES
    _python("criteo.generate", f"--output={lines}", f"--num_records={count}")
    records, statistics = folder / "dac", folder / "statistics.json"
    convert = ("convert", str(lines), str(records), "--from=criteo", "--validation=1/20")
    _run(["elasticdl", "data", *convert])
    _run(["elasticdl", "data", "analyze", str(records / "train"), f"--output={statistics}"])
    linear = ("--label=label", "--positive=1", "--log")
    return Data(records / "train", records / "val", linear, statistics=statistics)


_MAKERS: dict[str, Callable[[Path, Path, bool], Data | None]] = {
    "adult": _adult,
    "adult_sorted": _adult_sorted,
    "census": _census,
    "cifar10": _cifar10,
    "dac": _dac,
    "din": _din,
    "flights": _flights,
    "iris": _iris,
    "lr": _lr,
    "mnist": _mnist,
}


def _csv(folder: Path, *linear: str) -> Data:
    return Data(folder / "train.csv", folder / "test.csv", linear, CSV)


def _one(folder: Path, pattern: str) -> Path | None:
    return min(folder.glob(pattern), default=None)


def _python(module: str, *words: str) -> None:
    _run([sys.executable, "-m", module, *words])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()
