import gzip
import os
import signal
from functools import partial
from pathlib import Path
from threading import Timer

import pytest

from elasticdl._core import RecordReader, RecordWriter, TFRecordReader, TFRecordWriter
from elasticdl.cli.main import run_command
from elasticdl.data.example import decode_example

CSV = "id,delay,carrier\n1,0.5,UA\n2,NA,AA\n3,-2,NA\n"


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("ELASTICDL_DATA_CACHE", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    Path("in.csv").write_text(CSV)
    with RecordWriter("in.rio", codec="deflate", block_bytes=500) as writer:
        writer.write_many([f"record {number}".encode() for number in range(250)])
    return tmp_path


@pytest.fixture
def run(capsys):
    def run(*words):
        code = run_command(["data", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def files():
    return sorted(os.listdir())


def test_an_unknown_flag_of_a_command_of_the_package_is_told_with_its_neighbour(run):
    code, _, err = run("convert", "--codex=x")
    assert code == 2
    assert "unknown flag --codex; did you mean --codec?" in err


@pytest.mark.parametrize(
    "words",
    [
        ["data", "convert", "in.rio", "s3://bucket/out.rio"],
        ["data", "analyze", "in.csv", "--output=s3://bucket/s.json"],
        ["export", "--checkpoint_dir_for_init=c", "--export_tables=s3://bucket/t"],
        ["report", "job", "--output=s3://bucket"],
        ["simulate", "--workers=2", "--ps=1", "--figure=s3://bucket/f.svg"],
    ],
    ids=lambda words: words[0] if words[0] != "data" else words[1],
)
def test_a_url_is_no_place_to_write_to(words, capsys):
    assert run_command(words) == 2
    assert "expected a path of this machine, found the URL s3://bucket" in capsys.readouterr().err
    assert files() == ["in.csv", "in.rio"]


def test_rows_of_csv_become_examples_with_types_found_by_reading_them(run):
    code, out, _ = run(
        "convert", "in.csv", "out.rio", "--as", "example", "--data_reader_params=skip_header=true"
    )
    assert (code, "3 records in 1 recordio file" in out) == (0, True)
    assert [decode_example(record) for record in RecordReader("out.rio").read(0, 3)] == [
        {"carrier": [b"UA"], "delay": [0.5], "id": [1]},
        {"carrier": [b"AA"], "id": [2]},
        {"carrier": [b"NA"], "delay": [-2.0], "id": [3]},
    ]


def test_types_may_be_given(run):
    code, _, _ = run(
        "convert",
        "in.csv",
        "out.tfrecord",
        "--as=example",
        "--data_reader_params=skip_header=true",
        "--types=id=bytes;delay=float;carrier=bytes",
    )
    assert code == 0
    assert decode_example(TFRecordReader("out.tfrecord").read(0, 1)[0])["id"] == [b"1"]


def test_rows_of_parquet_become_examples(run):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": [1, 2], "t": ["a", "b"]}), "in.parquet")
    assert "needs --from" in run("convert", "in.parquet", "out.pq", "--as", "example")[2]
    assert run("convert", "in.parquet", "out.rio", "--as", "example")[0] == 0
    assert decode_example(RecordReader("out.rio").read(1, 2)[0]) == {"t": [b"b"], "x": [2]}


def test_a_number_that_is_null_has_no_feature_and_the_others_stay_what_they_are(run):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "id": [123456789, None],
        "is": [None, True],
        "x": [float("nan"), None],
    }  # both are missing
    pq.write_table(pa.table(columns), "in.parquet")
    assert run("convert", "in.parquet", "out.rio", "--as", "example")[0] == 0
    first, second = map(decode_example, RecordReader("out.rio").read(0, 2))
    assert (first, second) == ({"id": [123456789]}, {"is": [1]})


def test_ids_that_a_table_has_as_floats_are_refused_or_written_as_whole_numbers(run):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"id": [1_234_567_891.0, None], "x": [0.1, 23_456_789.5]}
    parquet.write_table(pa.table(table), "in.parquet")
    convert = ("convert", "in.parquet", "out.rio", "--as=example")
    code, _, error = run(*convert)
    assert code == 1
    assert "column 'id' has 1234567891.0, which a float feature turns into 1234567936.0" in error
    assert "--types=id=int64" in error
    assert run(*convert, "--types=id=int64;x=float")[0] == 0
    first, second = [decode_example(record) for record in RecordReader("out.rio").read(0, 2)]
    assert first["id"] == [1_234_567_891]
    assert list(second) == ["x"]
    code, _, error = run(*convert, "--types=x=int64", "--overwrite")
    assert code == 1
    assert "column 'x' has 0.1: expected whole numbers for int64" in error


def test_the_least_number_of_int64_is_one(run):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": [-(2**63), 2**63 - 1]}), "in.parquet")
    assert run("convert", "in.parquet", "out.rio", "--as=example", "--types=id=int64")[0] == 0
    found = [decode_example(record) for record in RecordReader("out.rio").read(0, 2)]
    assert found == [{"id": [-(2**63)]}, {"id": [2**63 - 1]}]


def test_whole_numbers_that_int64_does_not_hold_stay_as_they_are(run):
    Path("in.csv").write_text("id\n1\n99999999999999999999\n")
    words = ("--as=example", "--data_reader_params=skip_header=true")
    assert run("convert", "in.csv", "out.rio", *words)[0] == 0
    assert [decode_example(record) for record in RecordReader("out.rio").read(0, 2)] == [
        {"id": [b"1"]},
        {"id": [b"99999999999999999999"]},
    ]


@pytest.mark.parametrize(
    ("header", "said"), [("a,a", "are both called 'a'"), ("a,", "has no name")]
)
def test_columns_that_would_hide_each_other_are_refused(run, header, said):
    Path("in.csv").write_text(f"{header}\n1,2\n")
    for words in (["convert", "in.csv", "out.rio", "--as=example"], ["analyze", "in.csv"]):
        extra = ["--output=s.json"] if words[0] == "analyze" else []
        code, _, err = run(*words, *extra, "--data_reader_params=skip_header=true")
        assert (code, said in err, "columns=a,b,c" in err) == (1, True, True)


@pytest.mark.parametrize("options", [["out.rio"], ["parts", "--records_per_file=2"]])
def test_a_conversion_that_is_told_to_end_leaves_nothing(run, options, monkeypatch):
    def told_to_end(records, source):
        os.kill(os.getpid(), signal.SIGTERM)
        return records.values

    monkeypatch.setattr("elasticdl.packages.data_tools.convert.raw", told_to_end)
    before, handler = files(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        run("convert", "in.rio", *options)
    assert ended.value.code == 128 + signal.SIGTERM
    assert files() == before
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The folder that temporary copies are made in."""
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def killed(database, *_, by=signal.SIGTERM):
    os.kill(os.getpid(), by)
    raise AssertionError("the signal has ended the analysis")


def killed_in_a_query(database, *_, by=signal.SIGTERM):
    Timer(0.5, os.kill, (os.getpid(), by)).start()
    database.ask("SELECT count(*) FROM range(1000000000) a WHERE hash(a.range) = 0").fetchone()
    raise AssertionError("the signal has ended the query")


@pytest.mark.parametrize("analyze", [killed, killed_in_a_query])
def test_an_analysis_that_is_told_to_end_leaves_no_copy_of_the_data(
    run, monkeypatch, copies, analyze
):
    pytest.importorskip("duckdb", reason="this needs elasticdl-train[statistics]")
    monkeypatch.setattr("elasticdl.packages.data_tools.analyze.analyze", analyze)
    Path("in.csv").write_text("a,b\n1,2\n")
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            run("analyze", "in.csv", "--output=s.json", "--data_reader_params=skip_header=true")
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == 128 + signal.SIGTERM
    assert not list(copies.iterdir())


@pytest.mark.parametrize("analyze", [killed, killed_in_a_query])
def test_an_analysis_that_is_interrupted_ends_as_other_commands_do(
    run, monkeypatch, copies, analyze
):
    pytest.importorskip("duckdb", reason="this needs elasticdl-train[statistics]")
    by_key = partial(analyze, by=signal.SIGINT)
    monkeypatch.setattr("elasticdl.packages.data_tools.analyze.analyze", by_key)
    Path("in.csv").write_text("a,b\n1,2\n")
    words = ["analyze", "in.csv", "--output=s.json", "--data_reader_params=skip_header=true"]
    assert run(*words)[0] == 128 + signal.SIGINT
    assert not list(copies.iterdir())


@pytest.mark.parametrize("encoding", ["raw", "example"])
@pytest.mark.parametrize("content", ["", "a,b\n"])
def test_a_conversion_of_no_records_writes_no_file(run, content, encoding):
    Path("in.csv").write_text(content)
    before = files()
    words = ["--data_reader_params=skip_header=true", f"--as={encoding}"]
    code, _, err = run("convert", "in.csv", "out.rio", *words)
    assert (code, "out.rio: not written, because there are no records" in err) == (1, True)
    assert files() == before


def test_records_go_to_files_of_a_size_and_back(run):
    code, _, _ = run("convert", "in.rio", "parts", "--format=tfrecord", "--records_per_file=100")
    assert code == 0
    assert sorted(os.listdir("parts")) == [f"part-0000{n}.tfrecord" for n in range(3)]
    code, out, _ = run("count", "parts")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == ["records", "100", "100", "50", "250"]
    assert run("convert", "parts", "back.recordio", "--codec", "zstd")[0] == 0
    assert RecordReader("back.recordio").read(0, 250) == RecordReader("in.rio").read(0, 250)
    assert {block.codec for block in RecordReader("back.recordio").blocks()} == {"zstd"}


def test_a_failed_conversion_leaves_nothing_and_names_the_record(run):
    Path("in.csv").write_text(CSV + "4,1\n")
    before = files()
    for options in (["out.rio"], ["parts", "--records_per_file", "2"]):
        code, _, err = run(
            "convert",
            "in.csv",
            *options,
            "--as=example",
            "--data_reader_params=skip_header=true",
            "--types=id=int64;delay=float;carrier=bytes",
        )
        assert code == 1
        assert "in.csv: line 5 (record 3): has 2 fields, expected 3 (id, delay, carrier)" in err
        assert files() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.csv", "out.rio"], "none.csv: no such file or folder"),
        (["in.rio", "in.csv"], "in.csv: exists; give --overwrite"),
        (["in.rio", "."], ".: is a folder; name a file in it"),
        (["in.rio", "no/out.rio"], "no: no such folder"),
        (["in.rio", "in.csv", "--records_per_file=9"], "in.csv: exists and is not an empty folder"),
        (["in.rio", "out.tfrecord", "--codec=zstd"], "TFRecord files are not compressed"),
        (["in.rio", "out.rio", "--as=example"], "--as example is for records of columns"),
        (["in.csv", "out.rio", "--as=example"], "--as example needs names for the columns"),
        (["in.csv", "out.rio", "--types=id=int64"], "--types is for --as example"),
        (
            ["in.csv", "out.rio", "--as=example", "--data_reader_params=columns=a,b,c",
             "--types=d=int64"],
            "--types: d=int64: expected a column (a, b, c)",
        ),
        (
            ["in.csv", "out.rio", "--as=example", "--data_reader_params=skip_header=true",
             "--types=carrier=float"],
            "in.csv: line 2 (record 0), column 'carrier': expected a number",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_said_and_changes_nothing(run, words, message):
    before = {name: Path(name).read_bytes() for name in files()}
    code, _, err = run("convert", *words)
    assert code == 1
    assert message in err
    assert {name: Path(name).read_bytes() for name in files()} == before


def test_overwrite_replaces_a_file(run):
    assert run("convert", "in.csv", "in.rio", "--overwrite")[0] == 0
    assert RecordReader("in.rio").num_records == 4


def test_inspect_shows_blocks_codecs_index_and_records(run):
    code, out, _ = run("inspect", "in.rio", "--verify", "--records=2")
    assert code == 0
    facts = dict(line.strip().split("  ", 1) for line in out.splitlines()[1:])
    facts = {name: value.strip() for name, value in facts.items()}
    assert facts["format"] == "recordio"
    assert facts["records"] == "250"
    assert facts["blocks by codec"].startswith("deflate: ")
    assert float(facts["ratio"]) > 1
    assert facts["index"] == "at the end of the file"
    assert facts["checksums"] == "all right"
    assert facts["record 1"] == "record 1"
    assert "record 2" not in facts


def test_inspect_shows_every_format(run):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": [7]}), "in.parquet")
    with TFRecordWriter("in.tfrecord") as writer:
        writer.write(bytes(range(200)))
    code, out, _ = run("inspect", "in.parquet,in.tfrecord,in.csv", "--verify")
    assert code == 0
    assert "x int64" in out
    assert "x=7" in out
    assert "in.tfrecord.idx" in out
    assert "200 bytes: 00 01 02" in out
    assert "2,NA,AA" in out.split("record 2")[-1]
    Path("in.csv").rename("in.data")
    code, out, _ = run("inspect", "in.data", "--data_reader_params=format=csv")
    assert (code, "2,NA,AA" in out) == (0, True)
    Path("in.tfrecord.gz").write_bytes(gzip.compress(Path("in.tfrecord").read_bytes()))
    assert "-in.tfrecord.idx" in run("inspect", "in.tfrecord.gz")[1]  # beside the copy


def test_inspect_shows_text_as_it_is_and_only_the_start_of_what_is_long(run):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    Path("in.tsv").write_text("1\tOslo\u3000S\n\n")
    assert "record 0    1\\tOslo\u3000S" in run("inspect", "in.tsv")[1]
    columns = {"b": [b"\0" * 5000], "t": ["\x1b[31m"], "l": [list(range(50))], "long": ["x" * 900]}
    pq.write_table(pa.table(columns), "in.parquet")
    _, out, _ = run("inspect", "in.parquet")
    assert "b=5,000 bytes" in out
    assert "l=[0, 1, 2, 3, 4, 5, ... 50 in all]" in out
    assert (r"t='\x1b[31m'" in out, out.count("x" * 50)) == (True, 4)


def test_a_torn_tail_is_shown_and_repaired_only_with_yes(run):
    last = RecordReader("in.rio").blocks()[-1]
    os.truncate("in.rio", last.offset + 40)
    torn = Path("in.rio").read_bytes()

    code, out, _ = run("inspect", "in.rio")
    assert code == 1
    assert f"torn tail at offset {last.offset:,}" in out
    assert f"{last.first_record} whole records" in out
    assert "record 0" in out
    assert run("count", "in.rio")[0] == 1

    code, out, _ = run("repair", "in.rio")
    assert code == 1
    assert f"{last.first_record} whole records kept, 40 bytes to cut off" in out
    assert Path("in.rio").read_bytes() == torn

    code, out, _ = run("repair", "in.rio", "--yes")
    assert (code, "40 bytes cut off" in out) == (0, True)
    assert RecordReader("in.rio").num_records == last.first_record
    code, out, _ = run("repair", "in.rio", "--yes")
    assert (code, "nothing to repair" in out) == (0, True)


def test_a_torn_tfrecord_is_repaired_too_but_no_other_format(run):
    run("convert", "in.rio", "out.tfrecord")
    os.truncate("out.tfrecord", Path("out.tfrecord").stat().st_size - 1)
    assert run("repair", "out.tfrecord", "--yes")[0] == 0
    assert run("count", "out.tfrecord")[1].split()[-1] == "249"
    code, _, err = run("repair", "in.csv", "--yes")
    assert (code, "a csv file cannot be repaired" in err) == (1, True)


def test_damage_in_the_middle_is_found_but_not_repaired(run):
    block = RecordReader("in.rio").blocks()[1]
    data = bytearray(Path("in.rio").read_bytes())
    data[block.offset + 40] ^= 1
    Path("in.rio").write_bytes(data)
    code, out, _ = run("inspect", "in.rio", "--verify")
    assert (code, f"damaged at offset {block.offset}" in out) == (1, True)
    code, _, err = run("repair", "in.rio", "--yes")
    assert (code, "are lost, the next whole block is at offset" in err) == (1, True)
    assert Path("in.rio").read_bytes() == data


def test_damage_in_the_last_block_of_a_file_that_was_closed_is_no_torn_tail(run):
    block = RecordReader("in.rio").blocks()[-1]
    data = bytearray(Path("in.rio").read_bytes())
    data[block.offset + 40] ^= 1
    Path("in.rio").write_bytes(data)
    for words in ([], ["--yes"]):
        code, _, err = run("repair", "in.rio", *words)
        assert (code, f"in.rio: damaged at offset {block.offset}" in err) == (1, True)
    assert Path("in.rio").read_bytes() == data
