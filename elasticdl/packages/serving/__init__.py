"""One process that answers with the newest version of an export, and follows it."""

from elasticdl.registry import Package

_COMMAND = "elasticdl.packages.serving.command"

PACKAGE = Package(commands={"serve": f"{_COMMAND}:serve", "exports": f"{_COMMAND}:exports"})
