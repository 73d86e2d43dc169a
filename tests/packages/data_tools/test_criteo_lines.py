"""`elasticdl data convert --from=criteo`: every field, every bad line, all files or none."""

import filecmp
import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordReader, TFRecordReader
from elasticdl.cli.main import run_command
from elasticdl.data.example import decode_example

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")

ZOO = Path(__file__).parents[3] / "model_zoo"
INTEGERS = [f"I{n}" for n in range(1, 14)]
CATEGORIES = [f"C{n}" for n in range(1, 27)]
NAMES = ["label", *INTEGERS, *CATEGORIES]
NUM_LINES = 5000
GOOD = "\t".join(["1", *map(str, range(13)), *(f"{n:08x}" for n in range(26))])


def with_field(name, value):
    fields = GOOD.split("\t")
    fields[NAMES.index(name)] = value
    return "\t".join(fields)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    path = tmp_path_factory.mktemp("criteo") / "train.txt"
    subprocess.run(
        [sys.executable, "-m", "criteo.generate", f"--output={path}", f"--num_records={NUM_LINES}"],
        env=os.environ | {"PYTHONPATH": str(ZOO)},
        check=True,
    )
    return path


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch, generated):
    monkeypatch.chdir(tmp_path)
    # Many blocks, so that they can be done out of order and files end inside them.
    monkeypatch.setattr("elasticdl.packages.data_tools.lines.source.BLOCK_BYTES", 50_000)
    Path("train.txt").symlink_to(generated)


