"""Rows of files, or of a checkpoint, with which tables begin: `--pretrained_rows`."""

from elasticdl.registry import Package

PACKAGE = Package(first_rows={"pretrained": "elasticdl.packages.pretrained.rows:FIRST_ROWS"})
