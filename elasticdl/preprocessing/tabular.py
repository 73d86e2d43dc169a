"""A table as a model in Keras sees it: the columns that are numbers or ids, and the label.

The package `keras` has the code: this name stands for its module `preprocessing.tabular`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "keras")
