"""Sphinx's settings for the site of these pages: `make docs`.

The source is the whole repository, so that a link which works between two Markdown files works on
the site. `include_patterns` says which pages are part of the site.
"""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import links  # noqa: E402  # beside this file
import reference  # noqa: E402
import stand_ins  # noqa: E402

project = "elasticdl"
author = copyright = "the authors of elasticdl"  # Sphinx's name for it
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "docs/README"
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "README.md",
    "README_cn.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "examples/**.md",
    "model_zoo/**.md",
]
exclude_patterns = [".*", "target", "dist", "demo", "jobs"]
smartquotes = False  # --flag stays --flag
default_role = "code"  # docstrings write `x`

myst_heading_anchors = 5
myst_enable_extensions = ["deflist", "fieldlist", "attrs_block", "colon_fence"]
# Headings that skip a level are as they are on GitHub.
suppress_warnings = ["myst.header"]

# The interfaces are read from docstrings alone: no framework is imported.
stand_ins.install()
autodoc_member_order = "bysource"
# Keras and PyTorch call these methods, and users do not.
autodoc_default_options = {
    "exclude-members": "build, call, compute_mask, compute_output_shape, forward, get_config"
}
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"elasticdl {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"


def setup(app):
    """Write the pages that are made of the program, and say which links lead out of the site."""
    reference.write_pages(HERE / "generated")
    # Before Napoleon, which reads sections such as Args.
    app.connect("autodoc-process-docstring", reference.read_docstring, priority=400)
    app.connect("source-read", links.rewrite)
    app.connect("build-finished", links.write_entrance)
