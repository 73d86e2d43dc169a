"""What is asked of Kubernetes to begin a job."""

import json
from pathlib import Path

import pytest
import yaml

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Role, Strategy
from elasticdl.packages.kubernetes.manifests import as_yaml, manifests
from elasticdl.packages.kubernetes.pods import Plan, WantedPod, owners, replica_pod
from elasticdl.packages.kubernetes.settle import settle
from elasticdl.packages.own_loops.command import configure


def by_kind(objects):
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def pod_of(config, **words):
    replica = WantedPod(Role.WORKER, 3, "test-edl-worker-3-abcde", ["python", "-m", "x"], **words)
    return replica_pod(Plan(settle(config)), replica, owners("test-edl", "uid-1", "uid-2"))


def job_of(config):
    return manifests(config)[-1]


def test_a_job_is_its_settings_its_model_a_service_and_a_job_of_kubernetes(make_config):
    objects = by_kind(manifests(make_config()))
    assert list(objects) == [
        ("ConfigMap", "test-edl-model"),
        ("ConfigMap", "test-edl"),
        ("Service", "test-edl"),
        ("Job", "test-edl"),
    ]


def test_the_settings_travel_as_the_pods_need_them(make_config):
    data = by_kind(manifests(make_config(num_workers="5")))["ConfigMap", "test-edl"]["data"]
    config = JobConfig.model_validate_json(data["job.json"])
    assert config.training.distribution_strategy is Strategy.PARAMETER_SERVER
    assert config.cluster.num_workers == 5
    assert config.cluster.master_port == 50001
    assert str(config.cluster.job_dir) == "/job"
    assert str(config.model.model_zoo) == "/etc/elasticdl/model_zoo"


def test_statistics_travel_in_the_model_folder_or_are_on_a_volume(make_config):
    for given, in_pods in {
        "zoo/mnist/statistics.json": "/etc/elasticdl/model_zoo/mnist/statistics.json",
        "/data/statistics.json": "/data/statistics.json",
    }.items():
        objects = by_kind(manifests(make_config(statistics=given)))
        data = objects["ConfigMap", "test-edl"]["data"]
        assert str(JobConfig.model_validate_json(data["job.json"]).model.statistics) == in_pods


def test_a_script_travels_with_the_files_beside_it_unless_it_is_in_the_image(tmp_path):
    (tmp_path / "loop.py").write_text("import beside")
    (tmp_path / "beside.py").write_text("")
    words = {"training_data": "/data", "launcher": "kubernetes"}
    objects = by_kind(manifests(configure(tmp_path / "loop.py", ("--units=3",), words)))
    data = objects["ConfigMap", "job"]["data"]
    model = JobConfig.model_validate_json(data["job.json"]).model
    assert str(model.script) == "/etc/elasticdl/model_zoo/loop.py"
    assert model.script_arguments == ("--units=3",)
    assert set(objects["ConfigMap", "job-model"]["data"]) == {"loop.py", "beside.py"}

    words["send_model_zoo"] = "false"
    objects = by_kind(manifests(configure(Path("/app/loop.py"), (), words)))
    data = objects["ConfigMap", "job"]["data"]
    assert str(JobConfig.model_validate_json(data["job.json"]).model.script) == "/app/loop.py"


def test_passwords_of_the_data_reader_and_the_model_travel_in_a_secret_alone(make_config):
    params = "user=me;password=hunter2"
    config = make_config(data_reader_params=params, model_params="units=2;password=hunter3")
    objects = by_kind(manifests(config))
    secret = objects.pop(("Secret", "test-edl-data"))
    assert secret["stringData"] == {"password": "hunter2", "model_params.password": "hunter3"}
    assert "hunter" not in json.dumps(list(objects.values()))
    settled = JobConfig.model_validate_json(objects["ConfigMap", "test-edl"]["data"]["job.json"])
    where = "/etc/elasticdl/data_secret"
    assert settled.data.data_reader_params == f"user=me;password=file:{where}/password"
    of_model = f"units=2;password=file:{where}/model_params.password"
    assert settled.model.model_params == of_model
    mount = {"name": "data-secret", "mountPath": where, "readOnly": True}
    for spec in (pod_spec_of(objects), pod_of(config)["spec"]):
        assert mount in spec["containers"][0]["volumeMounts"]
    server = WantedPod(Role.MODEL_SERVER, 0, "test-edl-modelserver-0-abcde", ["python", "-m", "x"])
    pod = replica_pod(Plan(settle(config)), server, owners("test-edl", "uid-1", "uid-2"))
    assert mount in pod["spec"]["containers"][0]["volumeMounts"]  # it builds the model from records
    ps = WantedPod(Role.PS, 0, "test-edl-ps-0-abcde", ["python", "-m", "x"])
    spec = replica_pod(Plan(settle(config)), ps, owners("test-edl", "uid-1", "uid-2"))["spec"]
    assert mount not in spec["containers"][0]["volumeMounts"]


