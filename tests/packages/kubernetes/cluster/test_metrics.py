"""Prometheus, outside of the pods, scrapes every role of a job by TLS, as `deploy/` has it."""

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from scripts.job_lines import processes
from tests.clusters.kubernetes.namespace import Namespace
from tests.elastic.prometheus import Prometheus, needs_prometheus
from tests.packages.kubernetes.cluster.job import ClusterJob

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).resolve().parents[4] / "deploy" / "prometheus"
PORT = 9464
ROLES = {"master": 1, "worker": 3, "ps": 2}


@pytest.fixture
def job(namespace: Namespace, tmp_path):
    job = ClusterJob(namespace, tmp_path)
    yield job
    job.close()


def found_by_kubernetes(pods):
    """Return what Prometheus' discovery says of pods, for `file_sd_configs`."""

    def words(what, given):
        start = f"__meta_kubernetes_pod_{what}_"
        return {start + re.sub(r"\W", "_", name): value for name, value in given.items()}

    return [
        {
            "targets": [pod["status"]["podIP"]],
            "labels": {
                "__meta_kubernetes_pod_ip": pod["status"]["podIP"],
                "__meta_kubernetes_pod_phase": pod["status"]["phase"],
                **words("label", pod["metadata"]["labels"]),
                **words("annotation", pod["metadata"]["annotations"]),
            },
        }
        for pod in pods
    ]


def configuration():
    """Return that of `deploy/`, which is given the pods: Debian's has no discovery of its own."""
    config = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())
    for each in config["scrape_configs"]:
        del each["kubernetes_sd_configs"]
        each["file_sd_configs"] = [{"files": ["pods.json"]}]
    return config | {"rule_files": [str(DEPLOY / "alerts.yaml")]}


@needs_prometheus
def test_every_role_of_a_job_is_scraped_by_tls_from_outside_of_its_pod(job, tmp_path):
    job.halt()
    job.start_staged(metrics_port=PORT, dashboard_port=0)
    job.read_until(processes(3, 2))
    pods = [pod for role in ROLES for pod in job.pods(role)]
    page = json.loads((job.folder / "job" / "page.json").read_text())
    token = urllib.parse.parse_qs(urllib.parse.urlsplit(page["url"]).query)["token"][0]
    secret = job.namespace.cluster.api.get(job.namespace.path("secrets", f"{job.name}.authority"))
    authority = base64.b64decode(secret["data"]["ca.pem"]).decode()
    found = json.dumps(found_by_kubernetes(pods))
    files = {"token": token, "ca.pem": authority, "pods.json": found}
    with Prometheus(tmp_path / "prometheus", configuration(), **files) as prometheus:
        for name, count in (("", 1), ("-workers", 3), ("-ps", 2)):
            query = f'count(up{{job="elasticdl{name}"}} == 1) == {count}'
            assert prometheus.until(query) == [count]
        job.go_on()
        assert prometheus.until("elasticdl_records_trained_total > 0")
        assert prometheus.until("sum(elasticdl_own_records_trained_total) > 0")
        assert prometheus.until('count(elasticdl_own_table_rows{index=~"0|1"} > 0) == 2') == [2]
        targets = prometheus.get("targets")["activeTargets"]
        assert {target["lastError"] for target in targets} == {""}
        addresses = {target["scrapeUrl"] for target in targets}
    assert addresses == {f"https://{pod['status']['podIP']}:{PORT}/metrics" for pod in pods}
    assert job.end() == 0, "".join(job.lines)


@needs_prometheus
def test_who_has_no_token_or_speaks_no_tls_is_told_nothing(job, tmp_path):
    job.halt()
    job.start_staged(num_workers=1, num_ps_pods=1, metrics_port=PORT, dashboard_port=0)
    job.read_until(processes(1, 1))
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    for role in ROLES:
        (pod,) = job.pods(role)
        where = f"{pod['status']['podIP']}:{PORT}/metrics"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"https://{where}", timeout=20, context=unchecked)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://{where}", timeout=20)
    job.go_on()
    assert job.end() == 0, "".join(job.lines)