@pytest.fixture
def convert(capsys):
    def run(*words):
        code = run_command(["data", "convert", *words, "--from=criteo"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def pandas_of(path, **options):
    kinds = {name: "Int64" for name in ("label", *INTEGERS)} | dict.fromkeys(CATEGORIES, "str")
    frame = pd.read_csv(
        path, sep="\t", names=NAMES, dtype=kinds, keep_default_na=False, na_values=[""], **options
    )
    return [
        {name: value for name, value in zip(NAMES, row, strict=True) if not pd.isna(value)}
        for row in frame.itertuples(index=False)
    ]


def records_of(folder):
    """All records of a folder's files as dicts without the fields that are missing."""
    rows = []
    for path in sorted(Path(folder).iterdir()):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            assert table.column_names == NAMES
            rows += [
                {name: value for name, value in row.items() if value is not None}
                for row in table.to_pylist()
            ]
            continue
        file = {".recordio": RecordReader, ".tfrecord": TFRecordReader}[path.suffix](str(path))
        rows += [
            {name: _value(values) for name, values in decode_example(record).items()}
            for record in file.read(0, file.num_records)
        ]
    return rows


def _value(values):
    (value,) = values
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("format_name", ["recordio", "tfrecord", "parquet"])
def test_every_field_is_what_pandas_reads(convert, format_name):
    code, out, _ = convert("train.txt", "out", f"--format={format_name}", "--records_per_file=1234")

    assert code == 0
    assert "5,000 records in 5" in out
    assert records_of("out") == pandas_of("train.txt")


def test_a_split_has_each_record_once_and_is_the_same_however_it_is_computed(convert, monkeypatch):
    assert convert("train.txt", "one", "--validation=1/20", "--records_per_file=700")[0] == 0
    monkeypatch.setattr("elasticdl.packages.data_tools.lines.convert.num_cores", lambda: 7)
    assert convert("train.txt", "other", "--validation=0.05", "--records_per_file=700")[0] == 0

    for name in ("train", "val"):
        files = sorted(os.listdir(f"one/{name}"))
        assert files == sorted(os.listdir(f"other/{name}"))
        same, different, missing = filecmp.cmpfiles(
            f"one/{name}", f"other/{name}", files, shallow=False
        )
        assert (same, different, missing) == (files, [], [])
    training, validation = records_of("one/train"), records_of("one/val")
    assert 180 < len(validation) < 320
    everything = iter(pandas_of("train.txt"))
    assert all(record in everything for record in training)  # in order
    key = [tuple(sorted(record.items())) for record in pandas_of("train.txt")]
    assert sorted(tuple(sorted(record.items())) for record in training + validation) == sorted(key)


def test_another_seed_chooses_others_and_other_blocks_the_same(convert, monkeypatch):
    convert("train.txt", "zero", "--validation=1/20", "--format=parquet")
    convert("train.txt", "seven", "--validation=1/20", "--format=parquet", "--seed=7")
    monkeypatch.setattr("elasticdl.packages.data_tools.lines.source.BLOCK_BYTES", 7_000)
    convert("train.txt", "blocks", "--validation=1/20", "--format=parquet")

    assert records_of("zero/val") != records_of("seven/val")
    assert records_of("zero/val") == records_of("blocks/val")


@pytest.mark.parametrize("suffix", ["gz", "zst", "crlf", "bom"])
def test_compressed_files_and_those_of_windows_give_the_same(convert, suffix):
    raw = Path("train.txt").read_bytes()
    made = {
        "gz": gzip.compress(raw[:50_000]) + gzip.compress(raw[50_000:]),  # as `cat a.gz b.gz`
        "zst": pa.compress(raw, "zstd", asbytes=True),
        "bom": b"\xef\xbb\xbf" + raw,
        "crlf": raw.replace(b"\n", b"\r\n"),
    }
    Path(f"train.{suffix}").write_bytes(made[suffix])
    assert convert(f"train.{suffix}", "out")[0] == 0
    assert records_of("out") == pandas_of("train.txt")


def test_a_schema_file_names_columns_in_another_order(convert):
    frame = pd.read_csv("train.txt", sep="\t", names=NAMES, dtype=str, keep_default_na=False)
    order = [*CATEGORIES, "label", *INTEGERS]
    frame["extra"] = "left, out"
    frame[["extra", *order]].to_csv("other.txt", sep="|", index=False)
    Path("schema.yaml").write_text(
        f"columns: ['-', {', '.join(order)}]\ndelimiter: pipe\nheader: true\n"
    )
    assert convert("other.txt", "out", "--schema=schema.yaml")[0] == 0
    assert records_of("out") == pandas_of("train.txt")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("columns: [label, I1]", "columns: I2, I3"),
        (f"columns: [{', '.join(NAMES)}, I1]", "'I1' is named twice"),
        (f"columns: [{', '.join(NAMES)}, id]", "'id' is none of label, I1 to I13, C1 to C26"),
        (f"columns: [{', '.join(NAMES)}]\nseparator: tab", "unknown setting 'separator'"),
        ("columns: [", "is not YAML"),
    ],
)
def test_a_wrong_schema_file_is_refused(convert, text, said):
    Path("schema.yaml").write_text(text)
    code, _, err = convert("train.txt", "out", "--schema=schema.yaml")
    assert code == 1
    assert "schema.yaml: " in err
    assert said in err


def test_a_header_in_another_order_than_the_schema_is_refused(convert):
    Path("schema.yaml").write_text(f"columns: [{', '.join(NAMES)}]\nheader: true\n")
    header = ["label", "I2", "I1", *NAMES[3:]]
    Path("in.txt").write_text("\t".join(header) + f"\n{GOOD}\n")
    code, _, err = convert("in.txt", "out", "--schema=schema.yaml")
    assert code == 1
    assert "field 2 of its header is I2, in the schema it is I1" in err


BAD = {
    GOOD + "\t1": "expected 40 fields, found 41",
    GOOD.rpartition("\t")[0]: "expected 40 fields, found 39",
    "": "expected 40 fields, found 1",
    with_field("label", ""): "column label: expected 0 or 1, found nothing",
    with_field("label", "yes"): "column label: expected 0 or 1, found 'yes'",
    with_field("label", "2"): "column label: expected 0 or 1, found '2'",
    with_field("I3", "1.5"): "column I3: expected a whole number",
    with_field("I3", "0x1F"): "found '0x1F'",
    with_field("I4", "--1"): "found '--1'",
    with_field("I13", "9" * 30): "found '999999",
    with_field("C1", "abcdefg0"): "column C1: expected 8 hexadecimal digits, or nothing",
    with_field("C26", "abc"): "found 'abc'",
    with_field("C2", "ab\rcdefg"): "a carriage return inside the line",
    with_field("C2", "é\x00"): "found '",
}


