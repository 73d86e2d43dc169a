"""A job whose roles do nothing but live: `python fake_job.py cli train ...`.

The command line, root, launcher and lifeline are the real ones; only the programs of the
master and of the workers are exchanged for those below. The master serves pictures of the job, ends
as its `end` fifo says, and leaves the last picture in the job's folder.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

from elasticdl.job import Role
from elasticdl.job.status import EpochLedger
from elasticdl.runtime import process

NUM_WORKERS = 2
LEDGER = (EpochLedger(epoch=0, records=10, trained_once=10, repeated=0, lost=0),)


def run_cli():
    """Run `elasticdl` with roles of this file."""
    from elasticdl.cli.main import main

    os.environ["GRPC_VERBOSITY"] = "ERROR"  # as `main` does before the next line's import of gRPC
    from elasticdl.launchers.process import job

    job.root_command = fake_root_command
    main(sys.argv[2:])


def run_root():
    """Run the root of the job with a master of this file."""
    from elasticdl.launchers.process.__main__ import main

    process.command = fake_command
    del sys.argv[1]
    main()


def fake_root_command(job_dir):
    return [sys.executable, __file__, "root", "--job_dir", str(job_dir)]


def fake_command(role, index, job_dir, master="", listening=None, tls_dir=None):
    words = [sys.executable, __file__, str(role)]
    words += ["--config", str(job_dir / process.CONFIG_FILE)]
    words += ["--token_file", str(job_dir / process.TOKEN_FILE)]
    words += ["--job_dir", str(job_dir), "--index", str(index)]
    words += ["--tls_dir", str(tls_dir or job_dir / "tls")]
    return (*words, "--master", master) if master else tuple(words)


class Master:
    """Says that the job runs, and how it ended when it has."""

    def __init__(self):
        self.ended = threading.Event()
        self.final = "finished"
        self.told = threading.Event()

    def status(self, status):
        from elasticdl.job.status import no_status

        return dataclasses.replace(
            no_status("fake", 1),
            status=status,
            seconds=4.0,
            records_done=10 if status == "finished" else 5,
            records_total=10,
            records_per_second=2.5,
            loss=0.25,
            metrics={"auc": 0.75},
            num_workers_alive=NUM_WORKERS,
            ledger=LEDGER if status != "running" else (),
            message="a task failed" if status == "failed" else "",
        )

    def WatchStatus(self, request, context):
        from elasticdl.rpc import messages

        yield messages.STATUS.pack(self.status("running"))
        self.ended.wait()
        yield messages.STATUS.pack(self.status(self.final))
        self.told.set()


def run_master():
    """Start workers, or find those of the master before; serve; end as told."""
    import grpc  # here, so that the workers are up sooner

    from elasticdl.launchers.base import ProcessHandle
    from elasticdl.launchers.process.launcher import ProcessLauncher
    from elasticdl.rpc.elasticdl_pb2_grpc import MasterServicer, add_MasterServicer_to_server
    from elasticdl.rpc.messages import status_to_json
    from elasticdl.rpc.security import add_port
    from elasticdl.runtime.credentials.job_authority import JobAuthority

    arguments = process.start(Role.MASTER, sys.argv[2:])
    handles_path = arguments.job_dir / "handles.json"
    launcher = ProcessLauncher(
        lambda exited: print("exited", exited, flush=True), arguments.job_dir
    )
    servicer = type("Servicer", (Master, MasterServicer), {})()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    add_MasterServicer_to_server(servicer, server)
    restarted = handles_path.exists()
    wanted = "127.0.0.1:0"
    if restarted:
        wanted = json.loads((arguments.job_dir / "master.json").read_text())["address"]
    authority = JobAuthority.of_job(arguments.tls_dir, "job", 3600)
    tls = authority.issue(Role.MASTER, 0)
    try:
        port = add_port(server, wanted, tls)
    except RuntimeError:  # another process has taken it meanwhile
        port = add_port(server, "127.0.0.1:0", tls)
    address = f"127.0.0.1:{port}"
    for n in range(NUM_WORKERS):
        authority.issue(Role.WORKER, n)
    if restarted:
        for ref in json.loads(handles_path.read_text()):
            launcher.adopt(ProcessHandle(Role.WORKER, 0, ref))
    else:
        refs = [start_worker(launcher, arguments.job_dir, n, address) for n in range(NUM_WORKERS)]
        write(handles_path, refs)
    server.start()
    write(arguments.job_dir / "master.json", {"address": address, "pid": os.getpid()})
    threading.Thread(target=wait_for_end, args=(arguments.job_dir, servicer), daemon=True).start()
    try:
        servicer.told.wait()
        # The end of the stream may overtake the picture in it; so a master leaves a file.
        picture = status_to_json(servicer.status(servicer.final))
        process.write_whole(arguments.job_dir / process.PICTURE_FILE, picture)
    finally:
        launcher.close(grace_seconds=5.0)
        server.stop(grace=None)
        servicer.ended.set()  # else the thread of a stream would keep the process
    sys.exit(0 if servicer.final == "finished" else 1)


def start_worker(launcher, job_dir, index, master):
    from elasticdl.launchers.base import ProcessSpec

    up = job_dir / f"up-{index}"
    os.mkfifo(up)
    command = fake_command(Role.WORKER, index, job_dir, master)
    handle = launcher.start(ProcessSpec(Role.WORKER, index, command))
    with up.open() as file:
        file.read()
    return handle.ref


def wait_for_end(job_dir, servicer):
    with (job_dir.parent / "end").open() as file:  # blocks until a test opens it
        servicer.final = file.read()
    servicer.ended.set()


def run_worker():
    """Live; one that is index 1 does not listen to SIGTERM."""
    arguments = process.start(Role.WORKER, sys.argv[2:])
    if arguments.index == 1 and (arguments.job_dir.parent / "deaf").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (arguments.job_dir / f"up-{arguments.index}").open("w").close()
    while True:
        time.sleep(3600)


def write(path: Path, value) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value))
    partial.replace(path)


if __name__ == "__main__":
    {"cli": run_cli, "root": run_root, "master": run_master, "worker": run_worker}[sys.argv[1]]()
