"""Settings of the processes: their number, their places, and how they prove their identity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    NonNegativeInt,
    model_validator,
)

from elasticdl.settings import devices
from elasticdl.settings.launcher import check_launcher, description, launchers
from elasticdl.settings.section import Only, Section

MOST_WORKERS = 10_000
"""The largest number of workers of a job; it stops a typing error."""

JOURNAL_FILE = "state.sqlite"
"""The journal in the folder of a job."""

MOST_PS = 1_000
"""The largest number of ps replicas of a job."""

TlsMode = Literal["job", "files", "off"]

_TRAIN = Only(("train",))

# The core knows no package, so the names come from the registry.
if TYPE_CHECKING:
    LauncherName = str
else:
    LauncherName = Literal[tuple(launchers())]


def _threads(value: object) -> object:
    """Read `--worker_threads`.

    Raises:
        ValueError: The value is neither a number of threads nor "auto".
    """
    if value == "auto" or (isinstance(value, int) and value > 0):
        return value
    if isinstance(value, str) and value.isdecimal() and int(value) > 0:
        return int(value)
    raise ValueError(f"--worker_threads: expected auto or a number above 0, found {value!r}")


class ClusterSection(Section):
    """Processes."""

    job_name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
            description="Name of the job in logs and folders.",
        ),
    ] = "job"
    launcher: Annotated[
        LauncherName | None,
        BeforeValidator(check_launcher),
        Field(description=description()),
    ] = None
    job_dir: Annotated[
        Path | None,
        Field(description="Where the job keeps its state and logs [default: jobs/NAME-TIME]."),
    ] = None
    state: Annotated[
        str | None,
        Field(
            description="Where the master keeps what it must not forget: sqlite:///PATH, or "
            "etcd://HOST:PORT[,HOST:PORT]/PREFIX, where a master on another machine finds it; "
            "?ca=/PATH&user_file=/PATH after that: by TLS, as a user of etcd "
            "[default: state.sqlite in --job_dir].",
        ),
    ] = None
    num_workers: Annotated[int, Field(ge=1, le=MOST_WORKERS, description="Worker processes.")] = 1
    worker_threads: Annotated[
        int | Literal["auto"],
        BeforeValidator(_threads),
        Field(
            description="Threads with which a worker computes. auto: its share of the cores for a "
            "dense model, one if the model file has elasticdl.layers.Embedding."
        ),
    ] = "auto"
    worker_devices: Annotated[
        str,
        BeforeValidator(devices.read),
        Field(
            description="What workers compute on: cpu, cuda:N, or several with commas, dealt to "
            "the workers of a machine in turn; one may have several workers [default: cpu in "
            "PyTorch, what TensorFlow takes in Keras]."
        ),
    ] = ""
    num_ps_pods: Annotated[int, Field(ge=1, le=MOST_PS, description="Ps replicas.")] = 1
    ps_memory_limit: Annotated[
        ByteSize | None,
        Field(
            gt=0,
            description="Bytes of embedding rows that each ps replica may hold, such as 4GiB; the "
            "job fails before it creates more, unless --ps_disk takes them [default: no limit].",
        ),
        _TRAIN,
    ] = None
    ps_disk: Annotated[
        Path | None,
        Field(
            description="Folder on a local disk to which each ps replica brings rows that are not "
            "used, and that do not fit into --ps_memory_limit [default: all rows are in memory]."
        ),
        _TRAIN,
    ] = None
    ps_autoscale: Annotated[
        NonNegativeInt,
        Field(
            description="Have the model move to one more ps replica, up to so many, while one "
            "works nearly all of its time and workers wait for parameters, or holds half of "
            "--ps_memory_limit; 0: never."
        ),
        _TRAIN,
    ] = 0
    master_port: Annotated[
        int, Field(ge=0, le=65535, description="Port of the master; 0: any free one.")
    ] = 0
    tls: Annotated[
        TlsMode | None,
        Field(
            description="How processes prove who they are and encrypt what they say. job: by "
            "certificates that the job makes; files: by --tls_ca, --tls_cert and --tls_key; off: "
            "not at all, which needs --insecure [default: job]."
        ),
    ] = None
    tls_ca: Annotated[
        Path | None, Field(description="With --tls=files: who signs certificates of the job, PEM.")
    ] = None
    tls_cert: Annotated[
        Path | None,
        Field(
            description="With --tls=files: the certificate of each process, PEM. It has the names "
            "master.elasticdl, ps.elasticdl and worker.elasticdl."
        ),
    ] = None
    tls_key: Annotated[
        Path | None, Field(description="With --tls=files: its key, PEM, mode 0600.")
    ] = None
    tls_certificate_hours: Annotated[
        float,
        Field(
            gt=0,
            description="With --tls=job: how long a certificate is good; it is renewed while a "
            "third of that is left.",
        ),
    ] = 24.0
    insecure: Annotated[
        bool,
        Field(
            description="Accept --tls=off: whoever is on the network, or listens at the port of a "
            "process that died, reads the data and the job's secret."
        ),
    ] = False
    max_relaunches: Annotated[
        NonNegativeInt, Field(description="How often failed processes are replaced, over the job.")
    ] = 10
    heartbeat_seconds: Annotated[
        float, Field(gt=0, description="A process reports to the master this often.")
    ] = 1.0
    heartbeat_timeout_seconds: Annotated[
        float, Field(gt=0, description="A process that was silent for so long is taken as lost.")
    ] = 30.0
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        Field(description="The least important messages that processes write to their logs."),
    ] = "INFO"

    @property
    def tls_certificate_seconds(self) -> float:
        """The lifetime of the job's own certificates, in seconds."""
        return self.tls_certificate_hours * 3600

    @property
    def ps_room(self) -> tuple[str, int] | None:
        """The folder of a ps replica's rows on disk, and its limit of bytes in memory."""
        if self.ps_disk is None or self.ps_memory_limit is None:
            return None
        return str(self.ps_disk.absolute()), self.ps_memory_limit

    @model_validator(mode="after")
    def _disk_has_a_limit(self) -> ClusterSection:
        if self.ps_disk is not None and self.ps_memory_limit is None:
            raise ValueError(
                f"--ps_disk={self.ps_disk} takes what does not fit into memory: expected "
                "--ps_memory_limit too, the bytes of rows that a ps replica may have in memory"
            )
        return self

    @model_validator(mode="after")
    def _tls_fits_together(self) -> ClusterSection:
        files = {
            "--tls_ca": self.tls_ca,
            "--tls_cert": self.tls_cert,
            "--tls_key": self.tls_key,
        }
        missing = [flag for flag, path in files.items() if path is None]
        if self.tls == "files" and missing:
            raise ValueError(f"--tls=files needs {', '.join(missing)} too")
        if self.tls != "files" and len(missing) < len(files):
            raise ValueError("--tls_ca, --tls_cert and --tls_key need --tls=files")
        if self.insecure and self.tls != "off":
            raise ValueError(
                f"--insecure accepts --tls=off, found --tls={self.tls or 'job (the default)'}: "
                "give both or neither"
            )
        return self
