"""Debian's Prometheus scrapes a real job: every query of the board and of the rules has data."""

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.elastic.prometheus import WAIT_SECONDS, Prometheus, needs_prometheus

pytest.importorskip("prometheus_client", reason="metrics need elasticdl-train[dashboard]")

pytestmark = pytest.mark.timeout(400)

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARD = DEPLOY / "grafana" / "elasticdl.json"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yaml"
MOST_BYTES = 1_000_000
LASTING = {"num_epochs": 1_000, "dashboard_port": 0, "metrics_port": 0}  # it is ended once seen
METRIC = re.compile(r"\b(elasticdl[_:][a-z0-9_:]+|process_[a-z_]+|up)\b")


def queries():
    """Return each query of the board, as Grafana would send it."""
    found = {}
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
            found[f"{panel['title']} {target['refId']}"] = query
    return found


def rules():
    """Return each expression of the rules, by its name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {
        rule.get("alert") or rule["record"]: rule["expr"]
        for group in groups
        for rule in group["rules"]
    }


def config_of(page, job_dir):
    """Return the configuration of `deploy/` with a job as its target."""
    config = yaml.safe_load(CONFIG.read_text())
    of_job, of_processes = config["scrape_configs"]
    of_job["static_configs"] = [{"targets": [urllib.parse.urlsplit(page["url"]).netloc]}]
    files = {"files": [f"{job_dir}/metrics/*.json"], "refresh_interval": "1s"}
    of_processes["file_sd_configs"] = [files]
    return config | {"rule_files": [str(RULES)]}


def prometheus_of(page, job_dir, folder):
    config = config_of(page, job_dir)
    return Prometheus(folder / "prometheus", config, token=token_of(page))


@needs_prometheus
def test_rules_and_configuration_are_sound(tmp_path):
    for word, path in (("rules", RULES), ("config", CONFIG)):
        copies = [shutil.copy(one, tmp_path) for one in (RULES, CONFIG)]
        assert copies
        (tmp_path / "token").write_text("x")
        done = subprocess.run(
            ["promtool", "check", word, tmp_path / path.name], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@needs_prometheus
def test_every_query_of_board_and_rules_has_data_of_a_real_job(seen_job, chaos, tmp_path):
    lasting = {"num_epochs": 1_000, "dashboard_port": 0, "evaluation_steps": 0}
    with seen_job(1_000_000, num_workers=2, **lasting) as job:
        page = page_of(job)
        with prometheus_of(page, job.job_dir, tmp_path) as prometheus:
            prometheus.until("rate(elasticdl_records_trained_total[10s]) > 0")
            chaos.processes(job.job_dir, "worker")[0].kill()
            prometheus.until('elasticdl_processes_lost_total{role="worker"} == 1')
            prometheus.until("elasticdl_table_rows")
            prometheus.until("elasticdl:goodput:ratio_rate15m")
            # The counting model has no metric of training: its board's panel stays empty.
            without = {name: query for name, query in queries().items() if "model_metric" in query}
            assert list(without) == ["Metrics of the model A"]
            for name, query in queries().items():
                if name not in without:
                    assert prometheus.until(query), (name, query)
            for name, expression in rules().items():
                for metric in set(METRIC.findall(expression)):
                    assert prometheus.until(metric), (name, metric)
            groups = prometheus.get("rules")["groups"]
            told = {rule["name"]: rule for group in groups for rule in group["rules"]}
            assert told.keys() == rules().keys()
            assert {rule["health"] for rule in told.values()} == {"ok"}, told
            target = prometheus.get("targets")["activeTargets"][0]
            assert (target["health"], target["lastError"]) == ("up", "")
    assert len(raw(page)) == 0


OF_WORKERS = ("records_trained_total", "minibatches_trained_total", "stage_seconds_total")
OF_REPLICAS = ("model_version", "table_rows", "table_keys_pulled_total", "table_keys_found_total")


@needs_prometheus
def test_prometheus_finds_each_worker_and_ps_replica_by_the_files_of_the_job(seen_job, tmp_path):
    with seen_job(60_000, num_workers=2, **LASTING) as job:
        page = page_of(job)
        with prometheus_of(page, job.job_dir, tmp_path) as prometheus:
            assert prometheus.until('count(up{job="elasticdl-processes"} == 1) == 4') == [4]
            for role, names in (("worker", OF_WORKERS), ("ps", OF_REPLICAS)):
                for name in (*names, "seconds_total", "tensor_sent_bytes_total"):
                    query = f'count(elasticdl_own_{name}{{role="{role}"}}) >= 2'
                    assert prometheus.until(query), name
                assert prometheus.until(f'count(process_cpu_seconds_total{{role="{role}"}}) == 2')
        (told, *_) = json.loads((job.job_dir / "metrics" / "ps-1.json").read_text())
        address = f"http://{told['targets'][0]}/metrics"
        assert told["targets"][0].startswith("127.0.0.1:")
        for given in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(urllib.request.Request(address, headers=given), timeout=120)
        known = {"Authorization": f"Bearer {token_of(page)}"}
        open_metrics = {**known, "Accept": "application/openmetrics-text; version=1.0.0"}
        request = urllib.request.Request(address, headers=open_metrics)
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")


def test_files_of_processes_that_are_gone_are_removed(tmp_path):
    from elasticdl.job import Role
    from elasticdl.packages.page.own_metrics import FOLDER, _announced

    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / FOLDER).mkdir()
    left = tmp_path / FOLDER / "worker-7.json"
    left.write_text(json.dumps([{"targets": ["127.0.0.1:1"], "labels": {"pid": str(gone.pid)}}]))
    with _announced(tmp_path, "job", Role.WORKER, 8, "127.0.0.1:2"):
        (path,) = (tmp_path / FOLDER).iterdir()
        (told,) = json.loads(path.read_text())
        assert told["targets"] == ["127.0.0.1:2"]
        assert (told["labels"]["role"], told["labels"]["index"]) == ("worker", "8")
    assert list((tmp_path / FOLDER).iterdir()) == []


def token_of(page):
    return urllib.parse.parse_qs(urllib.parse.urlsplit(page["url"]).query)["token"][0]


def raw(page):
    """Return the bytes of /metrics; none once the job is gone."""
    request = urllib.request.Request(
        f"{page['address']}/metrics", headers={"Authorization": f"Bearer {token_of(page)}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()
    except OSError:
        return b""


def page_of(job):
    """Return what the master has written of its page."""
    path, deadline = job.job_dir / "page.json", time.monotonic() + WAIT_SECONDS
    while not path.exists():
        assert job.process.poll() is None, job.log()
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
    page = json.loads(path.read_text())
    assert 0 < len(raw(page)) < MOST_BYTES
    return page


EVENT_SERIES = """
rule_files: [RULES]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'elasticdl_records_trained_total{instance="a"}'
        values: '100x30'
      - series: 'elasticdl_job_phase{instance="a",elasticdl_job_phase="training"}'
        values: '1x30'
      - series: 'elasticdl_process_seconds_total{instance="a",role="worker",label="train"}'
        values: '0+1x40'
      - series: 'elasticdl_process_seconds_total{instance="a",role="worker",label="idle"}'
        values: '0+59x40'
      - series: 'elasticdl_processes_lost_total{instance="a",role="worker"}'
        values: '0 0 8x30'
      - series: 'elasticdl_training_loss{instance="a"}'
        values: 'NAN'
      - series: 'process_cpu_seconds_total{instance="a"}'
        values: '0+59x40'
      - series: 'elasticdl_job_info{instance="a"}'
        values: '1x40'
      - series: 'up{instance="a",job="elasticdl"}'
        values: '0x40'
    alert_rule_test:
"""


@needs_prometheus
def test_each_alert_is_raised_when_it_should_be(tmp_path):
    """By promtool, on a job in which all is wrong that there is a rule for; and then on none."""
    names = [name for name in rules() if ":" not in name]
    at = {"ElasticdlProcessesLost": "5m"}
    rows = "".join(
        f"      - {{eval_time: {at.get(name, '29m')}, alertname: {name}, exp_alerts: []}}\n"
        for name in names
    )
    test = tmp_path / "test.yaml"
    test.write_text(EVENT_SERIES.replace("RULES", str(RULES)).replace("NAN", "NaN " * 30) + rows)
    done = subprocess.run(["promtool", "test", "rules", test], capture_output=True, text=True)
    raised = set(re.findall(r"alertname:\s*(\w+)", done.stdout + done.stderr))
    assert done.returncode != 0
    assert raised == set(names), done.stdout + done.stderr