@pytest.mark.parametrize("line", BAD, ids=list(BAD.values()))
def test_a_line_that_is_no_record_stops_with_its_number_and_reason(convert, line):
    lines = [GOOD] * 500
    lines[321] = line
    Path("in.txt").write_text("\n".join(lines))
    code, _, err = convert("in.txt", "out")
    assert code == 1
    assert "in.txt: line 322: " in err
    expected = "expected 0 or 1, found nothing" if line == "" else BAD[line]
    assert expected in err or BAD[line] in err
    assert sorted(os.listdir()) == ["in.txt", "train.txt"]


def test_lines_that_are_no_records_are_left_out_and_each_is_told(convert):
    lines, told = [], []
    for number, (line, reason) in enumerate(BAD.items()):
        lines += [with_field("I1", str(number)), line]
        told.append((2 * number + 2, reason))
    Path("in.txt").write_text("\n".join([*lines, GOOD]) + "\n")

    code, out, err = convert("in.txt", "out", "--on_error=skip", "--format=parquet")

    assert code == 0
    assert f"{len(BAD)} lines left out" in out
    assert [line.split(": ")[2] for line in err.splitlines()] == [f"line {n}" for n, _ in told]
    assert [row["I1"] for row in records_of("out")] == [*range(len(BAD)), 0]


def test_bad_lines_are_told_by_their_numbers_in_every_block(convert):
    lines = Path("train.txt").read_text().splitlines()
    bad = list(range(100, NUM_LINES, 611))
    for number in bad:
        lines[number - 1] = f"{number}"
    Path("in.txt").write_text("\n".join(lines))
    code, _, err = convert("in.txt", "out", "--on_error=skip")
    assert code == 0
    assert [line.split("line ")[1].split(":")[0] for line in err.splitlines()] == list(
        map(str, bad)
    )
    kept = [record for n, record in enumerate(pandas_of("train.txt"), 1) if n not in bad]
    assert records_of("out") == kept


def test_more_bad_lines_than_the_limit_end_the_conversion(convert):
    Path("in.txt").write_text("\n".join([GOOD, "1", "2", "3", GOOD]))
    code, _, err = convert("in.txt", "out", "--on_error=skip", "--error_limit=2")
    assert code == 1
    assert "line 4: expected 40 fields, found 1; that is one more than the 2 lines" in err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", b"", "empty.txt: is empty"),
        ("cut.gz", gzip.compress((GOOD + "\n").encode() * 999)[:-20], "cut.gz: cannot be read: Tr"),
        ("bytes.txt", bytes(range(256)) * 2000, "line 1: expected 40 fields"),
        ("blob.txt", b"x" * (17 << 20), "without the end of a line"),
        ("none.txt", None, "none.txt: no such file"),
    ],
)
def test_files_that_are_none_are_told_and_nothing_is_written(convert, name, content, said):
    if content is not None:
        Path(name).write_bytes(content)
    code, _, err = convert(name, "out", "--on_error=skip")
    assert code == 1
    assert said in err
    assert [file for file in os.listdir() if "out" in file] == []


def test_a_folder_without_data_and_one_that_exists_are_told(convert):
    Path("folder").mkdir()
    assert "this folder has no data files" in convert("folder", "out")[2]
    Path("out").mkdir()
    Path("out/mine").touch()
    code, _, err = convert("train.txt", "out")
    assert (code, "exists and is not an empty folder" in err) == (1, True)
    assert os.listdir("out") == ["mine"]


