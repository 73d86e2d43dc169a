"""The page in a real browser, of made-up events: hostile names, small screens, keys, much data."""

import shutil

import pytest

from elasticdl.packages.page.document import html
from elasticdl.packages.page.history.board import board
from elasticdl.packages.page.history.fold import History

pytestmark = pytest.mark.timeout(300)

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is missing: make build installs it"
)
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("Chromium is missing: scripts/browser.sh installs it", allow_module_level=True)

WAIT_MS = 120_000
BEGAN = 1_790_000_000.0
PARTS = (
    *("goodput", "stages", "throughput", "dips", "loss", "metrics", "lanes", "events", "tasks"),
    *("members", "tables", "staleness", "checkpoints", "config"),
)
HOSTILE = '<img src=x onerror="hacked=1"></script><script>hacked=1</script>\u202e"\'&amp;{{x}}'
WATCH = """
window.errors = [];
addEventListener('error', e => errors.push(String(e.message)));
addEventListener('securitypolicyviolation', e => errors.push(e.violatedDirective + e.blockedURI));
"""


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
def show(browser, tmp_path):
    """Return what opens a report of events; at the end there must have been no error."""
    contexts = []

    def show(events, config=None, before=lambda tab: None, **looks):
        path = tmp_path / "report.html"
        path.write_text(html(board(History.of(events), config=config)), "utf-8")
        looks.setdefault("viewport", {"width": 1200, "height": 900})
        context = browser.new_context(**looks)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        tab = context.new_page()
        tab.add_init_script(WATCH)
        before(tab)
        tab.goto(path.as_uri())
        return tab

    yield show
    errors = [tab.evaluate("window.errors") for context in contexts for tab in context.pages]
    for context in contexts:
        context.close()
    assert not any(errors), errors


def fact(time, event, text, **fields):
    return {"time": time, "role": "master", "index": 0, "event": event, "text": text, **fields}


def job(num_workers=2, seconds=60, name="job", metric="auc"):
    """Yield the events of a job in which worker 1 stands still for some seconds and is lost."""
    yield fact(BEGAN, "opened", "")
    for second in range(1, seconds + 1):
        now = BEGAN + second
        for index in range(num_workers):
            trained = second if index != 1 else min(second, 30)
            yield {
                "time": now, "role": "worker", "index": index, "event": "progress",
                "num_records": 100 * trained, "loss_sum": 50.0 * trained,
                "num_minibatches": trained, "model_version": trained,
                "stage_seconds": {name: 0.5 * second},
            }  # fmt: skip
            yield {
                "time": now, "role": "worker", "index": index, "event": "usage", "began": BEGAN,
                "label": "train",
                "label_seconds": {"train": trained, "wait for data": second - trained},
                "cpu_seconds": 0.5 * second, "resident_bytes": 10**8,
                "bytes_sent": 10**6 * second, "bytes_received": 10**6 * second,
            }  # fmt: skip
    yield fact(BEGAN + 20, "evaluation", f"{metric} is 0.5", metrics={metric: 0.5})
    yield fact(
        BEGAN + 30, "training metrics", name, epoch=0, loss=0.5, recent_loss=0.5,
        metrics={metric: 0.6}, recent_metrics={metric: 0.7}, num_records=10,
    )  # fmt: skip
    yield {
        "time": BEGAN + seconds, "role": "master", "index": 0, "event": "picture",
        "job_name": name, "status": "running", "epoch": 0, "num_epochs": 2, "tasks_todo": 3,
        "tasks_doing": 1, "tasks_done": 4, "records_done": 60, "records_total": 100,
        "records_per_second": 10.0, "loss": 0.5, "model_version": 60, "mean_staleness": 0.5,
        "max_staleness": 3, "staleness": [30, 20, 10], "workers": num_workers, "ps_replicas": 0,
        "task_map": "**50", "doing": [[2, 1]],
    }  # fmt: skip
    yield {
        "time": BEGAN + seconds, "role": "master", "index": 0, "event": "tables",
        "names": [name], "rows": [5], "num_bytes": [500], "replica_rows": [5],
        "replica_bytes": [500], "pulled": [10], "found": [5], "hot_keys": [[[name, 0.5]]],
        "replica_pulled": [10],
    }  # fmt: skip
    yield fact(BEGAN + seconds, "lost", name, process="worker 1", reason="killed")


def test_hostile_names_are_shown_as_text(show):
    config = {"model": {HOSTILE: HOSTILE}}
    tab = show(job(name=HOSTILE, metric=HOSTILE), config)
    assert tab.evaluate("typeof hacked") == "undefined"
    assert tab.evaluate("document.images.length") == 0
    assert tab.inner_text("#name") == HOSTILE.replace("\u202e", "\u202e")
    for part in ("#events", "#tables", "#stages", "#metrics h3"):
        assert "<img src=x" in tab.inner_text(part), part
    assert tab.inner_text("#tables").count("<img src=x") == 2  # as the table's name, and as a key
    tab.click("#config summary")
    assert "<img src=x" in tab.inner_text("#config table")


def test_each_part_says_that_there_is_no_data_yet(show):
    tab = show([fact(BEGAN, "opened", "")])
    empty = tab.locator(".empty").all_inner_texts()
    assert len(empty) >= 12, empty
    for part in PARTS:
        assert tab.inner_text(f"#{part}").strip(), part
    assert all(text.endswith(".") for text in empty)
    assert tab.locator("canvas").count() == 0


