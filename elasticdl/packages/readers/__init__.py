"""Readers of databases, of tables of MaxCompute, of LIBSVM files, and of folders of images."""

from elasticdl.registry import Package

_KINDS = "elasticdl.packages.readers.kinds"

PACKAGE = Package(
    formats={"libsvm": f"{_KINDS}:LIBSVM"},
    sources={
        "SQL": f"{_KINDS}:SQL",
        "MaxCompute": f"{_KINDS}:MAXCOMPUTE",
        "images": f"{_KINDS}:IMAGES",
    },
)
