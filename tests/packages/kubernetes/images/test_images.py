"""Images are built, pushed, pulled back, and train as they do on a cluster."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
pytestmark = [pytest.mark.images, pytest.mark.timeout(1800)]

AS_ON_A_CLUSTER = (
    "--rm",
    "--read-only",
    "--tmpfs=/tmp",
    "--network=none",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
)
NUM_RECORDS = 1000


def elasticdl(docker, folder, *words):
    return docker.try_command([sys.executable, "-m", "elasticdl.cli.main", *words], folder)


def zoo(docker, folder, *words):
    done = elasticdl(docker, folder, "zoo", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path):
    """A folder with model files, some packages that they want, and a secret beside them."""
    shutil.copytree(ROOT / "model_zoo" / "counting", tmp_path / "model_zoo" / "counting")
    (tmp_path / "model_zoo" / "requirements.txt").write_text("isodate==0.7.2\n")
    (tmp_path / "model_zoo" / ".token").write_text("sentinel")
    (tmp_path / "private.key").write_text("sentinel")
    return tmp_path


@pytest.fixture
def volume(tmp_path):
    """A folder that the user of the image may write to, with data."""
    folder = tmp_path / "volume"
    folder.mkdir()
    records = "".join(f"{number % 10}\n" for number in range(NUM_RECORDS))
    (folder / "train.txt").write_text(records)
    os.chown(folder, 1000, 1000)
    return folder


def test_an_image_is_built_pushed_pulled_and_trains(docker, registry, stock_image, project, volume):
    image = f"{registry}/elasticdl:ctr"
    zoo(docker, project, "init", f"--base_image={stock_image}", "--model_zoo=model_zoo")
    zoo(docker, project, "build", f"--image={image}", ".")
    zoo(docker, project, "push", image)
    docker.run("rmi", image)
    docker.run("pull", image)

    docker.run(
        "run",
        *AS_ON_A_CLUSTER,
        f"--volume={volume}:/data",
        image,
        *("elasticdl", "train", "--model_zoo=model_zoo", "--model_def=counting.model.forward"),
        *("--training_data=/data/train.txt", "--num_epochs=2", "--minibatch_size=50"),
        *("--distribution_strategy=ParameterServerStrategy", "--num_workers=1", "--num_ps_pods=1"),
        *("--job_dir=/tmp/job", "--summary=/data/summary.json"),
    )

    ledger = json.loads((volume / "summary.json").read_text())["ledger"]
    assert sum(epoch["trained_once"] for epoch in ledger) == 2 * NUM_RECORDS
    inside = docker.run("run", *AS_ON_A_CLUSTER, image, "find", "/model_zoo", "-type", "f")
    assert "/model_zoo/counting/model.py" in inside
    assert "sentinel" not in docker.run(
        *("run", "--rm", "--user=0", image, "sh", "-c"),
        "cat /model_zoo/.token /private.key /model_zoo/private.key 2>&1 || true",
    )
    docker.run("run", *AS_ON_A_CLUSTER, image, "python", "-c", "import isodate")


def test_the_image_runs_as_another_user_and_keeps_nothing_of_its_making(docker, stock_image):
    assert docker.run("inspect", "--format={{.Config.User}}", stock_image).strip() == "1000:1000"
    assert docker.run("run", *AS_ON_A_CLUSTER, stock_image, "id", "-u").strip() == "1000"
    assert "train" in docker.run("run", "--rm", "--read-only", "--network=none", stock_image)
    left = docker.run(
        *("run", "--rm", "--user=0", stock_image, "find", "/", "-xdev"),
        *("(", "-name", "*.whl", "-o", "-name", ".cache", "-o", "-name", "*.rs", ")"),
        *("-not", "-path", "/usr/*", "-not", "-path", "/proc/*"),
    )
    assert left == ""


def test_the_pods_command_finds_python_and_the_kubernetes_client(docker, stock_image):
    words = ["python", "-P", "-c", "import elasticdl.packages.kubernetes.manifests, kubernetes"]
    docker.run("run", *AS_ON_A_CLUSTER, stock_image, *words)


def test_a_wheel_of_the_users_own_is_installed(docker, stock_image, wheel, project):
    (project / "dist").mkdir()
    shutil.copy(wheel, project / "dist")
    words = (f"--base_image={stock_image}", "--model_zoo=model_zoo", "--local_pkg_path=dist")
    zoo(docker, project, "init", *words)
    dockerfile = project / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace(",parquet,tensorflow", ""))
    zoo(docker, project, "build", "--image=test/wheel", ".")
    said = docker.run("run", *AS_ON_A_CLUSTER, "test/wheel", "elasticdl", "--version")
    assert said.startswith("elasticdl ")


def test_a_base_image_without_elasticdl_is_refused_while_building(docker, base_image, project):
    (project / "model_zoo" / "requirements.txt").unlink()
    zoo(docker, project, "init", f"--base_image={base_image}", "--model_zoo=model_zoo")
    built = elasticdl(docker, project, "zoo", "build", "--image=test/none", ".")
    assert built.returncode == 1
    assert f"error: {base_image} has no elasticdl" in built.stdout + built.stderr


def test_the_engines_exit_code_and_words_are_kept(docker, stock_image, project):
    pushed = elasticdl(docker, project, "zoo", "push", "127.0.0.1:1/nobody/listens:here")
    assert pushed.returncode == 1
    assert "error: docker push ended with exit code 1" in pushed.stderr


def test_a_daemon_that_is_not_running_is_said(docker, project, tmp_path):
    (project / "Dockerfile").write_text("FROM scratch\n")
    nobody = {"DOCKER_HOST": f"unix://{tmp_path}/nobody"}
    alone = type(docker)(docker.environment | nobody)
    built = elasticdl(alone, project, "zoo", "build", "--image=test/none", ".")
    assert built.returncode == 1
    assert "its daemon is not running: start it" in built.stderr
