"""Online learning from end to end, in one command: `python examples/online/run.py --minutes=5`.

Clicks with a drifting signal go to a Kafka broker. A job trains on them as they come and exports
each change. A server follows the export and scores each event before it is trained. A second server
also scores each event. Its model was trained once, on the first hour, and is never updated.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from confluent_kafka import Producer  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from clicks import NOBODY, Clicks, Events  # noqa: E402  # found beside this file
from elasticdl.job.status import JobStatus  # noqa: E402
from elasticdl.rpc.client import JobClient  # noqa: E402
from elasticdl.runtime.process import PAGE_FILE  # noqa: E402
from scripts.chaos.job import connect  # noqa: E402
from tests.clusters.kafka.broker import KafkaBroker  # noqa: E402
from tests.clusters.kafka.jars import missing  # noqa: E402

TOPIC, NUM_PARTITIONS = "clicks", 2
MESSAGES = "format=json&columns=user:int64,item:int64,clicked:int64"
MODEL = {"model_zoo": ROOT / "examples", "model_def": "online.model.forward"}
TICK_SECONDS = 0.05  # events are made, scored and sent twenty times a second
LINE_SECONDS = 5.0
PAGE = """<!doctype html><meta charset="utf-8"><title>Online learning</title>{refresh}
<style>
body {{ font: 15px sans-serif; margin: 2em }}
td, th {{ padding: 2px 14px; text-align: right }}
</style>
<h1>Online learning</h1>{picture}
<p>AUC of events before anybody trained them; lag in messages that are not trained yet;
seconds from an event to a served model that has it.
<table><tr>{names}</tr>
{rows}</table>
"""
COLUMNS = ("hour", "AUC", "trained once", "lag", "half fresh after", "99 % fresh after")
START_SECONDS = 240.0  # for TensorFlow to be loaded, on a busy machine
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def main() -> None:
    """Run the example and end all of its processes; the files stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of the drifting stream")
    parser.add_argument("--rate", type=int, default=2000, help="events a second")
    parser.add_argument("--hour", type=float, default=20.0, help="seconds that an hour takes")
    parser.add_argument("--export_every", default="0.2s", help="of the job")
    parser.add_argument("--folder", type=Path, default=ROOT / "demo" / "online")
    try:
        run(parser.parse_args())
    finally:
        end_children()


def end_children() -> None:
    """End the processes that no block ends: Ctrl-C may come while `Popen` starts one."""
    children = psutil.Process().children()
    for child in children:
        child.terminate()
    psutil.wait_procs(children)


def run(args: argparse.Namespace) -> None:
    """Start all processes, let clicks flow, and end all; the results stay in the folder."""
    folder = args.folder.resolve()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "kafka").is_dir():
        sys.exit(f"--folder: expected a new folder, or one of this example, found {folder}")
    if why := missing():
        sys.exit(why)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    clicks = Clicks()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with contextlib.ExitStack() as ends:
        parts = start(args, folder, clicks, ends)
        say(f"AUC, lag and freshness are on the page file://{folder / 'online.html'}")
        story = flow(args, parts, clicks)
        say("$ elasticdl stop --drain")
        subprocess.run(command("stop", folder / "job", "--drain"), check=True)
        if parts.job.wait(START_SECONDS):
            sys.exit(f"the job has failed; see {folder / 'job.log'}")
    story.draw(folder / "online.png")
    story.write_page(folder, is_over=True)
    check(json.loads((folder / "summary.json").read_text()), parts.topic.num_sent, story)
    say(f"""
{folder / "online.png"}  both AUCs, and how fresh the served model was
{folder / "job"}  logs and events of the job: elasticdl report {folder / "job"}
{folder / "exports"}  the model as it was served last: elasticdl exports {folder / "exports"}""")


def start(
    args: argparse.Namespace, folder: Path, clicks: Clicks, ends: contextlib.ExitStack
) -> Parts:
    """Start the broker, the job and both servers; `ends` will end them."""
    say("a Kafka broker starts")
    topic = Topic(ends.enter_context(KafkaBroker(folder / "kafka")).address)
    topic.send(clicks.make(int(args.rate * args.hour)))

    say(f"a job trains on {topic.num_sent:,} clicks of the first hour, and goes on with what comes")
    flags = {
        "training_data": topic.place,
        "distribution_strategy": "ParameterServerStrategy",
        "num_ps_pods": 2,
        "minibatch_size": 256,
        "num_minibatches_per_task": 4,
        "export_dir": folder / "exports",
        "export_every": args.export_every,
        "metrics_window": f"{args.hour / 4:g}s",  # a quarter of an hour
        "dashboard_port": 0,
        "job_dir": folder / "job",
        "summary": folder / "summary.json",
    }
    job = ends.enter_context(started("train", folder / "job.log", **MODEL, **flags))
    followed = ends.enter_context(served(folder / "exports", poll_seconds=0.02))

    say("another job trains on the same clicks, once")
    flags = {"training_data": f"{topic.place}&end=latest", "minibatch_size": 256}
    flags |= {"export_dir": folder / "once", "export_every": "1h"}
    with started("train", folder / "once.log", **MODEL, **flags) as once:
        if once.wait(START_SECONDS):
            sys.exit(f"the model cannot be trained; see {folder / 'once.log'}")
    kept = ends.enter_context(served(folder / "once"))
    followed.wait()
    kept.wait()
    status = connect(folder / "job", job)
    if status is None:
        sys.exit(f"the job has ended; see {folder / 'job.log'}")
    page = folder / "job" / PAGE_FILE  # it comes with an extra
    if page.exists():
        say(f"the job's page is at {json.loads(page.read_text())['url']}")
    ends.callback(status.close)
    return Parts(topic, job, status, followed, kept)


