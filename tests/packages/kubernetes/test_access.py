"""Masters that follow each other have one authority, and commands find what opens their door."""

import pytest
from kubernetes import client

from elasticdl.errors import LaunchError
from elasticdl.packages.kubernetes.access import Access
from elasticdl.packages.kubernetes.client import Api
from elasticdl.packages.kubernetes.manifests import manifests
from elasticdl.packages.kubernetes.master_pod import find_authority, find_token
from elasticdl.packages.kubernetes.settle import settle
from elasticdl.runtime.credentials.authority import Authority
from tests.packages.kubernetes.fake_api_server import FakeApiServer


@pytest.fixture
def server():
    server = FakeApiServer()
    yield server
    server.close()


@pytest.fixture
def api(server):
    configuration = client.Configuration()
    configuration.host = server.url
    return Api(client.ApiClient(configuration), "team")


def submit(server, config):
    for manifest in manifests(config):
        kind, name = manifest["kind"].lower() + "s", manifest["metadata"]["name"]
        server.objects[kind, name] = manifest


def mount(server, name, folder):
    """Show a Secret in a pod, if it is there."""
    folder.mkdir(exist_ok=True)
    for key, text in server.objects.get(("secrets", name), {}).get("stringData", {}).items():
        (folder / key).write_text(text)
    return folder


def begin(server, api, config, folder, uid="uid-1"):
    """Do what the pod of a master does first; return its token and authority."""
    folder.mkdir()
    mounted = {
        name: mount(server, name, folder / name) for name in ("test-edl", "test-edl.authority")
    }
    settled = settle(config)
    token = find_token(api, settled, uid, mounted["test-edl"], folder / "token")
    place = folder / "tls"
    find_authority(api, settled, uid, mounted["test-edl.authority"], place)
    return token.read_text(), Authority.load(place).pem


def test_the_first_master_makes_token_and_authority_and_the_next_finds_them(
    server, api, make_config, tmp_path
):
    config = make_config()
    first = begin(server, api, config, tmp_path / "first")
    assert {name for kind, name in server.objects if kind == "secrets"} == {
        "test-edl",
        "test-edl.authority",
    }
    assert begin(server, api, config, tmp_path / "second") == first
    assert (tmp_path / "second" / "tls" / "ca.key").stat().st_mode & 0o777 == 0o600


def test_a_command_gets_a_certificate_of_the_job_s_authority(server, api, make_config, tmp_path):
    config = make_config()
    submit(server, config)
    access = Access(api, "test-edl")
    assert access.find() is None  # no master has begun
    token, authority = begin(server, api, config, tmp_path / "pod")
    found = access.find()
    assert found.token.hex() == token
    assert found.tls.authority.read_bytes() == authority
    assert found.tls.certificate.name == "user.pem"
    assert not (found.tls.authority.parent / "ca.key").exists()
    assert access.find() is found


def test_a_command_finds_the_user_s_own_files_in_their_secret(server, api, make_config, tmp_path):
    files = {f"tls_{what}": f"/tls/{what}.pem" for what in ("ca", "cert", "key")}
    volume = "secret_name=own,mount_path=/tls;claim_name=files,mount_path=/data"
    config = make_config(tls="files", volume=volume, **files)
    submit(server, config)
    find_token(api, settle(config), "uid-1", mount(server, "-", tmp_path / "m"), tmp_path / "token")
    access = Access(api, "test-edl")
    with pytest.raises(LaunchError, match=r"key ca.pem in the Secret own, found no such Secret"):
        access.find()
    own = {f"{what}.pem": f"the {what}" for what in ("ca", "cert", "key")}
    server.objects["secrets", "own"] = {"stringData": own}
    found = Access(api, "test-edl").find()
    assert found.tls.read() == (b"the ca", b"the cert", b"the key")


def test_files_that_only_the_pods_have_are_named(server, api, make_config, tmp_path):
    files = {f"tls_{what}": f"/data/{what}.pem" for what in ("ca", "cert", "key")}
    config = make_config(tls="files", **files)
    submit(server, config)
    find_token(api, settle(config), "uid-1", mount(server, "-", tmp_path / "m"), tmp_path / "token")
    with pytest.raises(LaunchError, match=r"/data/ca.pem: .*--volume=secret_name=NAME"):
        Access(api, "test-edl").find()


def test_without_encryption_the_token_is_enough(server, api, make_config, tmp_path):
    config = make_config(tls="off", insecure="true")
    submit(server, config)
    find_token(api, settle(config), "uid-1", mount(server, "-", tmp_path / "m"), tmp_path / "token")
    assert Access(api, "test-edl").find().tls is None


@pytest.mark.parametrize("content", [{}, {"stringData": {"password": "hunter2"}}])
def test_a_secret_of_something_else_has_no_token(server, api, make_config, content):
    submit(server, make_config())
    server.objects["secrets", "test-edl"] = content
    assert Access(api, "test-edl").find() is None


def test_settings_of_another_version_are_told_without_their_values(
    server, api, make_config, tmp_path
):
    config = make_config()
    submit(server, config)
    begin(server, api, config, tmp_path / "pod")
    settings = server.objects["configmaps", "test-edl"]["data"]
    settings["job.json"] = settings["job.json"].replace(
        '"job_name"', '"a_later_flag": "x7", "job_name"'
    )
    with pytest.raises(
        LaunchError, match=r"the ConfigMap test-edl: .*cluster.a_later_flag"
    ) as told:
        Access(api, "test-edl").find()
    assert "x7" not in str(told.value)
