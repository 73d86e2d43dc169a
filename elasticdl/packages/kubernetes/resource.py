"""Types of the objects that the Kubernetes API takes and returns."""

from typing import Any, TypeAlias

Resource: TypeAlias = dict[str, Any]
"""An object, or a part of one, as JSON; the API's reference lists its fields."""