def flow(args: argparse.Namespace, parts: Parts, clicks: Clicks) -> Story:
    """Make events, score them and send them to the job, for some minutes."""
    say(f"clicks flow for {args.minutes:g} minutes; an hour takes {args.hour:g} s")
    story = Story()
    began = last = said = time.monotonic()
    while last < began + 60 * args.minutes:
        time.sleep(max(0.0, last + TICK_SECONDS - time.monotonic()))
        now = time.monotonic()
        hour = (now - began) / args.hour
        events = clicks.make(max(1, int(args.rate * (now - last))), int(hour))
        kept, _ = parts.kept.score(events)
        followed, is_known = parts.followed.score(events, story.waiting)
        story.scored(events, kept, followed, is_known)
        parts.topic.send(events)
        story.sent(events)
        last = now
        if now >= said + LINE_SECONDS:
            said = now
            say(story.line(hour, parts.status.status(), parts.followed.version))
            story.write_page(args.folder.resolve(), is_over=False)
    return story


# --- parts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The running parts. `status` is a client of the job's master, as in `elasticdl status`."""

    topic: Topic
    job: Popen
    status: JobClient
    followed: Server
    kept: Server


class Topic:
    """The topic of the broker for the clicks."""

    def __init__(self, address: str) -> None:
        servers = {"bootstrap.servers": address, "log_level": 0}
        admin = AdminClient(servers)
        admin.create_topics([NewTopic(TOPIC, NUM_PARTITIONS)])[TOPIC].result(60)
        self.place = f"kafka://{address}/{TOPIC}?{MESSAGES}"
        self._producer = Producer({**servers, "enable.idempotence": True})
        self.num_sent = 0

    def send(self, events: Events) -> None:
        """Send events. The broker has them when this returns."""
        for number, message in enumerate(events.messages()):
            self._producer.produce(TOPIC, message, partition=number % NUM_PARTITIONS)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        self.num_sent += len(events.user)


