"""Jobs on a topic of a real broker: each message is trained once, whatever is killed."""

import base64
import contextlib
import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
import pytest

from elasticdl.checkpoints.versions import versions
from elasticdl.data.base import Records
from elasticdl.data.open import open_reader
from elasticdl.errors import DataError
from elasticdl.job import Shard
from elasticdl.packages.serving.versions import Versions
from scripts.chaos import job as counting
from tests.clusters.kafka.broker import PASSWORD, READER, STRANGER
from tests.elastic.running_job import RunningJob, elasticdl, run

pytest.importorskip("confluent_kafka", reason="make lock installs it")

from tests.packages.streams.topic_of_ids import BAD, NUM_PARTITIONS, TopicOfIds

IDS = "a:int64,b:int64,c:int64,d:int64"


class StreamJob(RunningJob):
    """The counting job on a topic."""

    def __init__(self, folder, place, **flags):
        places = (place, folder / "export", folder / "job", folder / "summary.json")
        given = {"num_epochs": 1, "num_workers": 2, **flags}
        super().__init__(folder, counting.train_command(*places, **given))

    def drain(self):
        """Have it finish with what has arrived; return its summary."""
        run(elasticdl("stop", self.job_dir, "--drain"))
        return self.finish()

    def checkpointed(self):
        """Yield what each replica says of the checkpoints of the job's own."""
        for manifest in (self.job_dir / "recovery").glob("*/manifest.json"):
            with contextlib.suppress(FileNotFoundError):  # a newer one has replaced it
                yield from json.loads(manifest.read_text())["replicas"]

    def check(self, summary, topic):
        """Each message that was committed counts once: by the model, and by the ledger."""
        (line,) = summary["ledger"]
        assert (line["records"], line["trained_once"]) == (topic.num_messages,) * 2
        assert (line["repeated"], line["lost"]) == (0, 0)
        counts = counting.counts_of(self.folder / "export")
        np.testing.assert_array_equal(counts, topic.occurrences)

    def check_windows(self, summary, topic):
        """Each message is in one window of event time, and each window is told once."""
        windows = summary["windows"]
        assert sum(window["num_messages"] for window in windows) == topic.num_messages
        assert all(window["is_over"] for window in windows)
        told = [event["start"] for event in self.events("window")]
        assert sorted(told) == [window["start"] for window in windows]
        assert windows[-1]["start"] <= summary["watermark"] <= time.time()


@pytest.mark.long
def test_a_topic_is_read_as_it_is_and_never_made_by_asking(kafka_broker):
    topic = TopicOfIds(kafka_broker, "read", seed=1)
    topic.send(1000)
    reader = open_reader(f"kafka://{kafka_broker.address}/read?end=latest")
    shards = reader.shards()
    assert [shard.name for shard in shards] == [f"read-{n}" for n in range(NUM_PARTITIONS)]
    num_read, positions = 0, 0
    for shard in shards:
        for start in range(0, shard.end, 37):
            part = Shard(shard.name, start, min(start + 37, shard.end))
            records: list[Records] = list(reader.read(part))
            num_read += sum(map(len, records))
            positions += part.num_records
    assert num_read == topic.num_messages
    assert positions > num_read
    counted = run(elasticdl("data", "count", f"kafka://{kafka_broker.address}/read")).stdout
    assert counted.splitlines()[-1].split()[2:] == ["1,000", "0", f"{positions:,}"]
    other = open_reader(f"kafka://{kafka_broker.address}/raed?end=latest")
    with pytest.raises(DataError, match="there is no topic raed; did you mean read"):
        other.check()
    with pytest.raises(DataError, match="there is no topic raed"):
        other.check()


def test_an_endless_job_whose_broker_is_killed_trains_each_message_once(
    broker_of_its_own, tmp_path
):
    topic = TopicOfIds(broker_of_its_own, "small", seed=6)
    topic.send(1_500)
    topic.send_bad(5)
    place = f"kafka://{broker_of_its_own.address}/small?format=csv&delimiter=space&columns={IDS}"
    place += "&commit=board"
    folder = tmp_path / "bad"
    flags = {"num_workers": 1, "num_ps_pods": 1, "bad_message_dir": folder}
    flags |= {"max_lateness": "1h", "on_late": "aside", "metrics_window": "1s"}
    with StreamJob(tmp_path, place, **flags) as job:
        job.until_trained(topic.num_messages - 1)
        broker_of_its_own.kill()
        broker_of_its_own.start()
        topic.send(1_000)
        topic.send_bad(5)
        topic.send_late(7)
        summary = job.drain()
    job.check(summary, topic)
    job.check_windows(summary, topic)
    assert (summary["num_unreadable"], summary["num_late"]) == (topic.num_bad, topic.num_late)
    assert topic.lags_of("board") == [0] * NUM_PARTITIONS
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    bad = list(map(json.loads, lines))
    assert len({(each["partition"], each["offset"]) for each in bad}) == len(bad)
    late = [each for each in bad if each["why"].startswith("late: its event time is")]
    assert [base64.b64decode(each["value"]) for each in late] == [b"1 2 3 4"] * topic.num_late
    bad = [each for each in bad if each not in late]
    assert [base64.b64decode(each["value"]) for each in bad] == [BAD] * topic.num_bad
    assert {each["why"] for each in bad} == {"has 3 fields, expected 4"}
    assert job.events("messages late")[0]["partition"].startswith("small-")
    assert job.events("unreadable")[0]["partition"].startswith("small-")


