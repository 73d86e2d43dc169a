"""What is asked of `elasticdl serve` has the bits of what is computed from the normal export."""

import contextlib
import json
import re
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

pytest.importorskip("aiohttp")
pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]

SCORE = """
import sys
sys.modules["elasticdl"] = None
import numpy as np, tensorflow as tf
given = np.load(sys.argv[2])
features = {name: tf.constant(given[name]) for name in ("numbers", "ids")}
model = tf.saved_model.load(sys.argv[1])
np.save(sys.argv[3], model.serve(features).numpy())
"""


@contextlib.contextmanager
def serving(folder, export):
    """Serve an export; yields the address."""
    words = [sys.executable, "-m", "elasticdl.cli.main", "serve", export, "--port=0"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout:
                if found := re.search(r"listens at (\S+)", line):
                    address = found.group(1)
                if "is served" in line:
                    break
            yield address
        finally:
            process.terminate()


def test_scores_online_are_those_offline_to_the_last_bit(commands, load_zoo):
    criteo = commands("criteo.deepfm.forward")
    load_zoo("criteo.prepare").write(criteo.folder / "data", 1500, num_files=2)
    criteo.run(
        "train",
        "--training_data=data",
        "--minibatch_size=64",
        "--output=model",
        "--export_dir=exports",
        "--export_every=5",
    )
    columns = load_zoo("criteo.prepare").make_columns(200, seed=(9, 9))  # most ids are new
    np.savez(criteo.folder / "records.npz", numbers=columns["numbers"], ids=columns["ids"])
    words = [sys.executable, "-c", SCORE, "model", "records.npz", "scores.npy"]
    done = subprocess.run(words, cwd=criteo.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    features = {name: columns[name].tolist() for name in ("numbers", "ids")}
    with serving(criteo.folder, "exports") as address:
        request = urllib.request.Request(
            f"{address}/v1/predict", json.dumps({"inputs": features}).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            said = json.load(answer)

    online = np.array(said["predictions"], np.float32)
    assert online.tobytes() == np.load(criteo.folder / "scores.npy").tobytes()
    assert np.ptp(online) > 0.1
    assert said["version"] > 1  # base and deltas, as many as the job had time for
