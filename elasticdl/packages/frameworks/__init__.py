"""What frameworks of tensors share: a trainer made of parts, callbacks, and guards of its state."""

from elasticdl.registry import Package

_HERE = "elasticdl.packages.frameworks"

PACKAGE = Package(modules={"elasticdl.callbacks": f"{_HERE}.callbacks"})