@pytest.mark.long
def test_a_topic_is_read_from_a_time_on(kafka_broker):
    topic = TopicOfIds(kafka_broker, "times", seed=10)
    topic.send(400)
    threading.Event().wait(0.01)  # times of messages have milliseconds
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    topic.send(100)
    reader = open_reader(f"kafka://{kafka_broker.address}/times?start={now}&end=latest")
    chunks = [chunk for shard in reader.shards() for chunk in reader.read(shard)]
    assert sum(map(len, chunks)) == 100
    assert all(min(chunk.times) >= datetime.fromisoformat(now).timestamp() for chunk in chunks)
    late = open_reader(f"kafka://{kafka_broker.address}/times?start=2999-01-01T00:00Z&end=latest")
    assert not any(shard.num_records for shard in late.shards())


@pytest.mark.long
def test_a_topic_with_an_end(kafka_broker, tmp_path):
    topic = TopicOfIds(kafka_broker, "bounded", seed=2)
    topic.send(12_000)
    with StreamJob(tmp_path, f"kafka://{kafka_broker.address}/bounded?end=latest") as job:
        summary = job.finish()
    job.check(summary, topic)
    assert not summary["windows"]


@pytest.mark.long
def test_a_job_that_failed_because_of_unreadable_messages_goes_on_without_them(
    kafka_broker, tmp_path
):
    topic = TopicOfIds(kafka_broker, "unreadable", seed=14)
    topic.send(2_000)
    place = f"kafka://{kafka_broker.address}/unreadable?format=csv&delimiter=space&columns={IDS}"
    with StreamJob(tmp_path, place) as job:
        job.until_trained(2_000 - 1)
        topic.send_bad(2)
        topic.send(2_000)
        run(elasticdl("stop", job.job_dir, "--drain"))
        assert job.process.wait() == 1
    assert "--bad_message_dir=FOLDER the job goes on without such messages" in job.printed()
    with StreamJob(tmp_path, place, bad_message_dir=tmp_path / "bad") as job:
        summary = job.finish()
    job.check(summary, topic)
    assert summary["num_unreadable"] == topic.num_bad


@pytest.mark.long
@pytest.mark.timeout(600)
def test_worker_master_and_broker_are_killed_and_each_message_is_trained_once(
    broker_of_its_own, tmp_path
):
    """400,000 messages, half of them in transactions, beside 200,000 that are aborted."""
    broker = broker_of_its_own
    topic = TopicOfIds(broker, "endless", seed=3)
    topic.send(80_000)
    place = f"kafka://{broker.address}/endless?start=earliest"
    flags = {"metrics_window": "1h", "max_lateness": "6h", "on_late": "drop"}
    flags |= {"export_dir": tmp_path / "exports", "export_every": "0.3s"}
    with StreamJob(tmp_path, place, **flags) as job:
        job.until_trained(20_000)
        sending = topic.keep_sending(16, 20_000, 0.5)
        job.send("worker")
        job.until_trained(100_000)
        broker.kill()
        broker.start()
        topic.send_late(50)
        job.until_trained(160_000)
        job.send("master")
        job.until_trained(240_000)
        job.send("ps")
        topic.send_late(50)
        sending.join()
        status = json.loads(run(elasticdl("status", job.job_dir, "--json")).stdout)
        assert len(status["partitions"]) == NUM_PARTITIONS
        summary = job.drain()
    assert topic.num_messages == 400_000
    job.check(summary, topic)
    job.check_windows(summary, topic)
    assert summary["num_late"] == topic.num_late
    assert all(partition["lag"] == 0 for partition in summary["partitions"])
    served = Versions(tmp_path / "exports", tmp_path).next(None)
    rows = np.zeros((counting.NUM_IDS, 2), np.float32)
    served.tables.look_up(0, np.arange(counting.NUM_IDS), 0.0, rows)
    np.testing.assert_array_equal(rows[:, 0], topic.occurrences)
    assert served.manifest.number > 5


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_order_of_each_partition_is_kept_whoever_is_killed(kafka_broker, tmp_path):
    """Each row counts the updates out of order. One partition has one such message."""
    topic = TopicOfIds(kafka_broker, "ordered", seed=12)
    num_sent = 0

    def send(count, last=0):
        nonlocal num_sent
        numbers = range(num_sent, num_sent + count)
        topic.send_as_they_are(
            f"{n % NUM_PARTITIONS} {n + 1 - last * (n % 4 == 3)}" for n in numbers
        )
        num_sent += count

    send(4_000)
    place = f"kafka://{kafka_broker.address}/ordered?order=partition"
    zoo = {"model_zoo": Path(__file__).parent, "model_def": "order_model.forward"}
    with StreamJob(tmp_path, place, **zoo, recovery_seconds=1) as job:
        for role in ("worker", "ps", "master"):
            job.until_trained(num_sent - 3_000)
            job.send(role)
            send(6_000)
        send(4_000, last=num_sent - 1)
        summary = job.drain()
    (line,) = summary["ledger"]
    assert (line["trained_once"], line["repeated"], line["lost"]) == (num_sent, 0, 0)
    rows = counting.read_model(tmp_path / "export", NUM_PARTITIONS).rows[:, 0]
    assert rows.tolist() == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.long
