from tests.clusters.kubernetes.services import Services


def service(name, address, *ports, namespace="jobs"):
    about = {"name": name, "namespace": namespace}
    return {"metadata": about, "spec": {"clusterIP": address, "ports": list(ports)}}


def endpoints(of, *pods, port=7000, namespace="jobs"):
    labels = {"kubernetes.io/service-name": of}
    return {
        "metadata": {"name": f"{of}-1", "namespace": namespace, "labels": labels},
        "ports": [{"name": "", "port": port}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": ready}} for ip, ready in pods],
    }


def test_name_of_a_headless_service_leads_to_the_pods_that_are_ready():
    found = Services(
        {"a": service("store", "None")},
        {"b": endpoints("store", ("10.1.1.2", True), ("10.1.1.3", False))},
    )

    assert found.hosts("jobs") == [
        "10.1.1.2 store store.jobs store.jobs.svc store.jobs.svc.cluster.local"
    ]
    assert found.routes() == {}


def test_name_of_another_service_leads_to_its_address_also_from_another_namespace():
    found = Services({"a": service("store", "10.1.128.9", {"port": 80})}, {})

    assert found.hosts("other") == [
        "10.1.128.9 store.jobs store.jobs.svc store.jobs.svc.cluster.local"
    ]


def test_address_of_a_service_leads_to_the_ports_of_pods_that_are_ready():
    found = Services(
        {"a": service("store", "10.1.128.9", {"port": 80}), "b": service("idle", "10.1.128.8")},
        {
            "a": endpoints("store", ("10.1.1.2", True), ("10.1.1.3", False)),
            "b": endpoints("store", ("10.1.1.4", True), namespace="other"),
        },
    )

    assert found.routes() == {("10.1.128.9", 80): [("10.1.1.2", 7000)]}


def test_service_without_ready_pods_leads_nowhere():
    found = Services({"a": service("store", "10.1.128.9", {"port": 80})}, {})

    assert found.routes() == {("10.1.128.9", 80): []}
