"""Pods of the test cluster run, end, are limited and are told things as on a real node."""

from __future__ import annotations

import textwrap

import pytest

from tests.clusters.kubernetes.api import ApiError
from tests.clusters.kubernetes.namespace import HELD, Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test starts the cluster


def python(text: str) -> tuple[str, str, str]:
    return ("python", "-c", textwrap.dedent(text))


def ended(found: dict) -> dict:
    """Return how the only container of a pod ended."""
    return found["status"]["containerStatuses"][0]["state"]["terminated"]


def test_exit_code_and_log_of_a_pod_are_in_the_api(namespace: Namespace):
    namespace.run(
        "one",
        "sh",
        "-c",
        "echo out; echo err >&2; echo gone > $MESSAGE; exit 3",
        container={"env": [{"name": "MESSAGE", "value": "/dev/termination-log"}]},
    )

    found = namespace.wait("one", "Failed")

    assert (ended(found)["exitCode"], ended(found)["reason"]) == (3, "Error")
    assert ended(found)["message"] == "gone\n"
    assert namespace.log("one") == "out\nerr\n"
    assert namespace.log("one", tailLines="1") == "err\n"
    assert namespace.log("one", limitBytes="3") == "out"


def test_pod_that_exits_with_zero_has_succeeded(namespace: Namespace):
    namespace.run("one", "true")

    assert ended(namespace.wait("one", "Succeeded"))["reason"] == "Completed"


def test_followed_log_ends_with_the_container(namespace: Namespace):
    namespace.run(
        "one",
        *python("""
        import sys, time
        for number in range(3):
            print(number, flush=True)
            time.sleep(0.3)
        """),
    )
    namespace.wait("one", "Running", "Succeeded")

    assert namespace.log("one", follow="true") == "0\n1\n2\n"


def test_what_the_log_server_does_not_know_is_refused(namespace: Namespace):
    namespace.run("one", "true")
    namespace.wait("one", "Succeeded")

    with pytest.raises(ApiError, match="timestamps"):
        namespace.log("one", timestamps="true")


def test_deleted_pod_may_end_by_itself_within_its_grace_period(namespace: Namespace):
    namespace.run(
        "one",
        *python("""
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("ready", flush=True)
        while True:
            signal.pause()
        """),
        metadata={"finalizers": [HELD]},
    )
    namespace.wait("one", "Running")
    assert namespace.log("one", follow="true", limitBytes="6") == "ready\n"

    namespace.delete("one")

    found = namespace.wait("one", "Succeeded")  # and yet it is not done: it was deleted
    assert found["metadata"]["deletionTimestamp"]
    namespace.release("one")
    namespace.wait_gone("one")


def test_pod_that_does_not_heed_sigterm_is_killed_after_its_grace_period(namespace: Namespace):
    # Process 1 without a handler does not even hear a SIGTERM.
    namespace.run("one", "sleep", "1000", metadata={"finalizers": [HELD]})
    namespace.wait("one", "Running")

    namespace.delete("one", grace_seconds=1)

    assert ended(namespace.wait("one", "Failed"))["exitCode"] == 137


def test_pod_over_its_memory_limit_is_killed_with_the_reason(namespace: Namespace):
    namespace.run(
        "one",
        *python("bytearray(300 << 20)"),
        container={"resources": {"limits": {"memory": "100Mi"}}},
    )

    state = ended(namespace.wait("one", "Failed"))

    assert (state["exitCode"], state["reason"]) == (137, "OOMKilled")


def test_kill_of_its_own_process_is_not_taken_for_want_of_memory(namespace: Namespace):
    namespace.run(
        "one",
        *python("""
        import os, signal, subprocess
        victim = subprocess.Popen(["sleep", "1000"])
        victim.kill()
        raise SystemExit(128 - victim.wait())
        """),
        container={"resources": {"limits": {"memory": "100Mi"}}},
    )

    state = ended(namespace.wait("one", "Failed"))

    assert (state["exitCode"], state["reason"]) == (137, "Error")


def test_command_that_is_not_there_is_a_start_error(namespace: Namespace):
    namespace.run("one", "nonesuch")

    state = ended(namespace.wait("one", "Failed"))

    assert (state["reason"], state["exitCode"]) == ("StartError", 128)
    assert "nonesuch" in state["message"]