def test_values_of_variables_travel_in_a_secret_alone(make_config):
    objects = by_kind(manifests(make_config(envs="A=hunter2,B=secret:b/c")))
    secret = objects.pop(("Secret", "test-edl.envs"))
    assert secret["stringData"] == {"A": "hunter2"}
    assert "hunter2" not in json.dumps(list(objects.values()))


def test_without_a_password_there_is_no_such_secret(make_config):
    config = make_config(data_reader_params="password=env:DB", envs="DB=secret:a/b")
    assert not any(item["kind"] == "Secret" for item in manifests(config))


def test_the_model_folder_travels_file_by_file(make_config, tmp_path):
    (tmp_path / "zoo" / "mnist" / "words.bin").write_bytes(b"\xff\x00")
    (tmp_path / "zoo" / "mnist" / "__pycache__").mkdir()
    (tmp_path / "zoo" / "mnist" / "__pycache__" / "model.pyc").write_bytes(b"no")
    objects = by_kind(manifests(make_config()))
    model = objects["ConfigMap", "test-edl-model"]
    assert model["binaryData"] == {"mnist.words.bin": "/wA="}
    assert list(model["data"]) == ["mnist.model.py"]
    (volume,) = [v for v in pod_spec_of(objects)["volumes"] if v["name"] == "model"]
    assert volume["configMap"]["items"] == [
        {"key": "mnist.model.py", "path": "mnist/model.py"},
        {"key": "mnist.words.bin", "path": "mnist/words.bin"},
    ]


def pod_spec_of(objects):
    return objects["Job", "test-edl"]["spec"]["template"]["spec"]


def test_files_of_a_linked_folder_travel_too(make_config, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "layers.py").write_text("import keras")
    zoo = tmp_path / "zoo"
    (zoo / "shared").symlink_to(tmp_path / "shared")
    (zoo / "again").symlink_to(zoo)  # it has no end
    model = by_kind(manifests(make_config()))["ConfigMap", "test-edl-model"]
    assert model["data"]["shared.layers.py"] == "import keras"
    assert not [key for key in model["data"] if key.startswith("again")]


def test_paths_that_look_alike_keep_apart(make_config, tmp_path):
    (tmp_path / "zoo" / "mnist.model.py").write_text("other")
    settings = by_kind(manifests(make_config()))["ConfigMap", "test-edl"]["data"]
    paths = json.loads(settings["model_files.json"])
    assert sorted(paths.values()) == ["mnist.model.py", "mnist/model.py"]
    assert len(paths) == 2


def test_a_model_folder_that_is_too_large_is_refused_unread(make_config, tmp_path, monkeypatch):
    with (tmp_path / "zoo" / "rows.npz").open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"" if path.suffix == ".py" else 1 / 0)
    with pytest.raises(ConfigError, match=r"more than 1 MiB of files, .*--image_name.*--volume"):
        manifests(make_config())


def test_an_image_of_ones_own_has_the_model(make_config):
    objects = by_kind(manifests(make_config(image_name="registry/elasticdl:ctr")))
    assert ("ConfigMap", "test-edl-model") not in objects
    assert pod_spec_of(objects)["containers"][0]["image"] == "registry/elasticdl:ctr"
    settings = json.loads(objects["ConfigMap", "test-edl"]["data"]["job.json"])
    assert settings["model"]["model_zoo"] == "zoo"


@pytest.mark.parametrize("role", ["master", "worker"])
def test_pods_meet_the_restricted_standard(make_config, role):
    config = make_config()
    spec = (
        job_of(config)["spec"]["template"]["spec"] if role == "master" else pod_of(config)["spec"]
    )
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    allowed = {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
    assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])
    assert spec["automountServiceAccountToken"] is (role == "master")


