"""Names of modules of ElasticDL 0.x in a plain Python session (`offer_earlier_modules`).

The package `earlier` has the code: this name stands for its module `modules`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "earlier")
