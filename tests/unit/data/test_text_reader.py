import pytest

from elasticdl.data.open import open_reader
from elasticdl.data.params import Params
from elasticdl.data.text import TextReader
from elasticdl.errors import ConfigError, DataError


def write(tmp_path, text, name="file.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def lines(path, params=""):
    reader = open_reader(path, params)
    return [value for s in reader.shards() for r in reader.read(s) for value in r.values]


def test_the_header_is_a_record_unless_skipped(tmp_path):
    path = write(tmp_path, "a,b\n1,2\n")
    assert lines(path) == [b"a,b", b"1,2"]
    assert lines(path, "skip_header=true") == [b"1,2"]


def test_a_header_names_the_columns(tmp_path):
    path = write(tmp_path, '\ufeff"a, first",b\r\n1,2\r\n')
    assert open_reader(path, "skip_header=true").metadata.column_names == ("a, first", "b")
    assert open_reader(path).metadata.column_names == ()
    assert open_reader(path, "columns=x,y").metadata.column_names == ("x", "y")


def test_a_tsv_header_is_cut_at_tabs(tmp_path):
    path = write(tmp_path, "a\tb\n1\t2\n", "file.tsv")
    assert open_reader(path, "skip_header=true").metadata.column_names == ("a", "b")
    path = write(tmp_path, "a;b\n1;2\n")
    reader = open_reader(path, "skip_header=true;delimiter=semicolon")
    assert reader.metadata.column_names == ("a", "b")


def test_blank_lines_are_no_records_of_csv_but_of_text(tmp_path):
    text = "1\n\n2\n\n"
    assert lines(write(tmp_path, text)) == [b"1", b"2"]
    assert lines(write(tmp_path, text, "file.txt")) == [b"1", b"", b"2", b""]


def test_quoted_line_feeds_are_kept_when_asked_for(tmp_path):
    path = write(tmp_path, '1,"a\nb"\n2,c\n')
    assert lines(path) == [b'1,"a', b'b"', b"2,c"]
    assert lines(path, "quoted_newlines=true") == [b'1,"a\nb"', b"2,c"]


def test_a_quote_that_never_closes_is_named_with_its_offset(tmp_path):
    path = write(tmp_path, '1,a\n2,"b\n3,c\n')
    with pytest.raises(DataError, match=r"file\.csv: damaged at offset 4: a quote is opened"):
        lines(path, "quoted_newlines=true")


def test_a_tsv_has_tabs_however_its_name_is_written(tmp_path):
    path = write(tmp_path, b"a\tb\n1\t2\n", "DATA.TSV")
    assert open_reader(path, "skip_header=true").metadata.column_names == ("a", "b")
    signed = ["https://host/x.tsv?signature=abc", "https://host/y.tsv.gz?signature=def"]
    assert TextReader.from_params(signed, Params(""), is_csv=True).delimiter == "\t"


def test_a_name_in_the_header_may_have_a_quoted_line_feed(tmp_path):
    path = write(tmp_path, b'"a\nx",b\n1,2\n')
    reader = open_reader(path, "skip_header=true;quoted_newlines=true")
    reader.check_start()
    assert reader.metadata.column_names == ("a\nx", "b")


def test_lines_that_end_with_cr_alone_are_told(tmp_path):
    path = write(tmp_path, b"a,b\r1,2\r")
    with pytest.raises(DataError, match="lines end with CR alone, expected LF or CR LF"):
        open_reader(path, "skip_header=true").shards()


def test_files_with_different_headers_are_refused(tmp_path):
    write(tmp_path, "", "an empty file.csv")
    write(tmp_path, "a,b\n1,2\n", "one.csv")
    assert open_reader(str(tmp_path), "skip_header=true").metadata.column_names == ("a", "b")
    write(tmp_path, "b,a\n1,2\n", "two.csv")
    with pytest.raises(DataError, match=r"two\.csv: its header is b,a, that of .*one\.csv is a,b"):
        open_reader(str(tmp_path), "skip_header=true").shards()


def test_names_that_are_given_may_not_be_those_of_the_header_in_another_order(tmp_path):
    path = write(tmp_path, "b,a\n1,2\n")
    with pytest.raises(DataError, match=r"header is b,a, and .* columns=a,b: the same columns in"):
        open_reader(path, "skip_header=true;columns=a,b").shards()
    assert open_reader(path, "skip_header=true;columns=p,q").metadata.column_names == ("p", "q")
    twice = write(tmp_path, "a,a\n1,2\n", "twice.csv")  # what they are given for
    assert len(open_reader(twice, "skip_header=true;columns=p,q").shards()) == 1


def test_an_unknown_setting_names_the_nearest(tmp_path):
    path = write(tmp_path, "a\n")
    with pytest.raises(ConfigError, match=r"no setting 'skip_heder'; did you mean skip_header\?"):
        open_reader(path, "skip_heder=true")
    with pytest.raises(ConfigError, match="skip_header=maybe: expected true or false"):
        open_reader(path, "skip_header=maybe")
    with pytest.raises(ConfigError, match="delimiter=ab: expected one character"):
        open_reader(path, "delimiter=ab")
    with pytest.raises(ConfigError, match="expected name=value, found 'skip_header'"):
        open_reader(path, "skip_header")


def test_a_large_file_gets_an_index_beside_it(tmp_path):
    path = write(tmp_path, b"0123456789abcde\n" * (1 << 20))
    assert open_reader(path).shards()[0].num_records == 1 << 20
    assert (tmp_path / "file.csv.idx").exists()
    reader = open_reader(str(tmp_path))  # the index is not taken for data
    assert [shard.num_records for shard in reader.shards()] == [1 << 20]
