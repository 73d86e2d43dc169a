"""What `scripts/house.py` counts, and what the package is held to."""

import ast
import re
from pathlib import Path

from scripts.house import measure, num_any, num_lines

PACKAGE = Path(__file__).parents[3] / "elasticdl"


def test_any_counts_in_annotations_and_casts_and_not_where_it_is_imported(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text(
        "from typing import Any\n\n"
        "def f(x: Any, *rest: object) -> dict[str, Any]:\n"
        '    """Return Any."""\n'
        "    return {}\n"
    )
    assert measure(package).any_uses == 2


def test_types_of_the_package_say_something():
    paths = [path for path in PACKAGE.rglob("*.py") if "_pb2" not in path.name]
    texts = [text for path in paths if re.search(r"\bAny\b", text := path.read_text())]
    uses = sum(num_any(ast.parse(text)) for text in texts)
    assert 0 < uses < sum(map(num_lines, paths)) / 100