def test_messages_of_many_records_are_trained_once_each_whoever_is_killed(kafka_broker, tmp_path):
    topic = TopicOfIds(kafka_broker, "batches", seed=11, rows_of_message=40)
    topic.send(8_000)
    place = f"kafka://{kafka_broker.address}/batches?format=arrow&columns={IDS}"
    with StreamJob(tmp_path, place, feed="feed_columns", recovery_seconds=1) as job:
        job.until_trained(3_000)
        job.send("worker")
        job.send("ps")
        topic.send(2_000)
        summary = job.drain()
    job.check(summary, topic)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_replicas_forget_tasks_that_are_done_for_good_and_are_killed_then(kafka_broker, tmp_path):
    topic = TopicOfIds(kafka_broker, "months", seed=9)
    topic.send(30_000)
    flags = {"num_minibatches_per_task": 1, "recovery_seconds": 1}
    with StreamJob(tmp_path, f"kafka://{kafka_broker.address}/months", **flags) as job:
        job.until_trained(29_000)
        topic.send(4_000)
        while not any(entry.get("first_task") for entry in job.checkpointed()):
            assert job.is_running(), job.log()
            topic.send(100)
            threading.Event().wait(0.5)
        job.send("ps")
        topic.send(4_000)
        job.until_trained(topic.num_messages - 1)
        job.send("master")
        summary = job.drain()
    job.check(summary, topic)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_partition_that_comes_is_read_and_what_was_deleted_unread_is_told(kafka_broker, tmp_path):
    """And a job that failed because of that goes on with `--on_gap=skip`."""
    topic = TopicOfIds(kafka_broker, "gaps", seed=13)
    place = f"kafka://{kafka_broker.address}/gaps"
    counts = np.zeros(counting.NUM_IDS)

    def send(ids, partition=None):
        topic.send_as_they_are((" ".join([str(n)] * 4) for n in ids), partition)
        counts[np.array(ids)] += 4

    send(range(2_000))
    with StreamJob(tmp_path, place) as job:
        job.until_trained(2_000 - 1)
        run(elasticdl("stop", job.job_dir, "--pause"))
    send(range(2_000, 4_000))
    topic.forget(partition=1, before=700)
    counts[2_001:2_800:4] = 0  # those at the positions from 500 on
    with StreamJob(tmp_path, place) as job:
        assert job.process.wait() == 1
    assert "gaps-1: positions [500, 700) were deleted" in job.printed()
    with StreamJob(tmp_path, place, on_gap="skip") as job:
        job.until_trained(3_800 - 1)
        topic.grow(NUM_PARTITIONS + 1)
        send(range(4_000, 5_000), partition=NUM_PARTITIONS)
        job.until_trained(4_800 - 1)
        summary = job.drain()
    (line,) = summary["ledger"]
    assert (line["trained_once"], line["repeated"], line["lost"]) == (4_800, 0, 0)
    np.testing.assert_array_equal(counting.counts_of(tmp_path / "export"), counts)
    assert [each["skipped"] for each in summary["partitions"]] == [0, 200, 0, 0, 0]


