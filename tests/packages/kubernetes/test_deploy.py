"""What is in deploy/ is built by kustomize, and names what jobs on Kubernetes make."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from elasticdl.cli.main import run_command
from elasticdl.packages.kubernetes import names

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
FOLDERS = sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))
NAME = "my-clicks"
ROLES = ("master", "worker", "ps", "modelserver")


def documents(path):
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_file_of_a_kustomization_is_there(folder):
    (found,) = documents(folder / "kustomization.yaml")
    files = [*found.get("resources", ())]
    files += [name for made in found.get("configMapGenerator", ()) for name in made["files"]]
    assert files
    for name in files:
        assert (folder / name).exists(), name


def build(folder, tmp_path):
    """Return what `kubectl apply -k` applies, of a job called NAME, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not there")
    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy)
    (copy / folder / "kustomization.yaml").resolve(strict=True)
    settings = copy / folder / "job.yaml"
    if settings.exists():
        settings.write_text(settings.read_text().replace("name: JOB", f"name: {NAME}"))
    done = subprocess.run(
        ["kubectl", "kustomize", str(copy / folder)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_a_namespace_gets_the_rights_that_the_command_prints(tmp_path, capsys):
    assert run_command(["rbac"]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    built = build(".", tmp_path)
    policy = built.pop(("NetworkPolicy", "elasticdl"))
    assert sorted(built) == sorted((each["kind"], each["metadata"]["name"]) for each in printed)
    assert policy["spec"]["podSelector"] == {"matchLabels": {"app": "elasticdl"}}


def test_priority_classes_are_of_the_cluster(tmp_path):
    assert sorted(build("cluster", tmp_path)) == [
        ("PriorityClass", "high"),
        ("PriorityClass", "low"),
    ]


def test_budgets_are_of_one_job(tmp_path):
    built = build("job", tmp_path)
    assert sorted(name for _, name in built) == [f"{NAME}-master", f"{NAME}-ps"]
    for (_, name), budget in built.items():
        selected = budget["spec"]["selector"]["matchLabels"]
        role = name.removeprefix(f"{NAME}-")
        assert selected == {names.JOB_LABEL: NAME, names.ROLE_LABEL: role}


def test_each_role_of_a_job_is_scraped_by_its_certificate(tmp_path):
    built = build("monitoring", tmp_path)
    for role in ROLES:
        service = built["Service", f"{NAME}-metrics-{role}"]
        assert service["spec"]["selector"] == {names.JOB_LABEL: NAME, names.ROLE_LABEL: role}
        monitor = built["ServiceMonitor", f"{NAME}-metrics-{role}"]
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= service["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] == service["spec"]["ports"][0]["name"]
        assert endpoint["tlsConfig"]["serverName"] == f"{role}.elasticdl"
        secret = {"name": f"{NAME}.authority", "key": "ca.pem"}
        assert endpoint["tlsConfig"]["ca"] == {"secret": secret}
        assert endpoint["authorization"]["credentials"]["name"] == f"{NAME}-metrics"
    assert ("ConfigMap", "elasticdl-board") in built
    assert ("ConfigMap", "job") not in built


def test_jobs_of_the_operator_are_those_of_the_alerts_and_of_prometheus():
    monitors = documents(DEPLOY / "monitoring/service-monitors.yaml")
    relabeled = {
        each["replacement"]
        for monitor in monitors
        for each in monitor["spec"]["endpoints"][0]["relabelings"]
        if each["targetLabel"] == "job"
    }
    (prometheus,) = documents(DEPLOY / "prometheus/kubernetes.yaml")
    assert relabeled == {each["job_name"] for each in prometheus["scrape_configs"]}


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_prometheus_asks_the_pods_that_run_alone(phase):
    scrape = "__meta_kubernetes_pod_annotation_prometheus_io_scrape"
    pod = {scrape: "true", "__meta_kubernetes_pod_phase": phase}
    (prometheus,) = documents(DEPLOY / "prometheus/kubernetes.yaml")
    for job in prometheus["scrape_configs"]:
        (rule,) = [each for each in job["relabel_configs"] if scrape in each["source_labels"]]
        found = ";".join(pod[name] for name in rule["source_labels"])
        is_kept = rule["action"] == "keep" and bool(re.fullmatch(rule["regex"], found))
        assert is_kept is (phase == "Running"), job["job_name"]


def test_the_alerts_of_the_operator_are_those_of_prometheus():
    (rules,) = documents(DEPLOY / "monitoring/rules.yaml")
    assert [rules["spec"]] == documents(DEPLOY / "prometheus/alerts.yaml")


MODELS = {
    "NetworkPolicy": "V1NetworkPolicy",
    "PodDisruptionBudget": "V1PodDisruptionBudget",
    "PriorityClass": "V1PriorityClass",
    "Service": "V1Service",
}


@pytest.mark.parametrize(
    "path",
    [
        "cluster/priority-classes.yaml",
        "job/disruption-budgets.yaml",
        "monitoring/services.yaml",
        "network-policy.yaml",
    ],
)
def test_objects_have_the_fields_that_kubernetes_knows(path):
    client = pytest.importorskip("kubernetes.client")
    api = client.ApiClient()
    for found in documents(DEPLOY / path):
        text = json.dumps(found)
        read = api.deserialize(text, MODELS[found["kind"]], "application/json")
        assert api.sanitize_for_serialization(read) == found
