"""The page of a real job, in a real browser: it shows what happens, and asks nobody else."""

import json
import re
import shutil
import signal
import time
import urllib.request

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is missing: make build installs it"
)
pytest.importorskip("aiohttp", reason="the page needs elasticdl-train[dashboard]")

pytestmark = pytest.mark.timeout(300)

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("Chromium is missing: scripts/browser.sh installs it", allow_module_level=True)

WAIT_MS = 120_000
LASTING = {"dashboard_port": 0, "num_epochs": 1_000}  # of jobs that are ended once they were seen
ERRORS = "window.errors = []; addEventListener('error', e => window.errors.push(String(e.message)))"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        # A test runs as root in a container, where Chromium's own sandbox cannot be made.
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=WAIT_MS
        )
        yield browser
        browser.close()


@pytest.fixture
def tab(browser):
    """A tab that notes each address that it asks."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(WAIT_MS)
    tab = context.new_page()
    tab.asked = []
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.add_init_script(ERRORS)
    yield tab
    errors = tab.evaluate("window.errors")
    context.close()
    assert errors == []


def until(tab, condition):
    """Wait for a condition; not by `wait_for_function`, whose `eval` the page's policy forbids."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not tab.evaluate(condition):
        assert time.monotonic() < deadline, condition
        tab.wait_for_timeout(20)


CONNECTION = "document.getElementById('connection').innerText"
LIVE = f"{CONNECTION} == 'live'"

# Of each part of the page whether it shows something: words, or a chart with its table.
SHOWN = """Object.fromEntries(
    [...document.querySelectorAll('main section')].map(part => [
        part.querySelector('h2').textContent,
        part.querySelectorAll('canvas').length > 0 || part.querySelectorAll('td, dd').length > 0,
    ])
)"""


PARTS = {"Now", "Goodput", "Throughput", "What each process did", "Events"}


def until_shown(tab, parts):
    """Wait until some parts of the page show something."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not parts <= {part for part, is_there in tab.evaluate(SHOWN).items() if is_there}:
        assert time.monotonic() < deadline, parts
        tab.wait_for_timeout(20)


def url_of(job):
    """Return the address with its token, which the job prints."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while time.monotonic() < deadline and job.is_running():
        found = re.search(r"the job's page is at (\S+)", job.printed())
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(job.log())


def test_page_shows_a_job_and_a_worker_that_is_killed(seen_job, tab, chaos):
    with seen_job(60_000, num_workers=2, **LASTING) as job:
        url = url_of(job)
        tab.goto(url)
        tab.wait_for_selector("#throughput canvas")
        tab.wait_for_selector("#lanes canvas")
        until(tab, "store.ordered().length == 5")
        until(tab, LIVE)
        assert "token" not in tab.url
        worker = chaos.processes(job.job_dir, "worker")[0]
        worker.send_signal(signal.SIGKILL)
        tab.wait_for_selector("#events td:text-matches('worker \\\\d+ was killed')")
        tab.wait_for_selector("#members .state-lost")
        assert tab.locator("#members .state-lost").count() == 1
        # The next one takes part, and is shown.
        until(
            tab, "store.ordered().filter(l => l.role == 'worker' && l.state == 'alive').length == 2"
        )
        host = url.split("/?")[0]
        assert all(asked.startswith(host) for asked in tab.asked)


@pytest.mark.long
def test_page_shows_how_often_rows_were_there_and_which_keys_are_hot(seen_job, tab):
    with seen_job(60_000, **LASTING) as job:
        tab.goto(url_of(job))
        # Ids go from 0 to 999 again and again: all but the first thousand have a row. Each replica
        # has about half of them, and is heard at its own times.
        until(tab, "store.tables.replica_pulled && Math.min(...store.tables.replica_pulled) > 700")
        pulled, found = tab.evaluate("[store.tables.pulled[0], store.tables.found[0]]")
        assert pulled - found == 1000
        until(tab, "store.tables.hot_keys[0].length > 0")
        # The page may have drawn before.
        until(tab, "/\\d+ \\([\\d.]+\\s%\\)/.test(document.getElementById('tables').innerText)")
        shown = tab.inner_text("#tables")
        assert "hit rate" in shown.lower()
        assert "keys asked for" in shown.lower()
        replicas = tab.evaluate("store.tables.replica_pulled")
        assert len(replicas) == 2
        assert min(replicas) > 0


def test_page_says_that_the_master_is_gone_and_finds_the_next_one(seen_job, tab, chaos):
    with seen_job(60_000, **LASTING) as job:
        tab.goto(url_of(job))
        tab.wait_for_selector("#throughput canvas")
        before = tab.evaluate("store.facts[0].text")
        until_shown(tab, PARTS)
        (master,) = chaos.processes(job.job_dir, "master")
        (root,) = chaos.processes(job.job_dir, "launchers.process")
        tab.evaluate(
            "window.said = []; new MutationObserver(() => said.push(document.getElementById("
            "'connection').textContent)).observe(document.getElementById('connection'),"
            "{childList: true, characterData: true, subtree: true})"
        )
        root.send_signal(signal.SIGSTOP)  # it starts the next master when the page has said so
        try:
            master.send_signal(signal.SIGKILL)
            shown = tab.evaluate(SHOWN)
            until(tab, "said.some(t => t.includes('The master has not answered since'))")
        finally:
            root.send_signal(signal.SIGCONT)
        kept = tab.evaluate(SHOWN)  # perhaps of the next master already: no part is empty again
        assert [part for part, is_there in shown.items() if is_there and not kept[part]] == []
        until(tab, "said.at(-1) == 'live'")
        until(
            tab,
            "store.facts.some(f => f.event == 'master lost') || "
            "store.facts.some(f => f.event == 'resumed')",
        )
        assert tab.evaluate("store.facts[0].text") == before


def test_page_says_how_the_job_ended_and_keeps_what_it_has(seen_job, tab):
    with seen_job(20_000, pace=0.02, dashboard_port=0) as job:
        tab.goto(url_of(job))
        until(tab, LIVE)
        job.hurry()
        until(tab, "store.ended !== null")
        until(tab, f"{CONNECTION}.startsWith('The job is over (finished)')")
        shown = tab.evaluate(SHOWN)
        job.wait()
        assert tab.locator("#throughput canvas").count() == 1
        assert tab.evaluate(SHOWN) == shown
        assert shown["Checkpoints"] is False  # this job has written none, which the part says
        there = {part for part, is_there in shown.items() if is_there}
        assert {"At the end", "Goodput", "Throughput", "What each process did", "Events"} <= there
    assert tab.inner_text("#state") == "finished"


def test_without_the_token_there_is_no_page(seen_job, tab):
    with seen_job(20_000, **LASTING) as job:
        address = url_of(job).split("/?")[0]
        assert tab.goto(f"{address}/").status == 401
        assert tab.goto(f"{address}/?token=wrong").status == 401
        request = urllib.request.Request(f"{address}/board", method="GET")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=120)
        page = json.loads((job.job_dir / "page.json").read_text())
        assert (job.job_dir / "page.json").stat().st_mode & 0o077 == 0
        assert page["url"].startswith(address)