def test_image_that_is_not_there_is_said(namespace: Namespace):
    namespace.run("one", "true", container={"image": "registry.invalid/none:1"})

    found = namespace.cluster.wait_for(
        namespace.path("pods", "one"),
        lambda found: "ImagePullBackOff" in str(found.get("status")),
    )

    assert found["status"]["phase"] == "Pending"
    namespace.cluster.wait_for(
        namespace.path("events"), lambda listed: "Failed to pull image" in str(listed)
    )


def test_what_is_not_played_is_refused(namespace: Namespace):
    probe = {"livenessProbe": {"exec": {"command": ["true"]}}}
    namespace.run("one", "true", container=probe)

    found = namespace.wait("one", "Failed")

    assert found["status"]["reason"] == "Unsupported"
    assert "livenessProbe" in found["status"]["message"]


def test_environment_comes_from_fields_secrets_and_maps(namespace: Namespace):
    namespace.create("secrets", {"metadata": {"name": "keys"}, "stringData": {"token": "s3cret"}})
    namespace.create("configmaps", {"metadata": {"name": "map"}, "data": {"A": "a", "B": "b"}})
    field = "fieldRef"
    namespace.run(
        "one",
        "sh",
        "-c",
        "echo $NAME $IP $TOKEN $M_A$M_B $(PLAIN) $CPU; hostname -i",
        container={
            "envFrom": [{"configMapRef": {"name": "map"}, "prefix": "M_"}],
            "env": [
                {"name": "NAME", "valueFrom": {field: {"fieldPath": "metadata.name"}}},
                {"name": "IP", "valueFrom": {field: {"fieldPath": "status.podIP"}}},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
                {"name": "PLAIN", "value": "$(M_A)+$(M_B)"},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            ],
            "resources": {"limits": {"cpu": "1500m"}},
        },
    )

    address = namespace.wait("one", "Succeeded")["status"]["podIP"]

    assert namespace.log("one") == f"one {address} s3cret ab a+b 2\n{address}\n"


def test_pod_waits_for_a_secret_that_is_not_there_yet(namespace: Namespace):
    volume = {"name": "keys", "secret": {"secretName": "late"}}
    mount = {"name": "keys", "mountPath": "/keys"}
    namespace.run(
        "one", "cat", "/keys/token", volumes=[volume], container={"volumeMounts": [mount]}
    )
    namespace.cluster.wait_for(
        namespace.path("events"),
        lambda listed: "FailedMount" in str(listed),
    )

    namespace.create("secrets", {"metadata": {"name": "late"}, "stringData": {"token": "here"}})

    namespace.wait("one", "Succeeded")
    assert namespace.log("one") == "here"


def test_init_containers_run_first_and_share_an_empty_folder(namespace: Namespace):
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    first = {"name": "first", "image": "i", "command": ["sh", "-c", "echo 1 > /shared/file"]}
    namespace.run(
        "one",
        "cat",
        "/shared/file",
        container=mount,
        initContainers=[first | mount],
        volumes=[{"name": "shared", "emptyDir": {}}],
    )

    namespace.wait("one", "Succeeded")

    assert namespace.log("one") == "1\n"


def test_init_container_that_fails_ends_the_pod(namespace: Namespace):
    first = {"name": "first", "image": "i", "command": ["false"]}
    namespace.run("one", "true", initContainers=[first])

    found = namespace.wait("one", "Failed")

    assert "waiting" in found["status"]["containerStatuses"][0]["state"]


