"""Write UCI Adult as CSV files with a header.

    PYTHONPATH=model_zoo python -m adult.prepare --train=adult.data --test=adult.test --output=adult

The original files (plain or `.gz`) have spaces after commas, `?` for missing values, no header,
and a dot after the labels of the test file.

    PYTHONPATH=model_zoo python -m adult.prepare --generate=10000 --output=adult

writes made-up records with the same columns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import text_tables

COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week"),
    *("native_country", "income"),
)
HEADER = ",".join(COLUMNS)
MADE_UP = {
    "age": (17, 90),
    "workclass": ["Private", "State-gov", "Self-emp-inc", ""],
    "fnlwgt": (10_000, 900_000),
    "education": ["HS-grad", "Bachelors", "Masters", "11th", "Doctorate"],
    "education_num": (1, 16),
    "marital_status": ["Never-married", "Married-civ-spouse", "Divorced"],
    "occupation": ["Sales", "Tech-support", "Craft-repair", "Exec-managerial", ""],
    "relationship": ["Husband", "Wife", "Own-child", "Unmarried"],
    "race": ["White", "Black", "Other"],
    "sex": ["Female", "Male"],
    "capital_gain": (0, 9999),
    "capital_loss": (0, 2500),
    "hours_per_week": (1, 99),
    "native_country": ["United-States", "Mexico", "Germany", ""],
}


def clean(lines: Iterable[str], path: str) -> Iterator[str]:
    """Yield the lines of an original file as lines of a CSV file with `HEADER`.

    Raises:
        SystemExit: A line has another number of fields.
    """
    for number, line in enumerate(lines, 1):
        fields = [field.strip() for field in line.strip().rstrip(".").split(",")]
        if fields == [""] or line.startswith("|"):  # the test file begins with a remark
            continue
        if len(fields) != len(COLUMNS):
            raise SystemExit(
                f"{path}, line {number}: expected {len(COLUMNS)} fields, found {len(fields)}"
            )
        yield ",".join("" if field == "?" else field for field in fields)


def convert(source: Path, output: Path) -> int:
    """Write one file; return its number of records."""
    with text_tables.open_text(source) as lines:
        cleaned = list(clean(lines, str(source)))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join([HEADER, *cleaned]) + "\n")
    return len(cleaned)


def generate(output: Path, num_records: int, seed: int) -> None:
    """Write made-up records."""
    columns, is_positive = text_tables.make_columns(MADE_UP, num_records, seed)
    columns["income"] = [">50K" if positive else "<=50K" for positive in is_positive]
    output.parent.mkdir(parents=True, exist_ok=True)
    text_tables.write_csv(str(output), columns)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--train", type=Path, help="adult.data, plain or .gz")
    parser.add_argument("--test", type=Path, help="adult.test, plain or .gz")
    parser.add_argument("--generate", type=int, metavar="N", help="make up N records instead")
    parser.add_argument("--output", type=Path, required=True, help="folder")
    args = parser.parse_args()
    if args.generate:
        generate(args.output / "train.csv", args.generate, seed=1)
        generate(args.output / "test.csv", args.generate // 4, seed=2)
    elif args.train and args.test:
        for source, name in ((args.train, "train.csv"), (args.test, "test.csv")):
            print(f"{convert(source, args.output / name)} records in {args.output / name}")
    else:
        parser.error("say --train and --test, or --generate")


if __name__ == "__main__":
    main()
