"""What `elasticdl zoo` writes, composes and refuses."""

import os
import stat

import pytest

from elasticdl.cli.main import run_command
from elasticdl.packages.kubernetes import container_engine
from elasticdl.packages.kubernetes.container_engine import EngineError, build_command, push_command
from elasticdl.packages.kubernetes.dockerfile import Contents, dockerfile, dockerignore
from elasticdl.packages.kubernetes.pods import USER_ID
from elasticdl.packages.kubernetes.settings import STOCK_IMAGE


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with model files, in which the command runs."""
    (tmp_path / "model_zoo").mkdir()
    (tmp_path / "model_zoo" / "model.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, *words):
    assert run_command(["zoo", *words]) == 1
    return capsys.readouterr().err


def test_the_dockerfile_has_the_model_folder_its_packages_and_a_user_by_number():
    text = dockerfile(Contents("base:1", "zoo", has_requirements=True), "elasticdl:1")
    steps = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert steps == [
        "FROM base:1",
        "USER root",
        "COPY zoo/requirements.txt /model_zoo/requirements.txt",
        "RUN python -m pip install --no-cache-dir --requirement /model_zoo/requirements.txt",
        f"COPY --chown={USER_ID}:{USER_ID} zoo /model_zoo",
        "RUN command -v elasticdl > /dev/null || { \\",
        "      echo 'error: base:1 has no elasticdl: elasticdl zoo init \\",
        "takes --base_image=elasticdl:1, or a wheel of it by --local_pkg_path' >&2; exit 1; }",
        "WORKDIR /",
        "ENV HOME=/tmp USER=elasticdl",
        f"USER {USER_ID}:{USER_ID}",
    ]


def test_each_flag_of_init_is_in_the_dockerfile(project, capsys):
    (project / "spec.py").write_text("")
    (project / "dist").mkdir()
    (project / "dist" / "elasticdl_train-1.0-cp311-abi3-linux_x86_64.whl").write_text("")
    (project / "dist" / "other-1.0-py3-none-any.whl").write_text("")
    code = run_command(
        [
            *(
                "zoo",
                "init",
                "--base_image=base:1",
                "--model_zoo=model_zoo",
                "--local_pkg_path=dist",
            ),
            *("--extra_pypi_index=https://index.example/simple", "--cluster_spec=spec.py"),
        ]
    )
    assert code == 0
    text = (project / "Dockerfile").read_text()
    wheel = "/packages/elasticdl_train-1.0-cp311-abi3-linux_x86_64.whl"
    assert "FROM base:1\n" in text
    assert "ARG PIP_EXTRA_INDEX_URL=https://index.example/simple\n" in text
    assert f'RUN python -m pip install --no-cache-dir "{wheel}[$EXTRAS]" /packages/other' in text
    assert "spec.py /cluster_spec/spec.py\n" in text
    assert "# There was no model_zoo/requirements.txt" in text
    assert (project / ".dockerignore").read_text().splitlines()[1:6] == [
        "*",
        "!model_zoo",
        "!dist/elasticdl_train-1.0-cp311-abi3-linux_x86_64.whl",
        "!dist/other-1.0-py3-none-any.whl",
        "!spec.py",
    ]
    assert "wrote Dockerfile" in capsys.readouterr().out


def test_without_flags_this_folder_is_put_on_the_stock_image(project):
    assert run_command(["zoo", "init"]) == 0
    text = (project / "Dockerfile").read_text()
    assert f"FROM {STOCK_IMAGE}\n" in text
    assert "COPY --chown=1000:1000 . /model_zoo\n" in text
    assert "*" not in dockerignore(Contents("base:1")).splitlines()


def test_links_that_name_nothing_in_the_image_are_said(project, capsys):
    zoo = project / "model_zoo"
    (zoo / "a").mkdir(parents=True)
    (zoo / "shared").symlink_to("../elsewhere")
    (zoo / "a" / "layers.py").symlink_to(zoo / "layers.py")
    (zoo / "fine.py").symlink_to("a/model.py")
    (zoo / ".hidden").symlink_to("/data")
    assert run_command(["zoo", "init", "--model_zoo=model_zoo"]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert [note.partition(" is a link to ")[0] for note in notes] == [
        "note: model_zoo/shared",
        "note: model_zoo/a/layers.py",
    ]


def test_a_dockerfile_of_somebody_else_is_replaced_only_when_asked(project, capsys):
    (project / "Dockerfile").write_text("FROM mine\n")
    assert "exists, with another content; give --over" in refused(capsys, "init")
    assert (project / "Dockerfile").read_text() == "FROM mine\n"
    assert run_command(["zoo", "init", "--overwrite"]) == 0
    assert run_command(["zoo", "init"]) == 0  # the same again
    assert "FROM mine" not in (project / "Dockerfile").read_text()


def test_a_dockerignore_that_was_there_is_kept_and_said(project, capsys):
    (project / ".dockerignore").write_text("data\n")
    assert run_command(["zoo", "init"]) == 0
    assert (project / ".dockerignore").read_text() == "data\n"
    assert "note: .dockerignore exists and is kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("--model_zoo=none", "--model_zoo: expected a folder, found none at none"),
        ("--model_zoo=/tmp", "--model_zoo=/tmp: expected a path below "),
        ("--cluster_spec=none.py", "--cluster_spec: expected a file, found none"),
        ("--local_pkg_path=model_zoo", "expected a wheel (*.whl) or a folder of wheels"),
        ("--base_image=a b", "--base_image: expected the name of an image"),
        ("--extra_pypi_index=index", "--extra_pypi_index: expected an http or https URL"),
        ("--extra_pypi_index=https://me:word@index/simple", "has a user or a password"),
    ],
)
def test_what_a_dockerfile_cannot_do_is_refused_in_words(project, capsys, word, complaint):
    err = refused(capsys, "init", word)
    assert complaint in err
    assert not (project / "Dockerfile").exists()


def test_a_password_in_an_index_is_not_repeated(project, capsys):
    assert "sentinel" not in refused(capsys, "init", "--extra_pypi_index=https://me:sentinel@x/y")


def test_a_path_that_a_dockerfile_reads_otherwise_is_refused(project, capsys):
    (project / "my models").mkdir()
    assert "rename it" in refused(capsys, "init", "--model_zoo=my models")


def test_of_a_folder_the_wheels_of_this_processor_are_taken(project, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    (project / "dist").mkdir()
    name = "elasticdl_train-1.0-cp311-abi3-manylinux_2_28_{}.whl"
    wheels = [name.format("aarch64"), name.format("x86_64"), "other-1.0-py3-none-any.whl"]
    for wheel in wheels:
        (project / "dist" / wheel).write_text("")
    assert run_command(["zoo", "init", "--local_pkg_path=dist"]) == 0
    text = (project / "Dockerfile").read_text()
    assert [wheel in text for wheel in wheels] == [False, True, True]


def test_two_wheels_of_elasticdl_are_refused(project, capsys):
    for version in ("1.0", "1.1"):
        (project / f"elasticdl_train-{version}-cp311-abi3-linux_x86_64.whl").write_text("")
    err = refused(capsys, "init", "--local_pkg_path=.")
    assert "expected one wheel of elasticdl, found elasticdl_train-1.0" in err


def test_commands_are_lists_in_which_a_name_cannot_be_a_flag(tmp_path, capsys):
    assert build_command("podman", "a/b:c", tmp_path) == [
        *("podman", "build", "--tag=a/b:c", f"--file={tmp_path}/Dockerfile", str(tmp_path))
    ]
    assert push_command("buildah", "a/b:c") == ["buildah", "push", "a/b:c"]
    assert "IMAGE: expected the name of an image" in refused(capsys, "push", "--", "--all")


def test_podman_is_taken_before_buildah():
    assert container_engine.find({"podman": "x", "buildah": "y"}.get) == "podman"
    assert container_engine.find({"buildah": "y"}.get) == "buildah"


def test_without_an_engine_all_three_are_named():
    with pytest.raises(EngineError, match="expected docker, podman or buildah on the PATH"):
        container_engine.find({}.get)


def test_a_folder_without_a_dockerfile_is_refused(project, capsys):
    assert "elasticdl zoo init writes it" in refused(capsys, "build", "--image=a/b", ".")


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("Cannot connect to the Docker daemon at unix:///x.", "its daemon is not running: start"),
        ("permission denied while trying to connect to the Docker daemon", "may not use Docker"),
        ("something else", "see `docker info`. Docker said: something else"),
    ],
)
def test_a_daemon_that_cannot_be_used_is_said(program, said, complaint):
    program("docker", f"echo '{said}' >&2; exit 1")
    with pytest.raises(EngineError, match=complaint):
        container_engine.find()


def test_the_engines_exit_code_is_that_of_the_command(program, project, capfd):
    program("podman", 'echo "it says $1"; exit 125')
    (project / "Dockerfile").write_text("FROM scratch\n")
    assert run_command(["zoo", "build", "--image=a/b", "."]) == 125
    captured = capfd.readouterr()
    assert "it says build" in captured.out
    assert "error: podman build ended with exit code 125" in captured.err


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put shell scripts under the names of engines, and nothing else, on the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        os.chmod(path, stat.S_IRWXU)

    return put