ONLINE = Path(__file__).parents[3] / "examples" / "online"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_signal_that_changes_each_hour_is_followed_as_windows_of_event_time_show(
    kafka_broker, tmp_path, load_module
):
    """Each window is scored before it is trained: of an hour the first one is the worst.

    And each full hour of event time has its checkpoint, as soon as it is passed.
    """
    clicks, topic = (
        load_module(ONLINE / "clicks.py").Clicks(),
        TopicOfIds(kafka_broker, "clicks", 8),
    )

    def send(hour):
        """Send 10,000 clicks that fill an hour evenly."""
        events = clicks.make(10_000, hour)
        topic.send_as_they_are(
            json.dumps({**json.loads(message), "at": 1_699_200_000 + 3600 * (hour + at / 10_000)})
            for at, message in enumerate(events.messages())
        )

    columns = "user:int64,item:int64,clicked:int64"
    place = f"kafka://{kafka_broker.address}/clicks?format=json&columns={columns}&event_time=at"
    words = elasticdl(
        "train",
        training_data=place,
        distribution_strategy="ParameterServerStrategy",
        num_workers=2,
        num_ps_pods=1,
        minibatch_size=128,
        num_minibatches_per_task=2,
        metrics_window="15m",
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_event_time="1h",
        keep_checkpoint_max=0,
        model_zoo=ONLINE,
        model_def="model.forward",
        job_dir=tmp_path / "job",
        summary=tmp_path / "summary.json",
    )

    def num_checkpoints():
        return len(versions(tmp_path / "checkpoints"))

    with RunningJob(tmp_path, words) as job:
        for hour in range(6):  # else several may pass while one checkpoint is written
            send(hour)
            job.until_trained(10_000 * (hour + 1) - 1, lambda due=hour: num_checkpoints() == due)
        run(elasticdl("stop", job.job_dir, "--drain"))
        windows = job.finish()["windows"]
    assert [window["num_messages"] for window in windows] == [2_500] * 24
    told = [(event["start"], event["metrics"]) for event in job.events("window")]
    assert sorted(told) == [(window["start"], window["metrics"]) for window in windows]
    losses = [window["loss"] for window in windows]  # of all messages; an AUC is of some
    first, last = np.mean(losses[4::4]), np.mean(losses[7::4])
    assert last < first - 0.03, losses
    assert np.mean([window["metrics"]["auc"] for window in windows[1:]]) > 0.65
    assert num_checkpoints() == 6  # one at each full hour, and the last


@pytest.mark.long
def test_an_empty_topic_is_waited_for_and_a_deleted_one_is_told(kafka_broker, tmp_path):
    topic = TopicOfIds(kafka_broker, "empty", seed=5)
    place = f"kafka://{kafka_broker.address}/empty"
    with StreamJob(tmp_path, place, num_workers=1) as job:
        job.until_event("registered", "worker 0")
        topic.send(1_000)
        job.until_trained(topic.num_messages - 1)
        topic.delete()
        assert job.process.wait() == 1
    assert "there is no topic empty" in job.printed()


def credentials(broker, **changes):
    """Return the text of a file of credentials for the port that asks for them."""
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": broker.certificate,
        "sasl.mechanisms": "PLAIN",
        "sasl.username": READER,
        "sasl.password": PASSWORD,
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items() if value is not None)


@pytest.mark.long
def test_a_job_reads_by_tls_with_a_password_that_is_nowhere_else(secure_broker, tmp_path):
    topic = TopicOfIds(secure_broker, "secret", seed=7)
    topic.send(2_000)
    file = tmp_path / "credentials"
    file.write_text(credentials(secure_broker))
    place = f"kafka://{secure_broker.secure_address}/secret?credentials=file:{file}"
    with StreamJob(tmp_path, place, num_workers=1, num_ps_pods=1) as job:
        job.until_trained(topic.num_messages - 1)
        arguments = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
        summary = job.drain()
    job.check(summary, topic)
    assert not any(PASSWORD in word for words in arguments for word in words)
    assert PASSWORD not in job.log()
    for path in (tmp_path / "job").rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.long
def test_credentials_that_are_wrong_are_told(secure_broker, tmp_path):
    file = tmp_path / "credentials"
    for changes, words in (
        ({"sasl_password": "other"}, "do not agree.*Invalid username or password"),
        ({"sasl_username": STRANGER}, "may not read it"),
        ({"ssl_ca_location": None}, "do not agree.*certificate"),
        ({"sasl_mechanisms": "SCRAM-SHA-256"}, "do not agree.*SCRAM-SHA-256"),
        ({"sasl_pasword": "x"}, "does not take its settings.*sasl.pasword"),
        ({"ssl_ca_location": "/not/there"}, "does not take its settings.*ssl.ca.location"),
    ):
        file.write_text(credentials(secure_broker, **changes))
        place = f"kafka://{secure_broker.secure_address}/secret?credentials=file:{file}"
        with pytest.raises(DataError, match=words) as raised:
            open_reader(place).check()
        assert PASSWORD not in str(raised.value)
    reader = open_reader(f"kafka://{secure_broker.secure_address}/secret")
    with pytest.raises(DataError, match=r"no broker answers.*if it wants TLS, give credentials"):
        reader.check()
