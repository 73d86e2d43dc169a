"""Generates `elasticdl/rpc/elasticdl_pb2*` from `proto/elasticdl.proto`.

`python proto/generate.py` writes the files; with `--check` it only says whether those in the
tree are what the `.proto` gives, and fails if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("elasticdl/rpc")
PROTO = PACKAGE / "elasticdl.proto"
GENERATED = (
    "elasticdl_pb2.py",
    "elasticdl_pb2.pyi",
    "elasticdl_pb2_grpc.py",
    "elasticdl_pb2_grpc.pyi",
)
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


def main() -> None:
    """Write the generated files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if outdated")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    outdated = find_outdated()
    if outdated:
        files = ", ".join(outdated)
        sys.exit(f"not what proto/elasticdl.proto gives: {files}; run `python proto/generate.py`")


def find_outdated() -> list[str]:
    """Name the generated files in the tree that differ from what the `.proto` gives."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        return [
            str(PACKAGE / name)
            for name in GENERATED
            if not (ROOT / PACKAGE / name).is_file()
            or (ROOT / PACKAGE / name).read_bytes() != (Path(folder) / PACKAGE / name).read_bytes()
        ]


def generate(target: Path) -> None:
    """Write the messages, the service and their stubs into `target/elasticdl/rpc`.

    The `.proto` is mapped to a path inside the package, so that the imports between the
    generated files name the package.
    """
    from grpc_tools import protoc

    (target / PACKAGE).mkdir(parents=True, exist_ok=True)
    well_known = resources.files("grpc_tools") / "_proto"
    plugins = Path(sys.executable).parent  # of this environment, whatever PATH says
    code = protoc.main(
        [
            "protoc",
            f"-I{PACKAGE}={ROOT / 'proto'}",
            f"-I{well_known}",
            *(f"--plugin={plugins / name}" for name in PLUGINS),
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            str(PROTO),
        ]
    )
    if code != 0:
        sys.exit(f"protoc failed with exit code {code} on proto/elasticdl.proto")


if __name__ == "__main__":
    main()