def test_everything_fits_a_phone(show):
    tab = show(job(), viewport={"width": 390, "height": 844}, is_mobile=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    wide = (
        "[...document.querySelectorAll('section')].filter(s => s.scrollWidth > s.clientWidth + 1)"
    )
    assert tab.evaluate(f"{wide}.map(s => s.innerText.slice(0, 20))") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(show, scheme):
    tab = show(job(), color_scheme=scheme)
    contrast = tab.evaluate(
        """() => {
          const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
          const light = name => {
            const hex = parseInt(charts.colour(name).slice(1), 16);
            const [r, g, b] = [hex >> 16, hex >> 8 & 255, hex & 255].map(v => linear(v / 255));
            return .2126 * r + .7152 * g + .0722 * b;
          };
          const names = ['--text', '--dim', '--accent', '--second', '--bad', '--good'];
          return Object.fromEntries(names.map(name => {
            const [a, b] = [light(name), light('--card')].sort((x, y) => y - x);
            return [name, (a + .05) / (b + .05)];
          }));
        }"""
    )
    assert min(contrast.values()) >= 4.5, contrast  # WCAG 2, level AA


def test_last_states_of_many_processes_are_shown_at_once(show):
    tab = show(job(num_workers=120))
    show_it = """ended => {
        store.ended = ended ? store.latest : null;
        store.lanes.get("worker-7").state = ended ? "left" : "leaving";
        panels.show(false);
        return [...document.querySelectorAll("#members tr")]
            .find(row => row.cells[0].textContent === "worker-7").cells[1].textContent;
    }"""
    tab.evaluate(show_it, False)
    assert tab.evaluate(show_it, True) == "left"


def test_lanes_are_drawn_again_after_there_were_none(show):
    tab = show(job())
    painted = """() => {
        const {width, height} = document.querySelectorAll("#lanes canvas")[1];
        const ctx = document.querySelectorAll("#lanes canvas")[1].getContext("2d");
        return ctx.getImageData(0, 0, width, height).data.filter(value => value).length;
    }"""
    before = tab.evaluate(painted)
    tab.evaluate("""() => {
        const kept = new Map(store.lanes);
        store.lanes.clear();
        lanes.show();
        kept.forEach((lane, name) => store.lanes.set(name, lane));
        lanes.show();
    }""")
    assert tab.evaluate(painted) == before > 0


def test_lanes_are_walked_by_keys_and_stand_in_a_table(show):
    tab = show(job())
    tab.focus("#lanes canvas[tabindex]")
    tab.keyboard.press("ArrowDown")
    for _ in range(40):
        tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#lanes .tip") == "worker-1 at 0:40: wait for data 100\u00a0%"
    summary = tab.locator("#lanes summary")
    summary.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#lanes table tbody tr")
    rows = tab.locator("#lanes table tbody tr").all_inner_texts()
    assert rows == ["worker-0\t60\t0", "worker-1\t30\t30"]


def test_every_chart_has_a_table_behind_it(show):
    tab = show(job())
    for part in ("#throughput", "#loss", "#metrics", "#lanes", "#tasks"):
        tab.locator(f"{part} summary").first.click()
        tab.wait_for_selector(f"{part} table tbody tr")


def test_the_best_evaluation_and_a_model_that_overfits_are_marked(show):
    evaluations = [
        fact(BEGAN + 30 + at, "evaluation", "", metrics={"auc": auc, "cross_entropy": 1 - auc})
        for at, auc in enumerate((0.8, 0.7, 0.6))
    ]
    told = fact(BEGAN + 40, "overfitting", "the model overfits", metric="auc", mode="max")
    tab = show([*job(), *evaluations, told])
    assert "0.8 at 0:30, now 0.6" in tab.inner_text("#tiles")
    assert tab.inner_text("#overfitting") == "the model overfits"
    assert "best cross_entropy\n0.2 at 0:30, now 0.4" in tab.inner_text("#tiles")
    is_in_box = "[...document.querySelectorAll('#metrics > div')].map(box => box.clientWidth >= "
    is_in_box += "box.querySelector('.uplot').offsetWidth)"
    assert tab.evaluate(is_in_box) == [True, True]
    tab.locator("#metrics summary").first.click()
    tab.wait_for_selector("#metrics table tbody tr")
    assert "best evaluation" in tab.inner_text("#metrics table thead")


def test_a_hundred_thousand_events_take_a_second_of_the_processor_to_paint(show):
    """Of the page's own thread: others that keep the machine busy do not count."""
    events = list(job(num_workers=500, seconds=100))
    assert len(events) >= 100_000
    session = None

    def count(tab):
        nonlocal session
        session = tab.context.new_cdp_session(tab)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

    tab = show(events, before=count)
    tab.wait_for_selector("#lanes canvas")
    assert tab.evaluate("performance.getEntriesByName('first-contentful-paint').length") == 1
    found = session.send("Performance.getMetrics")["metrics"]
    seconds = {metric["name"]: metric["value"] for metric in found}
    assert 0.0 < seconds["TaskDuration"] < 1.0, seconds
