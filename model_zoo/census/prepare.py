"""Write UCI Census-Income (KDD) as CSV files with a header.

    PYTHONPATH=model_zoo python -m census.prepare --data=census-income.data --output=census

The original files (plain or `.gz`) have spaces after commas and no header. Every fifth record (0,
5, 10, ...) is for testing. The instance weight is left out: it says how many people a record stands
for, and is no fact about the person.

    PYTHONPATH=model_zoo python -m census.prepare --generate=10000 --output=census

writes made-up records with the same columns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import text_tables

WEIGHT = "instance_weight"
FIELDS = (
    *("age", "class_of_worker", "industry_code", "occupation_code", "education", "wage_per_hour"),
    *("enrolled_in_education", "marital_status", "major_industry", "major_occupation", "race"),
    *("hispanic_origin", "sex", "labor_union", "reason_for_unemployment", "employment_status"),
    *("capital_gains", "capital_losses", "dividends_from_stocks", "tax_filer_status"),
    *("previous_region", "previous_state", "household_and_family", "household_summary", WEIGHT),
    *("migration_msa", "migration_region", "migration_within_region", "same_house_1_year_ago"),
    *("migration_sunbelt", "num_persons_worked_for_employer", "family_members_under_18"),
    *("country_of_father", "country_of_mother", "country_of_birth", "citizenship"),
    *("self_employed", "veterans_questionnaire", "veterans_benefits", "weeks_worked_in_year"),
    *("year", "income"),
)
COLUMNS = tuple(name for name in FIELDS if name != WEIGHT)
TEST_EVERY = 5


def clean(lines: Iterable[str], path: str) -> list[str]:
    """Return the lines of an original file as lines of a CSV file with `COLUMNS`.

    Raises:
        SystemExit: A line has another number of fields.
    """
    weight = FIELDS.index(WEIGHT)
    cleaned = []
    for number, line in enumerate(lines, 1):
        fields = [field.strip() for field in line.strip().split(",")]
        if fields == [""]:
            continue
        if len(fields) != len(FIELDS):
            raise SystemExit(
                f"{path}, line {number}: expected {len(FIELDS)} fields, found {len(fields)}"
            )
        del fields[weight]
        cleaned.append(",".join("" if field == "?" else field for field in fields))
    return cleaned


def convert(source: Path, output: Path) -> tuple[int, int]:
    """Write `train.csv` and `test.csv`; return their numbers of records."""
    with text_tables.open_text(source) as lines:
        cleaned = clean(lines, str(source))
    output.mkdir(parents=True, exist_ok=True)
    test = cleaned[::TEST_EVERY]
    train = [line for number, line in enumerate(cleaned) if number % TEST_EVERY]
    for name, part in (("train.csv", train), ("test.csv", test)):
        (output / name).write_text("\n".join([",".join(COLUMNS), *part]) + "\n")
    return len(train), len(test)


def generate(output: Path, num_records: int, seed: int) -> None:
    """Write made-up records."""
    from census.model import NUMBERS

    kinds: dict[str, text_tables.Kind] = {}
    for number, name in enumerate(COLUMNS[:-1]):
        words = [f"{name} {k}" for k in range(3 + number % 7)]
        kinds[name] = (0, 2 * NUMBERS[name][-1]) if name in NUMBERS else words
    columns, is_positive = text_tables.make_columns(kinds, num_records, seed)
    columns["income"] = ["50000+." if positive else "- 50000." for positive in is_positive]
    output.parent.mkdir(parents=True, exist_ok=True)
    text_tables.write_csv(str(output), columns)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="census-income.data or .test, plain or .gz")
    parser.add_argument("--generate", type=int, metavar="N", help="make up N records instead")
    parser.add_argument("--output", type=Path, required=True, help="folder")
    args = parser.parse_args()
    if args.generate:
        generate(args.output / "train.csv", args.generate, seed=1)
        generate(args.output / "test.csv", args.generate // 4, seed=2)
    elif args.data:
        train, test = convert(args.data, args.output)
        print(f"{train} training and {test} test records in {args.output}")
    else:
        parser.error("say --data or --generate")


if __name__ == "__main__":
    main()
