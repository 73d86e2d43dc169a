"""`scripts/doctor.sh` says what a machine lacks, and the command that gets it."""

import shutil
import subprocess
from pathlib import Path

import pytest

DOCTOR = Path(__file__).parents[3] / "scripts" / "doctor.sh"

NO_VENV = 'case "$2" in *ensurepip*) exit 1 ;; *print*) echo 3.11 ;; esac; exit 0'
RUSTC = "echo 'rustc {version} (abc 2026-01-01)'"


@pytest.fixture
def machine(tmp_path):
    """A PATH with only what a bare Debian has, and programs that a test adds."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for tool in ("sh", "id", "mktemp", "rm", "cat"):
        (bin_dir / tool).symlink_to(shutil.which(tool))

    class Machine:
        def has(self, name, script="exit 0"):
            (bin_dir / name).write_text(f"#!/bin/sh\n{script}\n")
            (bin_dir / name).chmod(0o755)
            return self

        def has_all(self, *but):
            programs = {
                "python3.11": "exit 0",
                "cc": 'while [ "$1" != -o ]; do shift; done; exit 0',
                "cargo": "exit 0",
                "rustc": RUSTC.format(version="1.90.0"),
                "rustfmt": "exit 0",
                "cargo-clippy": "exit 0",
            }
            for name, script in programs.items():
                if name not in but:
                    self.has(name, script)
            return self

        def doctor(self, *arguments):
            done = subprocess.run(
                ["/bin/sh", DOCTOR, *arguments],
                env={"PATH": str(bin_dir)},
                capture_output=True,
                text=True,
                timeout=200,
            )
            return done.returncode, done.stdout, done.stderr

    return Machine()


def test_nothing_is_said_of_a_machine_that_has_all(machine):
    assert machine.has_all().doctor("check") == (0, "", "")


def test_a_bare_machine_is_told_everything_at_once(machine):
    code, _, err = machine.doctor("check")
    assert code == 1
    assert "Python 3.11 to 3.13 (found: no python3)" in err
    assert "a C compiler (cc)" in err
    assert "Rust 1.90 or newer, with cargo (found: none)" in err
    assert (
        "apt-get update && apt-get install -y python3.11 python3.11-venv build-essential "
        "cargo-web rustc-web rustfmt-web rust-web-clippy\n"
    ) in err.replace("sudo ", "")
    assert "not found" not in err.lower().replace("(found", "")


@pytest.mark.parametrize(
    ("missing", "complaint", "packages"),
    [
        ("python3.11", "Python 3.11 to 3.13", "python3.11 python3.11-venv"),
        ("cc", "a C compiler (cc)", "build-essential"),
        ("cargo", "Rust 1.90 or newer", "cargo-web rustc-web rustfmt-web rust-web-clippy"),
        ("rustfmt", "rustfmt", "rustfmt-web"),
        ("cargo-clippy", "clippy", "rust-web-clippy"),
    ],
)
def test_one_missing_thing_is_named_with_its_package(machine, missing, complaint, packages):
    code, _, err = machine.has_all(missing).doctor("check")
    assert code == 1
    assert [line for line in err.splitlines() if line.startswith("  - ")] == [
        line for line in err.splitlines() if complaint in line and line.startswith("  - ")
    ]
    assert f"apt-get install -y {packages}\n" in err


def test_a_build_needs_no_linter(machine):
    assert machine.has_all("rustfmt", "cargo-clippy").doctor() == (0, "", "")


def test_a_python_without_venv_is_named(machine):
    code, _, err = machine.has_all("python3.11").has("python3.11", NO_VENV).doctor()
    assert code == 1
    assert "the venv module of python3.11" in err
    assert "python3.11-venv" in err


def test_an_old_python_is_told_apart(machine):
    machine.has_all("python3.11").has(
        "python3", 'case "$1" in --version) echo Python 3.9.2; exit 0 ;; esac; exit 1'
    )
    assert "(found: Python 3.9.2)" in machine.doctor()[2]


def test_a_compiler_that_cannot_build_is_told_apart(machine):
    code, _, err = machine.has_all("cc").has("cc", "exit 1").doctor()
    assert code == 1
    assert "cc cannot build a program" in err


@pytest.mark.parametrize("version", ["1.63.0", "0.99.0"])
def test_an_old_rust_is_told_its_version(machine, version):
    code, _, err = machine.has_all("rustc").has("rustc", RUSTC.format(version=version)).doctor()
    assert code == 1
    assert f"(found: rustc {version} (abc 2026-01-01))" in err


@pytest.mark.parametrize("version", ["1.90.0", "1.100.1", "2.0.0-nightly"])
def test_a_newer_rust_will_do(machine, version):
    assert machine.has_all().has("rustc", RUSTC.format(version=version)).doctor()[0] == 0


def test_rustup_is_used_where_it_is(machine):
    machine.has_all("rustc").has("rustc", "echo 'no toolchain' >&2; exit 1").has("rustup")
    code, _, err = machine.doctor()
    assert code == 1
    assert "rustup toolchain install stable && rustup default stable" in err
    assert "apt-get" not in err


def test_the_python_to_use_is_printed(machine):
    assert machine.has_all("python3.11").has("python3").doctor("--python") == (0, "python3\n", "")
