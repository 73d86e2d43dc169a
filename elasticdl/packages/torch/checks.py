"""Checks the settings of PyTorch before a job starts."""

from __future__ import annotations

from elasticdl.backends.known import known
from elasticdl.cli.model_file import imported_by
from elasticdl.cli.preflight import find_model_file
from elasticdl.config import JobConfig
from elasticdl.errors import ModelError
from elasticdl.launchers import choose


def check(config: JobConfig) -> list[str]:
    """Refuse --torch_compile with a model file of another framework; return no notes.

    Raises:
        ModelError: The file imports another framework, and not PyTorch.
    """
    sees_model = config.launcher.sees_files or choose.parts_of(config).sees_model_zoo(config)
    if not config.model.torch_compile or config.model.script is not None or not sees_model:
        return []
    path = find_model_file(config)
    frameworks = {name for each in known().values() for name in each.imports}
    found = imported_by(path) & frameworks
    if found and "torch" not in found:
        raise ModelError(
            f"--torch_compile=true: expected a model in PyTorch, found that {path} imports "
            f"{' and '.join(sorted(found))}; leave the flag out"
        )
    return []
