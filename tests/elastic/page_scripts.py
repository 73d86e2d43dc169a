"""The commands of pages, as a person would copy them; who runs which, or why nobody does."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)
INDENTED = re.compile(r"(?:^    \S.*\n(?:^     +.*\n)*)+", re.M)
OF_A_SHELL = ("", "sh", "console", "bash")
FIRST_WORDS = (
    r"(?:[A-Z_]+=\S+ )*(?:elasticdl|python|make|pip|uv|kubectl|docker|tensorboard|sbatch|ray)"
)
COMMAND = re.compile(rf"^(?:    )?({FIRST_WORDS} (?:.*\\\n)*.*)$", re.M)
PROMPTED = re.compile(r"^(?:    )?\$ ((?:.*\\\n)*.*)$", re.M)
# Words in capitals stand for what a reader has; of "a|b" one is chosen; lines may end in "...".
A_PATTERN = re.compile(r"\.\.\.|\b(?:JOB|NAME|FILE|FOLDER|VERSION|NAMESPACE)\b|[a-z]\|[a-z]| --> ")


@dataclass(frozen=True)
class Treatment:
    """What becomes of the commands of a page.

    run_by: The test that runs them. left_out: Of those that it does not run, the reason, by a
    pattern that their first words match.
    """

    run_by: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)


HERE = "tests/elastic/test_pages.py::"
ON_A_CLUSTER = {"": "needs a cluster; tests/packages/kubernetes/cluster has one of its own"}
OF_MAKE = {"make": "builds and suites, which CI runs, or which take minutes"}
OF_A_WHEEL = {
    "(uv )?pip install|make wheel|python -m venv|uv venv": "tests/unit/test_distribution.py reads "
    "what a wheel has; one takes minutes to build"
}
DEMO = {"make (demo|online|chaos)": "takes minutes; its parts are run by other tests"}
DATA_OF_OTHERS = {"": "the data is to be downloaded; the test beside the model trains on it"}

TREATMENTS = {
    "README.md": Treatment(HERE + "test_readme", DEMO),
    "CONTRIBUTING.md": Treatment(None, OF_MAKE | ON_A_CLUSTER),
    "docs/clusters.md": Treatment(None, ON_A_CLUSTER),
    "docs/commands.md": Treatment(None, {"": "goes on from a line that is a pattern"}),
    "docs/dashboard.md": Treatment(None, {"": "another program's page of the job"}),
    "docs/data.md": Treatment(HERE + "test_data"),
    "docs/designs/simulation.md": Treatment(None, {"make nightly": "takes a night"}),
    "docs/install.md": Treatment(HERE + "test_install", OF_MAKE | OF_A_WHEEL),
    "docs/designs/kubernetes.md": Treatment(None, OF_MAKE | ON_A_CLUSTER),
    "docs/keras.md": Treatment(
        None, {"": "needs JAX; tests/elastic/test_jax_job.py trains such a model by it"}
    ),
    "docs/own-loops.md": Treatment(
        None,
        {"": "the script is the reader's; test_script_job.py of the package runs some"},
    ),
    "docs/serving.md": Treatment(
        None, {"elasticdl serve": "has no end; tests/packages/serving/test_server.py asks one"}
    ),
    "docs/simulate.md": Treatment(
        HERE + "test_simulate", {".*--preset=": "takes minutes; test_forecast.py has a part of it"}
    ),
    "docs/tutorials/first-model.md": Treatment(HERE + "test_your_first_model"),
    "docs/tutorials/your-own-data.md": Treatment(HERE + "test_your_own_data"),
    "examples/online/README.md": Treatment(None, DEMO | {"elasticdl stop": "ends what it shows"}),
    "model_zoo/adult/README.md": Treatment(None, DATA_OF_OTHERS),
    "model_zoo/census/README.md": Treatment(None, DATA_OF_OTHERS),
    "model_zoo/cifar10/README.md": Treatment(None, DATA_OF_OTHERS),
    "model_zoo/criteo/README.md": Treatment(HERE + "test_model_zoo"),
    "model_zoo/dac_ctr/README.md": Treatment(HERE + "test_model_zoo"),
    "model_zoo/din/README.md": Treatment(HERE + "test_model_zoo"),
    "model_zoo/iris/README.md": Treatment(HERE + "test_model_zoo"),
    "model_zoo/lr/README.md": Treatment(HERE + "test_model_zoo"),
}
"""Of each page with commands, by its path. A page in Chinese has those of the English one."""


def commands_of(text: str) -> list[str]:
    """Return the commands of a page, each in one line; not those that are but a pattern."""
    blocks = [block for language, block in FENCED.findall(text) if language in OF_A_SHELL]
    blocks += INDENTED.findall(FENCED.sub("", text))
    found = []
    for block in blocks:
        pattern = PROMPTED if PROMPTED.search(block) else COMMAND
        found += [re.sub(r"\s*\\\n\s*", " ", command) for command in pattern.findall(block)]
    return [command for command in found if not A_PATTERN.search(command)]


def commands_to_run(page: str) -> list[str]:
    """Return the commands of a page that its test runs."""
    left_out = TREATMENTS[page].left_out
    commands = commands_of((ROOT / page).read_text())
    return [word for word in commands if not any(re.match(start, word) for start in left_out)]


def run(script: str, folder: Path) -> str:
    """Run a script beside the repository's `model_zoo` and `tests`; return what it printed."""
    for name in ("model_zoo", "tests"):
        (folder / name).symlink_to(ROOT / name)
    with subprocess.Popen(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate()
        finally:  # what a test that was given up has started ends too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    return said
