"""Which licences `scripts.licences` lets pass."""

from importlib import metadata

import pytest

from scripts.licences import Licensed, is_permissive, licence_of, packages, table


@pytest.mark.parametrize(
    ("expression", "passes"),
    [
        ("MIT", True),
        ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", True),
        ("MIT OR Apache-2.0 OR LGPL-2.1-or-later", True),
        ("(MIT OR GPL-3.0-only) AND Unicode-3.0", True),
        ("MIT/Apache-2.0", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR Apache-2.0) AND LGPL-3.0-only", False),
        ("MIT and something of our own", False),
        ("", False),
    ],
)
def test_one_alternative_must_be_permissive_and_all_of_what_holds_together(expression, passes):
    assert is_permissive(expression) is passes


class Package(metadata.Distribution):
    def __init__(self, **texts):
        self.texts = texts

    def read_text(self, filename):
        return self.texts.get(filename.replace("/", "_"))

    def locate_file(self, path):
        raise AssertionError(path)


@pytest.mark.parametrize(
    ("about", "text", "licence"),
    [
        ("License-Expression: MIT OR ISC\nLicense: BSD", "", "MIT OR ISC"),
        ("Classifier: License :: OSI Approved :: MIT License", "", "MIT"),
        (
            "Classifier: License :: OSI Approved :: BSD License\n"
            "Classifier: License :: Other/Proprietary License",
            "",
            "BSD-3-Clause AND Other/Proprietary License",
        ),
        ("License: Apache 2.0", "", "Apache-2.0"),
        ("License-File: LICENSE", "  Apache License\n  Version 2.0, January 2004", "Apache-2.0"),
        ("License-File: LICENSE", "under the Apache License, Version 2.0 (", "Apache-2.0"),
        ("License-File: LICENSE", "All rights are ours.", ""),
        ("Summary: none", "", ""),
    ],
)
def test_a_licence_is_taken_from_the_newest_field_that_names_it(about, text, licence):
    package = Package(METADATA=f"Name: a\nVersion: 1\n{about}\n", licenses_LICENSE=text)
    assert licence_of(package) == licence


def test_what_has_no_permissive_licence_is_named():
    rows = [Licensed("b", "1", "MIT"), Licensed("a", "2", "SSPL-1.0")]
    text, odd = table("Packages", rows)
    assert text.splitlines()[0] == "Packages: 2"
    assert odd == [rows[1]]


def test_packages_that_packages_need_are_listed_and_tools_are_not():
    names = {package.name.lower() for package in packages()}
    assert {"grpcio", "cffi", "kubernetes"} <= names
    assert {"pytest", "ruff", "elasticdl-train"} & names == set()
