import numpy as np
import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]

NUM_IMAGES = 60  # of each of three classes


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Images in three colours with noise, as a folder for each class."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number, name in enumerate(("blue", "green", "red")):
        (folder / name).mkdir()
        for k in range(NUM_IMAGES):
            pixels = rng.integers(0, 120, (32, 32, 3))
            pixels[..., 2 - number] += 100
            (folder / name / f"{k:04}.png").write_bytes(
                tf.io.encode_png(pixels.astype(np.uint8)).numpy()
            )
    return folder


@pytest.mark.parametrize(
    ("model_def", "params"),
    [
        ("cifar10.model.custom_model", "depth=1"),
        ("cifar10.cifar10_mobilenetv2.custom_model", "alpha=0.35"),
    ],
)
def test_trains_on_a_folder_of_images(commands, images, model_def, params, strategy):
    cifar = commands(model_def)

    summary = cifar.run(
        "train",
        f"--model_params={params}",
        f"--training_data={images}",
        f"--validation_data={images}",
        "--minibatch_size=20",
        "--num_epochs=2",
        "--learning_rate=0.02",
        *strategy,
    )

    assert [epoch["trained_once"] for epoch in summary["ledger"]] == [3 * NUM_IMAGES] * 2
    assert 0.0 <= summary["metrics"]["accuracy"] <= 1.0


@pytest.mark.long
def test_learns_colours_in_a_plain_python_session(images, load_zoo):
    import keras
    import tensorflow as tf

    from elasticdl import Mode
    from elasticdl.data.base import Metadata

    module = load_zoo("cifar10.model")
    files = sorted(images.rglob("*.png"))
    rows = {
        "image": [path.read_bytes() for path in files],
        "path": [f"{path.parent.name}/{path.name}" for path in files],
        "label": [("blue", "green", "red").index(path.parent.name) for path in files],
    }
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    keras.utils.set_random_seed(0)
    network = module.custom_model(depth=1)
    network.compile(module.optimizer(0.02), module.loss)

    network.fit(
        module.feed(dataset, Mode.TRAINING, Metadata()).batch(20),
        epochs=2,
        shuffle=False,
        verbose=0,
    )

    features, labels = next(iter(module.feed(dataset, Mode.EVALUATION, Metadata()).batch(200)))
    found = np.argmax(network(features, training=True), axis=1)
    assert np.mean(found == labels.numpy()[:, 0]) > 0.9


def test_resnet_20_is_that_of_the_paper(load_zoo):
    network = load_zoo("cifar10.model").custom_model()

    trained = sum(int(np.prod(w.shape)) for w in network.trainable_weights)
    assert trained == pytest.approx(0.27e6, rel=0.02)
