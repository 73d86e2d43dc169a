import pytest

from elasticdl.data.open import open_reader
from elasticdl.data.paths import expand_paths, folders_left_out, read_twice
from elasticdl.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.csv", "a.csv", "c.txt", ".hidden", "_SUCCESS", "a.csv.idx", "x.tmp"):
        (tmp_path / name).write_text("1\n")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "d.csv").write_text("1\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_folder_gives_its_data_files_sorted(folder):
    assert expand_paths(str(folder)) == [str(folder / n) for n in ("a.csv", "b.csv", "c.txt")]


def test_globs_and_lists_are_expanded_in_order_without_repeats(folder):
    assert expand_paths("*.csv") == ["a.csv", "b.csv"]
    assert expand_paths("b.csv, *.csv") == ["b.csv", "a.csv"]
    assert expand_paths(f"./b.csv,deep/../b.csv,{folder}/*.csv") == ["./b.csv", f"{folder}/a.csv"]
    assert expand_paths("**/*.csv") == ["a.csv", "b.csv", "deep/er/d.csv"]
    assert expand_paths("a.csv.idx") == ["a.csv.idx"]  # asked for by name
    (folder / "deep" / "latest").symlink_to("er")
    (folder / "deep" / "er" / "self").symlink_to(".")
    (folder / "same.csv").symlink_to("a.csv")
    assert expand_paths("deep/**/*.csv") == ["deep/er/d.csv"]
    assert expand_paths("*.csv") == ["a.csv", "b.csv", "same.csv"]


def test_a_url_of_this_machine_is_a_path(folder):
    found = [str(folder / name) for name in ("a.csv", "b.csv", "c.txt")]
    assert expand_paths(f"file://{folder}") == found
    assert expand_paths(f"file://{folder}/*.csv,local://{folder}/c.txt") == found


def test_a_glob_passes_over_folders_of_what_is_no_data(folder):
    for name in ("_temporary/0", "deep/_delta_log", "deep/.cache"):
        (folder / name).mkdir(parents=True)
        (folder / name / "e.csv").write_text("1\n")
    (folder / "_old").mkdir()
    (folder / "_old" / "f.csv").write_text("1\n")
    assert expand_paths("**/*.csv") == ["a.csv", "b.csv", "deep/er/d.csv"]
    assert expand_paths(f"{folder}/*/*/*.csv") == [str(folder / "deep/er/d.csv")]
    assert expand_paths("_temporary/**/*.csv") == ["_temporary/0/e.csv"]
    assert expand_paths("_*/*.csv") == ["_old/f.csv"]


def test_a_file_whose_name_looks_like_a_glob_or_list_is_itself(folder):
    (folder / "odd,[1].csv").write_text("1\n")
    assert expand_paths("odd,[1].csv") == ["odd,[1].csv"]


def test_folders_with_files_that_are_not_read_are_found(folder):
    assert folders_left_out(str(folder)) == [str(folder / "deep")]
    assert folders_left_out("*.csv") == folders_left_out("deep/er") == []


def test_a_file_beside_its_compressed_form_is_found():
    assert read_twice(["a.csv", "a.csv.gz", "b.csv.zst", "c.csv"]) == ["a.csv.gz"]


def test_a_folder_of_a_table_may_have_no_files(tmp_path):
    for name in ("day=1/a.parquet", "day=2/_SUCCESS", "day=3/hour=0/_SUCCESS", "day=5/b.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    (tmp_path / "day=4").mkdir()
    found = [str(tmp_path / "day=1/a.parquet"), str(tmp_path / "day=5/b.parquet")]
    assert expand_paths(str(tmp_path)) == found
    assert folders_left_out(str(tmp_path)) == []
    with pytest.raises(DataError, match="day=4: this folder has no data files"):
        expand_paths(str(tmp_path / "day=4"))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("none.csv", r"none\.csv: no such file or folder \(working folder: "),
        ("*.rio", r"\*\.rio: no file matches"),
        ("e*", r"e\*: only folders match; give e\*/\* for the files in them"),
        ("empty", "empty: this folder has no data files"),
        ("deep", r"deep: this folder has folders but no data files; give deep/\*\*/\*"),
        ("a.csv,none.csv", r"none\.csv: no such file"),
        (" , ", "expected files, a folder or a glob, found"),
    ],
)
def test_what_names_nothing_is_an_error(folder, expression, message):
    with pytest.raises(DataError, match=message):
        expand_paths(expression)


def test_files_of_several_formats_are_refused(folder):
    with pytest.raises(DataError, match=r"c\.txt is text, but .*a\.csv is csv"):
        open_reader(str(folder))