def test_there_is_a_folder_to_write_in(make_config):
    writable = {
        mount["mountPath"]
        for mount in pod_of(make_config())["spec"]["containers"][0]["volumeMounts"]
        if not mount.get("readOnly")
    }
    assert writable == {"/tmp", "/job", "/data"}


def test_no_secret_is_in_a_manifest(make_config):
    text = as_yaml(manifests(make_config()))
    assert "kind: Secret" not in text
    assert secret_volumes(pod_of(make_config())["spec"])["secret"] == {
        "secretName": "test-edl",
        "defaultMode": 0o440,
    }


def secret_volumes(spec):
    return {v["name"]: v["secret"] for v in spec["volumes"] if "secret" in v}


def test_each_replica_has_a_certificate_of_its_own_and_the_master_the_authority(make_config):
    config = make_config()
    replica = pod_of(config)["spec"]
    assert secret_volumes(replica)["tls"] == {
        "secretName": "test-edl-worker-3-abcde",
        "defaultMode": 0o440,
    }
    (container,) = replica["containers"]
    mount = {"name": "tls", "mountPath": "/etc/elasticdl/tls", "readOnly": True}
    assert mount in container["volumeMounts"]
    master = job_of(config)["spec"]["template"]["spec"]
    assert secret_volumes(master)["tls"]["secretName"] == "test-edl.authority"
    assert not any("authority" in str(volume) for volume in replica["volumes"])
    settings = by_kind(manifests(config))["ConfigMap", "test-edl"]["data"]["job.json"]
    assert JobConfig.model_validate_json(settings).cluster.tls == "job"


def test_files_of_the_user_come_from_a_secret_of_the_user(make_config):
    files = {f"tls_{what}": f"/tls/{what}.pem" for what in ("ca", "cert", "key")}
    volume = "secret_name=own,mount_path=/tls;claim_name=files,mount_path=/data"
    spec = pod_of(make_config(tls="files", volume=volume, **files))["spec"]
    assert secret_volumes(spec)["volume-0"] == {"secretName": "own", "defaultMode": 0o440}
    assert "tls" not in secret_volumes(spec)


def test_clear_text_is_between_pods_only_if_that_is_accepted(make_config):
    with pytest.raises(ConfigError, match=r"--tls=off: .* or accept this with --insecure"):
        manifests(make_config(tls="off"))
    spec = pod_of(make_config(tls="off", insecure="true"))["spec"]
    assert list(secret_volumes(spec)) == ["secret"]


def test_the_first_pod_of_a_master_needs_no_secret(make_config):
    volumes = job_of(make_config())["spec"]["template"]["spec"]["volumes"]
    secrets = [volume["secret"] for volume in volumes if "secret" in volume]
    assert [secret["optional"] for secret in secrets] == [True, True]


def test_a_replica_is_owned_by_the_job_and_controlled_by_the_service_of_its_master(make_config):
    # The Job's controller would take it for one of its own; without a controller no drain ends it.
    pod = pod_of(make_config())
    assert pod["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "test-edl", "uid": "uid-1"},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "name": "test-edl",
            "uid": "uid-2",
            "controller": True,
        },
    ]
    assert pod["metadata"]["labels"] == {
        "app": "elasticdl",
        "elasticdl-job-name": "test-edl",
        "elasticdl-replica-type": "worker",
        "elasticdl-replica-index": "3",
    }


def test_a_master_is_replaced_only_if_its_state_outlives_it(make_config):
    assert job_of(make_config())["spec"]["backoffLimit"] == 0
    assert job_of(make_config(job_dir="/data/jobs/a"))["spec"]["backoffLimit"] > 100
    assert job_of(make_config(state="etcd://etcd:2379/a"))["spec"]["backoffLimit"] > 100


@pytest.mark.parametrize("state", ["sqlite:///job/state.sqlite", "sqlite:///tmp/state"])
def test_a_state_that_would_go_with_its_pod_is_refused(make_config, state):
    with pytest.raises(ConfigError, match=f"--state={state}: the file would be in the pod"):
        settle(make_config(image_name="a:b", state=state))
    volume = "claim_name=files,mount_path=/job"
    if state.startswith("sqlite:///job"):
        settle(make_config(image_name="a:b", state=state, volume=volume))


