import numpy as np
import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


def test_learns_what_of_a_history_speaks_for_an_item(commands, strategy, load_zoo):
    din = commands("din.model.forward")
    data, text_tables = load_zoo("din.make_data"), load_zoo("text_tables")
    text_tables.write_csv(din.folder / "train.csv", data.make(12_000, seed=1))
    text_tables.write_csv(din.folder / "test.csv", data.make(2000, seed=2))

    summary = din.run(
        "train",
        "--training_data=train.csv",
        "--validation_data=test.csv",
        "--data_reader_params=skip_header=true",
        "--minibatch_size=64",
        "--num_epochs=2",
        "--output=export",
        *strategy,
    )

    assert summary["metrics"]["auc"] > 0.7
    shown = {"item": np.array([[1], [1], [1]]), "category": np.array([[1], [1], [1]])}
    fits, other, none = np.array(
        din.score(
            {
                **shown,
                "items": np.array([["2|3|4|5"], ["41|42|43|44"], [""]]),
                "categories": np.array([["1|1|1|1"], ["3|3|3|3"], [""]]),
            }
        )
    )[:, 0]
    assert fits > max(other, none) + 0.5


def test_a_long_history_is_cut_to_its_newest_items(load_zoo):
    import tensorflow as tf

    module = load_zoo("din.model")
    words = tf.constant([["|".join(str(k) for k in range(1, 61))], ["7"]])

    ids = module._ids(words)

    assert ids.shape == (2, module.MAX_HISTORY)  # the longest history is longer
    assert ids[0].numpy().tolist() == list(range(11, 61))
    assert ids[1].numpy().tolist() == [7] + [0] * 49
