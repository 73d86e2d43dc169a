"""What holds for all tests."""

import hashlib
import os
import signal

import pytest

# Else its driver asks Google's own servers what kind of bucket one is, before the emulator.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


def pytest_configure():
    """Take Ctrl-C as usual, also where a script in the background has it ignored.

    Tests send it to processes that they start, and those inherit what is ignored.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_pycollect_makemodule(module_path):
    """Have Hypothesis measure no times before it is used: on a busy machine any example is slow.

    It is imported for those that use it alone, which takes a while.
    """
    if b"from hypothesis import" in module_path.read_bytes():
        from hypothesis import HealthCheck, settings

        untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
        settings.register_profile("untimed", **untimed)
        settings.load_profile("untimed")


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory):
    """An etcd that nobody kills; each test takes a prefix of its own."""
    with _new_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def etcd_of_its_own(tmp_path):
    """An etcd that the test may kill."""
    with _new_etcd(tmp_path / "etcd") as server:
        yield server


def _new_etcd(folder):
    from tests.clusters.etcd import EtcdServer

    try:
        return EtcdServer(folder)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory):
    """A broker that nobody kills; each test makes topics of its own."""
    with _new_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def broker_of_its_own(tmp_path):
    """A broker that the test may kill."""
    with _new_broker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of a head that runs nothing of a job; each test adds nodes."""
    pytest.importorskip("ray", reason="pip install 'ray>=2.60,<2.61'")
    from tests.clusters.ray_cluster import RayCluster

    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def secure_broker(tmp_path_factory):
    """A broker with a second port that wants TLS and a password."""
    with _new_broker(tmp_path_factory.mktemp("kafka"), is_secure=True) as broker:
        yield broker


def _new_broker(folder, **settings):
    pytest.importorskip("confluent_kafka", reason="make lock installs it")
    from tests.clusters.kafka.broker import KafkaBroker

    try:
        return KafkaBroker(folder, **settings)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm cluster of three nodes on this machine."""
    from tests.clusters.slurm_cluster import SlurmCluster

    try:
        cluster = SlurmCluster(tmp_path_factory.mktemp("slurm") / "cluster")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3_server():
    """A server that speaks S3, on this machine; return its URL."""
    moto = pytest.importorskip("moto.server", reason="make lock installs it")
    pytest.importorskip("s3fs", reason="make lock installs it")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server, tmp_path, monkeypatch):
    """Return the URL of a new bucket; processes that the test starts reach it too."""
    import fsspec

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:32]
    fsspec.filesystem("s3", use_listings_cache=False).mkdir(name)
    return f"s3://{name}"


@pytest.fixture(scope="session")
def gs_server():
    """An emulator of Google's store, on this machine; return its URL."""
    pytest.importorskip("gcsfs", reason="make lock installs it")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="make lock installs it")
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="tests")
    server.start()
    yield f"http://127.0.0.1:{server._api._httpd.server_port}"
    server.stop()


@pytest.fixture
def gs(gs_server, tmp_path, monkeypatch):
    """Return the URL of a new folder; processes that the test starts reach it too."""
    import gcsfs

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_server)
    gcsfs.GCSFileSystem.clear_instance_cache()
    name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:32]
    return f"gs://tests/{name}"


@pytest.fixture
def webhdfs(tmp_path):
    """A stand-in for HDFS behind WebHDFS, with an empty file system."""
    pytest.importorskip("requests")
    from tests.webhdfs_server import WebHdfsServer

    (tmp_path / "hdfs").mkdir()
    server = WebHdfsServer(tmp_path / "hdfs")
    yield server
    server.close()
