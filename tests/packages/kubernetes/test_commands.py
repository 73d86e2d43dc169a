"""The flags of jobs on Kubernetes, and what is printed for it."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from elasticdl.cli.flags import flags
from elasticdl.cli.main import run_command

COMMAND = (  # of the original's tutorial
    "train",
    "--image_name=registry/elasticdl:ctr",
    "--model_zoo=model_zoo",
    "--model_def=dac_ctr.elasticdl_train.forward",
    "--volume=mount_path=/data,claim_name=fileserver-claim",
    "--minibatch_size=512",
    "--num_minibatches_per_task=50",
    "--num_epochs=20",
    "--num_workers=5",
    "--num_ps_pods=2",
    "--use_async=True",
    "--training_data=/data/train",
    "--validation_data=/data/val",
    "--master_resource_request=cpu=1,memory=1024Mi,ephemeral-storage=1024Mi",
    "--worker_resource_request=cpu=4,memory=2048Mi",
    "--ps_resource_request=cpu=8,memory=6000Mi",
    "--evaluation_steps=10000",
    "--job_name=test-edl",
    "--log_level=INFO",
    "--image_pull_policy=Always",
)
STRATEGY = "--distribution_strategy=ParameterServerStrategy"


def run(capsys, *words):
    code = run_command(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_of_the_original_is_understood_with_a_strategy_and_without(capsys):
    code, with_strategy, _ = run(capsys, *COMMAND, STRATEGY, "--dry_run")
    assert code == 0
    code, without, err = run(capsys, *COMMAND, "--use_go_ps=True", "--dry_run")
    assert code == 0
    assert with_strategy == without
    assert "note: --use_go_ps has no effect: there is one parameter server" in err
    kinds = [item["kind"] for item in yaml.safe_load_all(without)]
    assert kinds == ["ConfigMap", "Service", "Job"]


def test_a_script_is_printed_with_the_files_beside_it_and_without_a_volume(capsys, tmp_path):
    (tmp_path / "loop.py").write_text("import elasticdl.controller")
    words = ("--launcher=kubernetes", "--training_data=/data", "--dry_run", "--", "--units=3")
    code, printed, err = run(capsys, "run", str(tmp_path / "loop.py"), *words)
    assert code == 0, err
    files, settings, *_ = yaml.safe_load_all(printed)
    assert files["data"] == {"loop.py": "import elasticdl.controller"}
    model = json.loads(settings["data"]["job.json"])["model"]
    assert model["script"] == "/etc/elasticdl/model_zoo/loop.py"
    assert model["script_arguments"] == ["--units=3"]


def test_what_a_lost_master_costs_is_said(capsys):
    err = run(capsys, *COMMAND, "--dry_run")[2]
    assert "note: the job's state is in the pod of its master" in err
    assert "note: the job's folder is not on a volume" in err
    lasting = (*COMMAND, "--dry_run", "--job_dir=/data/jobs/1")
    assert "master" not in run(capsys, *lasting)[2]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--volume=claim_name=a,mount_path=/a",), "--volume is of jobs on Kubernetes: give --ima"),
        (("--launcher=kubernetes", "--distribution_strategy=Local"), "--distribution_strategy=Loc"),
        (("--launcher=kubernetes", "--job_name=My_Job"), "--job_name: expected at most 40 small"),
        (("--launcher=kubernetes", "--worker_pod_priority=2"), "--worker_pod_priority: expected"),
        (("--launcher=kubernetes", "--volume=x"), "--volume: expected a form like"),
        (("--launcher=kubernetes", "--ps_resource_request=cpu=x"), "--ps_resource_request: expec"),
        (
            ("--launcher=kubernetes", "--ps_resource_limit=cpu=0.5"),
            "--ps_resource_limit: expected at least what is requested, cpu=1, found cpu=0.5",
        ),
        (("--launcher=kubernetes", "--affinity=no.json"), "--affinity=no.json: expected a file"),
        (("--restart_policy=Never",), "unknown flag --restart_policy (of ElasticDL 0.x); here:"),
        (("--dry_run",), "--dry_run prints what is asked of Kubernetes: give --image_name"),
    ],
)
def test_what_has_no_meaning_is_refused(capsys, words, complaint):
    given = ("train", "--model_def=a.b.c", "--training_data=/data", *words)
    code, out, err = run(capsys, *given)
    assert code != 0
    assert complaint in err
    assert out == ""


def test_checkpoints_that_would_go_with_their_pod_are_refused(capsys):
    code, _, err = run(capsys, *COMMAND, "--recovery_seconds=5", "--dry_run")
    assert code != 0
    assert "--recovery_seconds=5: a ps replica's checkpoints would go with its pod" in err
    lasting = (*COMMAND, "--recovery_seconds=5", "--job_dir=/data/jobs/1", "--dry_run")
    assert run(capsys, *lasting)[0] == 0


def test_the_shipped_rights_are_those_that_the_command_prints(capsys):
    code, out, _ = run(capsys, "rbac")
    assert code == 0
    with open("deploy/rbac.yaml") as file:
        assert list(yaml.safe_load_all(file)) == list(yaml.safe_load_all(out))


def test_the_rights_of_a_namespace_and_an_account_of_ones_own(capsys):
    _, out, _ = run(capsys, "rbac", "--namespace=team", "--service_account=trainer")
    account, role, binding = yaml.safe_load_all(out)
    assert account["metadata"] == {"name": "trainer", "namespace": "team"}
    assert role["kind"] == "Role"
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "trainer", "namespace": "team"}
    ]


def test_the_rights_of_queues_stay_when_those_without_queues_are_applied_later(capsys):
    plain = list(yaml.safe_load_all(run(capsys, "rbac")[1]))
    with_queues = list(yaml.safe_load_all(run(capsys, "rbac", "--queues")[1]))
    assert with_queues[: len(plain)] == plain
    role, binding = with_queues[len(plain) :]
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["jobs"], ["create", "delete"]),
        (["jobs/status"], ["patch"]),
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == plain[-1]["subjects"]
    names = [(each["kind"], each["metadata"]["name"]) for each in with_queues]
    assert len(set(names)) == len(names)


def test_a_job_with_a_password_is_not_printed(capsys):
    code, out, err = run(capsys, *COMMAND, "--data_reader_params=password=hunter2", "--dry_run")
    assert code != 0
    assert "expected password=env:NAME with --envs=NAME=secret:SECRET/KEY" in err
    assert "hunter2" not in out + err


def test_values_of_variables_are_not_printed(capsys):
    code, out, err = run(capsys, *COMMAND, "--envs=DB_PASSWORD=hunter2", "--dry_run")
    assert code == 0
    assert "--from-literal=DB_PASSWORD=VALUE" in err
    assert "hunter2" not in out + err


@pytest.mark.parametrize(
    "flag",
    [
        "--checkpoint_dir=s3://k:hunter2@b/x",
        "--pretrained_rows=t=s3://k:hunter2@b/x",
        "--state=etcd://u:hunter2@h:1/x",
        "--state=etcd://h:1/x?password=hunter2",
        "--training_data=https://hunter2@h/x.csv",
        "--training_data=postgresql://h/db?password=hunter2",
        "--training_data=kafka://u:hunter2@b:9/t",
        "--model_params=password=a;hunter2",
        "--envs=A=b=hunter2",
        "--num_workers=http://u:hunter2@b",
    ],
)
def test_no_error_shows_a_password(capsys, flag):
    code, out, err = run(capsys, *COMMAND, flag)
    assert code != 0
    assert "hunter2" not in out + err
    assert flag.partition("=")[0] in err


def test_a_password_in_the_name_of_data_is_refused(capsys):
    code, out, err = run(capsys, *COMMAND, "--training_data=mysql://me:hunter2@db/x", "--dry_run")
    assert code == 2
    assert "--training_data=mysql://me:***@db/x" in " ".join(err.split())
    assert "hunter2" not in out + err


def test_clear_text_between_pods_has_to_be_accepted(capsys):
    code, out, err = run(capsys, *COMMAND, "--tls=off", "--dry_run")
    assert code != 0
    assert out == ""
    assert "--tls=off: records, parameters and the job's secret would cross the network" in err
    code, out, _ = run(capsys, *COMMAND, "--tls=off", "--insecure", "--dry_run")
    assert code == 0
    assert "authority" not in out


class TestTutorial:
    """The commands of `docs/clusters.md` for Kubernetes, as far as they go without a cluster."""

    def page(self):
        page = Path("docs/clusters.md").read_text()
        return page.partition("\n## Kubernetes\n")[2].partition("\n## ")[0]

    def commands(self):
        page = self.page()
        blocks = "\n".join(re.findall(r"^```\n(.*?)^```", page, re.M | re.S))
        lines = re.sub(r"\\\n", " ", blocks).splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
        return [of[1:] for of in words if of and of[0] == "elasticdl"]

    def test_its_jobs_are_printed(self, capsys):
        trained = [of for of in self.commands() if of[0] == "train"]
        (job,) = (of for of in trained if "..." not in of)
        (tls,) = (of[of.index("...") + 1 :] for of in trained if "..." in of)

        for words in (job, [*(w for w in job if not w.startswith("--volume")), *tls]):
            code, out, err = run(capsys, *words, "--dry_run")
            assert code == 0, err
            kinds = [item["kind"] for item in yaml.safe_load_all(out)]
            assert {"ConfigMap", "Service", "Job"} <= set(kinds)

    def test_its_other_commands_are_understood(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        monkeypatch.setenv("HOME", str(tmp_path))
        others = [of[: of.index("|")] if "|" in of else of for of in self.commands()]
        others = [of for of in others if of[0] != "train"]

        assert [of[0] for of in others] == ["rbac", "attach", "status", "logs", "scale", "stop"]
        for words in others:
            code, _, err = run(capsys, *words)
            if words[0] == "rbac":
                assert code == 0
            else:  # there is no cluster, which is the only complaint
                assert code == 1, err
                assert "flights" in err
                assert "cluster" in err

    def test_its_flags_are_known(self):
        known = {f"--{flag.name}" for flag in flags()} | {"--dry_run", "--insecure"}
        kubectl = {"--namespace", "--uid", "--gid", "--current", "--from-file", "--workers"}
        kubectl |= {"--ignore-daemonsets", "--delete-emptydir-data"}
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", self.page())) <= known | kubectl