def test_what_is_left_of_a_job_goes_after_a_while_only_if_that_is_asked_for(make_config):
    assert "ttlSecondsAfterFinished" not in job_of(make_config())["spec"]
    assert job_of(make_config(ttl=90))["spec"]["ttlSecondsAfterFinished"] == 90


def test_recovery_checkpoints_need_a_folder_that_all_see(make_config):
    assert settle(make_config()).checkpoint.recovery_seconds == 0
    assert settle(make_config(job_dir="/data/jobs/a")).checkpoint.recovery_seconds == 60
    assert "job" not in [
        v["name"] for v in pod_of(make_config(job_dir="/data/a"))["spec"]["volumes"]
    ]


@pytest.mark.parametrize(
    "flag",
    [
        *("checkpoint_dir", "output", "export_tables", "job_dir"),
        *("export_dir", "tensorboard_log_dir"),
    ],
)
def test_results_where_pods_cannot_write_are_refused(make_config, flag):
    with pytest.raises(ConfigError, match=f"--{flag}=/database/x: the pods cannot write .* /data"):
        settle(make_config(**{flag: "/database/x"}))
    settle(make_config(**{flag: "/data/x"}))
    if flag in ("checkpoint_dir", "output"):  # the others are paths only
        settle(make_config(**{flag: "s3://bucket/x"}))


def test_everything_that_describes_a_pod_is_in_it(make_config, tmp_path):
    affinity = {"nodeAffinity": {}}
    (tmp_path / "affinity.json").write_text(json.dumps(affinity))
    pod = pod_of(
        make_config(
            image_name="a:b",
            image_pull_policy="Always",
            image_pull_secrets="one,two",
            worker_resource_request="cpu=4,memory=2048Mi",
            worker_resource_limit="memory=4096Mi",
            envs="A=$HOME,B=secret:db/password",
            node_selector="disk=ssd",
            tolerations="spot",
            affinity="affinity.json",
            labels="team=ads",
            annotations="example.com/owner=me",
            service_account="trainer",
            volume="claim_name=c,mount_path=/a;claim_name=c,mount_path=/b,sub_path=x",
        ),
        priority_class="high",
        memory="3Gi",
    )
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["tolerations"][0] == {"operator": "Exists", "key": "spot"}
    assert spec["affinity"] == affinity
    assert spec["serviceAccountName"] == "trainer"
    assert spec["priorityClassName"] == "high"
    assert pod["metadata"]["labels"]["team"] == "ads"
    assert pod["metadata"]["annotations"]["example.com/owner"] == "me"
    assert container["imagePullPolicy"] == "Always"
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "3Gi"},
        "limits": {"cpu": "4", "memory": "3Gi"},
    }
    for name, source in (("A", ("test-edl.envs", "A")), ("B", ("db", "password"))):
        reference = dict(zip(("name", "key"), source, strict=True))
        assert {"name": name, "valueFrom": {"secretKeyRef": reference}} in container["env"]
    claims = [v for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [{"name": "volume-0", "persistentVolumeClaim": {"claimName": "c"}}]
    assert {"name": "volume-0", "mountPath": "/b", "subPath": "x"} in container["volumeMounts"]


def test_metrics_of_a_pod_are_found_by_its_annotations(make_config):
    def scraped(**flags):
        annotations = pod_of(make_config(image_name="a:b", **flags))["metadata"]["annotations"]
        start = "prometheus.io/"
        return {k.removeprefix(start): v for k, v in annotations.items() if k.startswith(start)}

    assert scraped() == {}
    expected = {"scrape": "true", "port": "9464", "path": "/metrics", "scheme": "https"}
    assert scraped(metrics_port="9464") == expected
    for flags, of_master in (({}, {}), ({"dashboard_port": "8080"}, expected)):
        config = make_config(image_name="a:b", metrics_port="9464", **flags)
        (master,) = [item for item in manifests(config) if item["kind"] == "Job"]
        annotations = master["spec"]["template"]["metadata"]["annotations"]
        assert annotations == {f"prometheus.io/{name}": value for name, value in of_master.items()}
    with pytest.raises(ConfigError, match="--metrics_port=0: expected a port above 0 in each pod"):
        make_config(image_name="a:b", metrics_port="0")


def test_yaml_says_what_the_objects_say(make_config):
    objects = manifests(make_config(namespace="team"))
    assert list(yaml.safe_load_all(as_yaml(objects))) == objects
    assert {item["metadata"]["namespace"] for item in objects} == {"team"}
