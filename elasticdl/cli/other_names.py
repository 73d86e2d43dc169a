"""Names of other programs that people write in a model file; packages bring them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from elasticdl import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNames:
    """Names of a program that mean something there, with what has that meaning here.

    Attributes:
        module: The names are those of files that import this module; "": of all model files.
        in_file: Names that people assign at the top of a model file.
        functions: Those of them that may be functions, too.
        beside_a_loss: Those that have an effect if they are assigned, and the loss is no function.
    """

    module: str = ""
    in_file: Mapping[str, str] = field(default_factory=dict)
    functions: Collection[str] = ()
    beside_a_loss: Collection[str] = ()


def other_names(imported: Collection[str] = ()) -> list[OtherNames]:
    """Return the names that count in a file; those of a module that it imports come last.

    Args:
        imported: The modules that the file imports.
    """
    brought: dict[str, OtherNames] = registry.brought("other_names")
    found = [each for each in brought.values() if not each.module or each.module in imported]
    return sorted(found, key=lambda each: bool(each.module))
