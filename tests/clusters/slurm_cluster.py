"""A Slurm cluster of several nodes on this machine, for tests: its own daemons, on free ports."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.clusters.etcd import free_ports

_READY_SECONDS = 180.0  # a limit: on a busy machine Slurm is slow to begin, and to clear up
_LOOK_SECONDS = 0.1
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"

# Requeued tasks wait for `cred_expire` before they begin again.
_SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=15
MinJobAge=60
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
_PARTITIONS = """
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=first Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


class SlurmCluster:
    """Nodes n1, n2 and so on; used as a context. `environment` is for those who use it.

    The tasks of its partition `first` preempt those of `main`, where a task is by default.
    """

    def __init__(self, folder: Path, num_nodes: int = 3, num_cpus: int = 8) -> None:
        """Prepare it.

        Args:
            folder: Takes its settings, its state and its logs.
            num_nodes: How many nodes it has.
            num_cpus: How many processors each node says that it has.

        Raises:
            FileNotFoundError: Slurm is not installed; says how it is.
        """
        for program in _PROGRAMS:
            if shutil.which(program, path=_PATH) is None:
                raise FileNotFoundError(
                    f"{program} is missing: tests/clusters/slurm.sh installs it"
                )
        self._folder = folder
        self.nodes = [f"n{number}" for number in range(1, num_nodes + 1)]
        self._num_cpus = num_cpus
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmCluster:
        self._write()
        munge = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munge.pid",
            "log-file": "munge.log",
            "seed-file": "munge.seed",
        }
        flags = [f"--{flag}={self._folder / name}" for flag, name in munge.items()]
        try:
            self._start("munged", "munged", "--foreground", "--force", *flags)
            self._wait_for(lambda: (self._folder / "munge.socket").exists())
            self._start("slurmctld", "slurmctld", "-D")
            for node in self.nodes:
                self.start_node(node)
            self._wait_for(self._are_all_idle)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if "slurmctld" in self._daemons:
            self.clear()
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            daemon.wait()

    def run(self, *words: str) -> str:
        """Return what one of Slurm's commands says; "" if it fails."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=_READY_SECONDS
        )
        return done.stdout

    def clear(self) -> None:
        """Cancel all tasks, those too that others ask for meanwhile; wait until they are gone."""

        def are_gone() -> bool:
            self.run("scancel", "--user", getpass.getuser())
            return not self.run("squeue", "-h")

        self._wait_for(are_gone)

    def until_no_task(self) -> None:
        """Wait until no task runs or waits; Slurm hears of an end after the process has ended."""
        self._wait_for(lambda: not self.run("squeue", "-h", "-t", "PD,R"))

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._start(node, "slurmd", "-D", "-N", node)

    @contextlib.contextmanager
    def drained(self, node: str) -> Iterator[None]:
        """Have no new task begin on a node within the block."""
        self.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        try:
            yield
        finally:
            self.run("scontrol", "update", f"nodename={node}", "state=resume")

    @contextlib.contextmanager
    def without(self, node: str) -> Iterator[None]:
        """Lose a node for the time of the block."""
        self.lose_node(node)
        try:
            yield
        finally:
            self.start_node(node)

    def lose_node(self, node: str) -> None:
        """Kill the daemon of a node, and all that runs there."""
        import psutil

        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        ours = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == node:
                    ours.append(process)
        parents = {process.parent() for process in ours}
        # First those that would say how the others have ended.
        for process in [p for p in parents if p and p.name() == "slurmstepd"] + ours:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _write(self) -> None:
        (self._folder / "state").mkdir(parents=True)
        self._folder.chmod(0o755)
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        controller, *ports = free_ports(*["127.0.0.1"] * (len(self.nodes) + 1))
        host = socket.gethostname()
        lines = [
            _SETTINGS.format(
                folder=self._folder, host=host, port=controller, user=getpass.getuser()
            )
        ]
        for node, port in zip(self.nodes, ports, strict=True):
            (self._folder / node).mkdir()
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs={self._num_cpus} RealMemory=4000 State=UNKNOWN\n"
            )
        lines.append(_PARTITIONS)
        (self._folder / "slurm.conf").write_text("".join(lines))

    def _start(self, name: str, *words: str) -> None:
        program = shutil.which(words[0], path=_PATH)
        with (self._folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [str(program), *words[1:]], stdout=log, stderr=log, env=self.environment
            )

    def _are_all_idle(self) -> bool:
        idle = self.run("sinfo", "-h", "-N", "-t", "idle", "-p", "main")
        return idle.count("\n") == len(self.nodes)

    def _wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not holds():
            if time.monotonic() >= deadline:
                logs = [path.read_text() for path in self._folder.glob("*.log")]
                raise RuntimeError("Slurm is not ready: " + "\n".join(log[-1500:] for log in logs))
            time.sleep(_LOOK_SECONDS)