class Server:
    """A client of a process `elasticdl serve`."""

    def __init__(self, process: Popen, log: Path) -> None:
        self._process, self._log = process, log
        self.version = 0

    def wait(self) -> None:
        """Wait until the server serves a version."""
        deadline = time.monotonic() + START_SECONDS
        while not re.search(r"version \d+ .* is served", text := self._log.read_text()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"nothing is served; see {self._log}")
            time.sleep(0.1)
        address = re.search(r"listens at http://(\S+)", text)[1]
        self._connection = http.client.HTTPConnection(address, timeout=60)

    def score(self, events: Events, others: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of events, and whether the model knows some other users."""
        user = [*events.user.tolist(), *others, NOBODY]
        item = [*events.item.tolist(), *[0 for _ in others], 0]
        body = json.dumps({"inputs": {"user": column(user), "item": column(item)}})
        self._connection.request("POST", "/v1/predict", body)
        answer = json.loads(self._connection.getresponse().read())
        if "error" in answer:
            sys.exit(f"elasticdl serve: {answer['error']}")
        scores, self.version = np.array(answer["predictions"])[:, 0], answer["version"]
        # All rows begin at zero, so users without a trained row have the score of an unknown user.
        is_known = np.abs(scores[len(events.user) : -1] - scores[-1]) > 1e-5
        return scores[: len(events.user)], is_known


def column(values: list[int]) -> list[list[int]]:
    """Return values as a column for the model, one in each row."""
    return [[value] for value in values]


@contextlib.contextmanager
def started(name: str, log: Path, *words: object, **flags: object) -> Iterator[Popen]:
    """Run a command of elasticdl; it ends with the block."""
    environment = {**os.environ, **ONE_THREAD}
    with log.open("wb") as file:
        all_words = command(name, *words, **flags)
        process = Popen(all_words, stdout=file, stderr=file, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def served(export: Path, **flags: object) -> Iterator[Server]:
    """Serve an export as soon as it exists."""
    log = export.with_suffix(".log")
    with started("serve", log, export, port=0, **flags) as process:
        yield Server(process, log)


def command(name: str, *words: object, **flags: object) -> list[str]:
    """Return the words of a command of elasticdl."""
    given = [f"--{flag}={value}" for flag, value in flags.items()]
    return [sys.executable, "-m", "elasticdl.cli.main", name, *map(str, words), *given]


# --- what is told --------------------------------------------------------------------------------


@dataclass
class Window:
    """The measurements between two printed lines."""

    hour: float = 0.0
    lag: int = 0
    clicked: list[np.ndarray] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)
    followed: list[np.ndarray] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)

    def aucs(self) -> tuple[float, float]:
        """Return the AUC of the updated model, and of the model that was trained once."""
        clicked = np.concatenate(self.clicked)
        return tuple(auc(clicked, np.concatenate(s)) for s in (self.followed, self.kept))

    def row(self, aucs: tuple[float, float]) -> str:
        """Return the window as a row of the page."""
        fresh = [f"{value:.2f} s" for value in np.percentile(self.fresh or [np.nan], [50, 99])]
        cells = (f"{self.hour:.1f}", *(f"{value:.3f}" for value in aucs), f"{self.lag:,}", *fresh)
        return f"<tr><td>{'<td>'.join(cells)}</tr>"


class Story:
    """Collects scores of events before their training, and the delay until they are served."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._window = Window()
        self._rows: list[str] = []  # of the page
        self._sent: dict[int, float] = {}  # new users that are not known so far, and since when

    @property
    def waiting(self) -> tuple[int, ...]:
        """New users for which the served model has no row so far."""
        return tuple(self._sent)

    def scored(self, events: Events, kept, followed, is_known) -> None:  # type: ignore[no-untyped-def]
        """Take in scores of events before their training, and the new users that are known."""
        now, window = time.monotonic(), self._window
        window.clicked.append(events.clicked)
        window.kept.append(kept)
        window.followed.append(followed)
        for user in np.array(self.waiting)[is_known].tolist():
            window.fresh.append(now - self._sent.pop(user))

    def sent(self, events: Events) -> None:
        """Note that events are on their way; the first has a new user."""
        self._sent[int(events.user[0])] = time.monotonic()

    def line(self, hour: float, job: JobStatus, version: int) -> str:
        """Begin another window; return the line about the last one."""
        window, self._window = self._window, Window()
        window.hour = hour
        window.lag = sum(partition.lag for partition in job.partitions)
        self.windows.append(window)
        followed, kept = window.aucs()
        self._rows.append(window.row((followed, kept)))
        return (
            f"hour {hour:4.1f}  AUC {followed:.3f}, trained once {kept:.3f}  lag {window.lag:5,}  "
            f"{job.records_per_second:6,.0f} records/s  version {version:4}  "
            f"fresh after {words(window.fresh)}"
        )

    def write_page(self, folder: Path, is_over: bool) -> None:
        """Write the page, newest window first. A browser reloads it until the example ends."""
        text = PAGE.format(
            refresh="" if is_over else f'<meta http-equiv="refresh" content="{LINE_SECONDS:g}">',
            picture='<img src="online.png" width="700">' if is_over else "",
            names="".join(f"<th>{name}" for name in COLUMNS),
            rows="\n".join(reversed(self._rows)),
        )
        written = folder / "online.html.new"
        written.write_text(text)
        written.replace(folder / "online.html")

    def draw(self, path: Path) -> None:
        """Draw both AUCs and the freshness of the served model."""
        from matplotlib.figure import Figure

        hours = [window.hour for window in self.windows]
        figure = Figure(figsize=(7.0, 4.5), layout="constrained")
        above, below = figure.subplots(2, sharex=True, height_ratios=(2, 1))
        followed, kept = zip(*(window.aucs() for window in self.windows), strict=True)
        above.plot(hours, followed, label="follows the stream")
        above.plot(hours, kept, label="trained once, on the first hour")
        above.set_ylabel("AUC before training")
        above.legend()
        for percent in (99, 50):
            values = [np.percentile(window.fresh or [np.nan], percent) for window in self.windows]
            below.plot(hours, values, label=f"p{percent}")
        below.set_ylabel("event to served, s")
        below.set_xlabel("hour of event time; the fashion changes with each")
        below.set_ylim(bottom=0.0)
        below.legend()
        for axes in (above, below):
            axes.grid(alpha=0.3)
        figure.savefig(path, dpi=150)


def words(seconds: list[float]) -> str:
    """Return the median and the 99th percentile."""
    if not seconds:
        return "? s"
    return f"{np.percentile(seconds, 50):.2f} s (p99 {np.percentile(seconds, 99):.2f})"


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the chance that a click has a higher score than an event without a click."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    num_clicks = labels.sum()
    over = rank[labels == 1].sum() - num_clicks * (num_clicks + 1) / 2
    return float(over / (num_clicks * (len(labels) - num_clicks)))


def check(summary: dict, num_sent: int, story: Story) -> None:  # type: ignore[type-arg]
    """Print the result. An event that was lost or trained twice is an error."""
    (line,) = summary["ledger"]
    say(
        f"clicks sent {num_sent:,}, trained once {line['trained_once']:,}, "
        f"repeated {line['repeated']:,}, lost {line['lost']:,}"
    )
    fresh = [seconds for window in story.windows for seconds in window.fresh]
    say(f"from a click to a served model that has it: {words(fresh)}, of {len(fresh):,} new users")
    if (line["trained_once"], line["repeated"], line["lost"]) != (num_sent, 0, 0):
        sys.exit("the ledger is not exact")


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; everything is ended")
