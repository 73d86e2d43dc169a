import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]

FLAGS = ("--minibatch_size=10", "--num_epochs=15")


def test_learns_from_csv(commands, strategy, load_zoo):
    iris = commands("iris.model.forward")
    load_zoo("iris.prepare").write_csv(iris.folder)

    summary = iris.run(
        "train",
        "--training_data=train.csv",
        "--validation_data=test.csv",
        "--data_reader_params=skip_header=true",
        *FLAGS,
        *strategy,
    )

    assert summary["metrics"]["accuracy"] > 0.85


def test_learns_from_a_table_of_a_database(commands, load_zoo):
    pytest.importorskip("sqlalchemy")
    iris = commands("iris.model.forward")
    load_zoo("iris.prepare").write_sqlite(iris.folder / "iris.db")

    summary = iris.run(
        "train",
        "--training_data=sqlite:///iris.db",
        "--data_reader_params=table=train",
        "--output=export",
        *FLAGS,
    )

    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [120] * 15
    tested = iris.run(
        "evaluate",
        "--saved_model=export",
        "--validation_data=sqlite:///iris.db",
        "--data_reader_params=table=test",
    )
    assert tested["metrics"]["accuracy"] > 0.85