def test_container_that_fails_is_started_again_if_it_shall(namespace: Namespace, tmp_path):
    tmp_path.chmod(0o777)
    mount = {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    namespace.run(
        "one",
        "sh",
        "-c",
        "echo again; test -e /host/seen || { touch /host/seen; false; }",
        container=mount,
        restartPolicy="OnFailure",
        volumes=[{"name": "host", "hostPath": {"path": str(tmp_path)}}],
    )

    found = namespace.wait("one", "Succeeded")

    assert found["status"]["containerStatuses"][0]["restartCount"] == 1
    assert namespace.log("one", previous="true") == "again\n"


RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SAFE_POD = {
    "runAsNonRoot": True,
    "runAsUser": 4321,
    "runAsGroup": 4321,
    "fsGroup": 5432,
    "seccompProfile": {"type": "RuntimeDefault"},
}
SAFE_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.mark.parametrize("namespace", [RESTRICTED], indirect=True)
def test_pod_of_a_restricted_namespace_has_no_rights(namespace: Namespace):
    with pytest.raises(ApiError, match="violates PodSecurity"):
        namespace.run("zero", "true")
    namespace.run(
        "one",
        *python("""
            import os
            status = open("/proc/self/status").read()
            print(os.getuid(), os.getgid(), os.getgroups())
            print([line.split()[1] for line in status.splitlines() if line.startswith("CapEff")])
            for path in ("/file", "/work", "/etc/file", "/tmp/file"):
                try:
                    open(path, "w")
                except OSError as error:
                    print(error.strerror)
            """),
        securityContext=SAFE_POD,
        container={"securityContext": SAFE_CONTAINER},
    )

    namespace.wait("one", "Succeeded", "Failed")

    lines = namespace.log("one").splitlines()
    assert lines[0] == "4321 4321 [5432]"
    assert lines[1] == "['0000000000000000']"
    assert set(lines[2:]) <= {"Read-only file system", "Is a directory"}
    assert len(lines) == 6


def test_secret_and_map_are_mounted_with_modes_and_the_group_of_the_pod(namespace: Namespace):
    namespace.create("secrets", {"metadata": {"name": "keys"}, "stringData": {"token": "s3cret"}})
    namespace.create("configmaps", {"metadata": {"name": "map"}, "data": {"a.py": "1", "b": "2"}})
    volumes = [
        {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}},
        {"name": "map", "configMap": {"name": "map", "items": [{"key": "a.py", "path": "x/a.py"}]}},
        {"name": "scratch", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [
        {"name": "keys", "mountPath": "/keys", "readOnly": True},
        {"name": "map", "mountPath": "/deep/map"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    namespace.run(
        "one",
        *python("""
            import os
            about = os.stat("/keys/token")
            print(open("/keys/token").read(), oct(about.st_mode & 0o777), about.st_gid)
            print(open("/deep/map/x/a.py").read(), sorted(os.listdir("/deep/map"))[1:])
            open("/scratch/file", "w").close()
            print(os.stat("/scratch/file").st_gid)
            """),
        volumes=volumes,
        securityContext=SAFE_POD,
        container={"volumeMounts": mounts, "securityContext": SAFE_CONTAINER},
    )

    namespace.wait("one", "Succeeded", "Failed")

    assert namespace.log("one").splitlines() == ["s3cret 0o440 5432", "1 ['..data', 'x']", "5432"]


def test_claim_is_bound_to_a_volume_and_shared_by_pods(namespace: Namespace, tmp_path):
    tmp_path.chmod(0o777)
    size = {"storage": "1Gi"}
    name = f"volume-{namespace.name}"
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    namespace.cluster.api.create(
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": name},
            "spec": {**common, "capacity": size, "hostPath": {"path": str(tmp_path)}},
        },
    )
    namespace.create(
        "persistentvolumeclaims",
        {
            "metadata": {"name": "claim"},
            "spec": {**common, "volumeName": name, "resources": {"requests": size}},
        },
    )
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}
    mount = {"name": "data", "mountPath": "/data", "subPath": "inside"}
    spec = {"volumes": [volume], "container": {"volumeMounts": [mount]}}
    namespace.run("one", "sh", "-c", "echo written > /data/file", **spec)
    namespace.wait("one", "Succeeded")

    namespace.run("two", "cat", "/data/file", **{**spec, "container": {"volumeMounts": [mount]}})

    namespace.wait("two", "Succeeded")
    assert namespace.log("two") == "written\n"
    assert (tmp_path / "inside" / "file").exists()


def test_pod_sees_nothing_of_the_host_beside_programs(namespace: Namespace, tmp_path):
    (tmp_path / "file").touch()
    namespace.run("one", "sh", "-c", f"test ! -e {tmp_path}/file && test ! -e /etc/shadow")

    namespace.wait("one", "Succeeded")


def test_pod_has_an_account_that_may_do_what_its_role_says(namespace: Namespace):
    asks = python("""
        import json, os, ssl, urllib.request
        folder = "/var/run/secrets/kubernetes.io/serviceaccount"
        read = lambda name: open(f"{folder}/{name}").read()
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        url = f"https://{host}:{port}/api/v1/namespaces/{read('namespace')}/pods"
        request = urllib.request.Request(url, headers={"Authorization": "Bearer " + read("token")})
        context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        try:
            with urllib.request.urlopen(request, context=context) as answer:
                print([pod["metadata"]["name"] for pod in json.load(answer)["items"]])
        except urllib.error.HTTPError as error:
            print(error.code)
        """)
    namespace.run("one", *asks)
    namespace.wait("one", "Succeeded", "Failed")
    assert namespace.log("one") == "403\n"
    rights = "apis/rbac.authorization.k8s.io/v1"
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    namespace.create("roles", {"metadata": {"name": "reader"}, "rules": [rule]}, rights)
    namespace.create(
        "rolebindings",
        {
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "default"}],
        },
        rights,
    )

    namespace.run("two", *asks)

    namespace.wait("two", "Succeeded", "Failed")
    assert namespace.log("two") == "['one', 'two']\n"


