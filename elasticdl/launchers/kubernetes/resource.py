"""What the Kubernetes API takes and gives."""

from typing import Any, TypeAlias

Resource: TypeAlias = dict[str, Any]
"""An object, or a part of one, as JSON has it: the API's reference says which fields it has."""
