"""A Kafka broker of one node (KRaft) that can be killed, and started again with its data."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from pathlib import Path

from tests.clusters.etcd import free_ports
from tests.clusters.kafka.jars import folder as jars_folder
from tests.clusters.kafka.jars import missing

_READY_SECONDS = 180.0
_FORMAT_SECONDS = 180.0
_LOOK_SECONDS = 0.05
_IS_UP = "Kafka Server started"
_JAVA = (
    # The kernel ends it with whoever started it: no test leaves a broker behind.
    *("setpriv", "--pdeathsig", "KILL"),
    *("java", "-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)
# A broker that was killed may come back once its session is over: by default 9 seconds.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""


# Nobody but the reader may do anything at the door that asks for a password.
_SECURE = """\
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure_port},\
CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{reader}="{password}" user_{stranger}="{password}";
ssl.keystore.type=PEM
ssl.keystore.location={pem}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{reader}
"""
READER, STRANGER, PASSWORD = "reader", "stranger", "swordfish-4711"


class KafkaBroker:
    """A broker on a free port of the loopback; all its files are in one folder."""

    def __init__(self, folder: Path, is_secure: bool = False) -> None:
        """Prepare it; `start` starts it.

        Args:
            folder: Takes its settings, data and log.
            is_secure: It has a second port, `secure_address`, with TLS (`certificate`), where
                `READER` may do anything and `STRANGER` nothing; both have `PASSWORD`.

        Raises:
            FileNotFoundError: Java or the jars are missing; says what to do.
        """
        if why := missing():
            raise FileNotFoundError(why)
        self._folder = folder
        self._port, self._controller_port, self._secure_port = free_ports(*["127.0.0.1"] * 3)
        self._is_secure = is_secure
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens: `host:port`."""
        return f"127.0.0.1:{self._port}"

    @property
    def secure_address(self) -> str:
        """Where it speaks TLS: `host:port`."""
        return f"127.0.0.1:{self._secure_port}"

    @property
    def certificate(self) -> Path:
        """Who it is, signed by itself."""
        return self._folder / "certificate.pem"

    def start(self) -> None:
        """Start it, and wait until it serves.

        Raises:
            RuntimeError: It does not come up; has the end of its log.
        """
        assert self._process is None
        settings = self._folder / "kraft.properties"
        if not settings.exists():
            self._format(settings)
        log = self._folder / "broker.log"
        begins_at = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            command = [*self._java(), "kafka.Kafka", str(settings)]
            self._process = subprocess.Popen(command, stdout=file, stderr=file, cwd=self._folder)
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if _IS_UP in log.read_bytes()[begins_at:].decode(errors="replace"):
                return
            time.sleep(_LOOK_SECONDS)
        self.kill()
        raise RuntimeError(
            f"Kafka did not come up in {_READY_SECONDS:.0f} s; its log: "
            + log.read_text(errors="replace")[-2000:]
        )

    def kill(self) -> None:
        """Kill it with -9; what it had acknowledged stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _format(self, settings: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        written = settings.with_suffix(".new")
        ports = {"port": self._port, "controller_port": self._controller_port}
        text = _PROPERTIES.format(**ports, data=self._folder / "data")
        if self._is_secure:
            people = {"reader": READER, "stranger": STRANGER, "password": PASSWORD}
            pem = self._make_certificate()
            text += _SECURE.format(**ports, secure_port=self._secure_port, pem=pem, **people)
        written.write_text(text)
        # Of 22 letters as Kafka writes them; one that begins with a minus would be an option.
        cluster = "e" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        command = [*self._java(), "kafka.tools.StorageTool", "format"]
        command += ["-t", cluster, "-c", str(written)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_SECONDS)
        if done.returncode:
            raise RuntimeError(f"Kafka's storage cannot be formatted: {done.stdout}{done.stderr}")
        written.rename(settings)

    def _make_certificate(self) -> Path:
        """Return a file with the key and the certificate."""
        key = self._folder / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=_FORMAT_SECONDS)
        both = self._folder / "both.pem"
        both.write_text(key.read_text() + self.certificate.read_text())
        return both

    @staticmethod
    def _java() -> list[str]:
        return [*_JAVA, "-cp", f"{jars_folder()}/*"]