def test_a_file_that_shrinks_while_it_is_read_is_told(convert, monkeypatch):
    from elasticdl.packages.data_tools.lines import source

    real = source._decompressed
    Path("in.txt").write_bytes(Path("train.txt").read_bytes())

    def shrink(file):
        os.truncate("in.txt", 100_000)
        return real(file)

    monkeypatch.setattr(source, "_decompressed", shrink)
    code, _, err = convert("in.txt", "out", "--on_error=skip")
    assert code == 1
    assert "in.txt: ended at byte 100,000 of" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--validation=20",), "--validation=20: expected a part of the rows"),
        (("--validation=1/0",), "--validation=1/0: expected a part"),
        (("--seed=1",), "give --validation"),
        (("--error_limit=5",), "--error_limit goes only with --on_error=skip"),
        (("--records_per_row_group=5",), "goes only with --format=parquet"),
        (("--as=example",), "--as does not go with --from"),
        (("--format=tfrecord", "--codec=zstd"), "TFRecord files are not compressed"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(convert, words, said):
    code, _, err = convert("train.txt", "out", *words)
    assert code != 0
    assert said in err


def test_settings_of_from_are_refused_without_it(capsys):
    assert run_command(["data", "convert", "train.txt", "out.rio", "--validation=1/20"]) == 1
    assert "--validation goes only with --from" in capsys.readouterr().err


def test_no_record_for_validation_is_an_error(convert):
    Path("in.txt").write_text(GOOD)
    code, _, err = convert("in.txt", "out", "--validation=1/20")
    assert (code, "there are no records for val" in err) == (1, True)


@pytest.mark.parametrize("format_name", ["recordio", "parquet"])
def test_files_that_cannot_be_written_are_told_and_none_is_left(format_name):
    command = f"elasticdl.cli.main data convert train.txt out --from=criteo --format={format_name}"
    # -B: a module that it compiled would be cut off too, for whoever imports it later.
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 20; exec {sys.executable} -B -m {command} --codec=none"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    assert done.stderr.startswith("error: ")
    assert sorted(os.listdir()) == ["train.txt"]


def test_an_interrupted_conversion_leaves_nothing():
    """The source is a pipe to which nobody writes: the conversion waits when Ctrl-C comes."""
    os.mkfifo("pipe.txt")
    words = ["data", "convert", "pipe.txt", "out", "--from=criteo"]
    with subprocess.Popen(
        [sys.executable, "-m", "elasticdl.cli.main", *words], stderr=subprocess.PIPE
    ) as process:
        try:
            with open("pipe.txt", "w"):  # returns when the other end is opened
                assert [name for name in os.listdir() if name.startswith(".out.")]
                process.send_signal(signal.SIGINT)
                assert process.wait(100) == 130
            assert b"interrupted" in process.stderr.read()
        finally:
            process.kill()
    assert sorted(os.listdir()) == ["pipe.txt", "train.txt"]


def test_row_groups_are_of_one_size(convert):
    words = ("--records_per_file=2000", "--records_per_row_group=512")
    convert("train.txt", "out", "--format=parquet", *words)
    for path in sorted(Path("out").iterdir()):
        meta = pq.ParquetFile(path).metadata
        sizes = [meta.row_group(n).num_rows for n in range(meta.num_row_groups)]
        assert sizes == ([512, 512, 512, 464] if meta.num_rows == 2000 else [512, 488])


def test_the_split_is_even_over_seeds():
    from fractions import Fraction

    from elasticdl.packages.data_tools.lines.split import Split

    rows = np.arange(200_000)
    for seed in (0, 1, -3, 2**40):
        chosen = Split(Fraction(1, 20), seed).is_validation(rows)
        assert abs(chosen.mean() - 0.05) < 0.002
        pairs = np.convolve(chosen, [1, 1], "valid") == 2
        assert abs(pairs.mean() - 0.0025) < 0.0005  # neighbours are independent


def test_any_character_may_be_the_delimiter(convert):
    Path("in.txt").write_text(GOOD.replace("\t", "-") + "\n")
    Path("schema.yaml").write_text(f"columns: [{', '.join(NAMES)}]\ndelimiter: '-'\n")
    assert convert("in.txt", "out", "--schema=schema.yaml")[0] == 0
    Path("tabs.txt").write_text(GOOD)
    assert records_of("out") == pandas_of("tabs.txt")