SERVES = python("""
    import socket, sys
    listener = socket.create_server(("0.0.0.0", 7000))
    print("listens", flush=True)
    while True:
        connection, _ = listener.accept()
        connection.sendall(socket.gethostname().encode())
        connection.close()
    """)
ASKS = python("""
    import socket, sys, time
    while True:
        try:
            with socket.create_connection(("store", 7000)) as connection:
                if answer := connection.recv(100):
                    print(answer.decode(), flush=True)
                    break
        except OSError:
            time.sleep(0.05)  # its name may not be known yet
    """)


@pytest.mark.parametrize("address", [{"clusterIP": "None"}, {}], ids=["headless", "with address"])
def test_name_of_a_service_leads_to_the_pod_behind_it(namespace: Namespace, address: dict):
    ports = [{"port": 7000, "targetPort": 7000}]
    service = {"selector": {"app": "store"}, "ports": ports, **address}
    namespace.create("services", {"metadata": {"name": "store"}, "spec": service})
    namespace.run("first", *SERVES, metadata={"labels": {"app": "store"}})
    namespace.run("other", *SERVES)  # the same port, of another address
    namespace.wait("first", "Running")
    namespace.run("one", *ASKS)
    namespace.wait("one", "Succeeded")
    assert namespace.log("one") == "first\n"

    namespace.delete("first", grace_seconds=0)
    namespace.run("second", *SERVES, metadata={"labels": {"app": "store"}})
    namespace.run("two", *ASKS)

    namespace.wait("two", "Succeeded")
    assert namespace.log("two") == "second\n"


def test_address_of_a_service_stays_while_the_pod_behind_it_changes(namespace: Namespace):
    ports = [{"port": 80, "targetPort": "store"}]
    service = {"selector": {"app": "store"}, "ports": ports}
    made = namespace.create("services", {"metadata": {"name": "store"}, "spec": service})
    named = {"container": {"ports": [{"name": "store", "containerPort": 7000}]}}
    for name in ("first", "second"):
        namespace.run(name, *SERVES, metadata={"labels": {"app": "store"}}, **named)
        namespace.run(
            f"asks-{name}",
            *python(f"""
            import socket, time
            while True:
                try:
                    with socket.create_connection(("{made["spec"]["clusterIP"]}", 80)) as asked:
                        if answer := asked.recv(100):
                            print(answer.decode())
                            break
                except OSError:
                    time.sleep(0.05)  # nobody is ready
            """),
        )

        namespace.wait(f"asks-{name}", "Succeeded")

        assert namespace.log(f"asks-{name}") == f"{name}\n"
        namespace.delete(name, grace_seconds=0)
        namespace.wait_gone(name)
        namespace.cluster.wait_for(
            namespace.path("endpointslices", group="apis/discovery.k8s.io/v1"),
            lambda listed: not any(each.get("endpoints") for each in listed["items"]),
        )
