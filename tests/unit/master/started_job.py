"""A job whose processes have started, and what becomes of it."""

from elasticdl.job import Outcome, Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import StartProcess


def start(kit, command="train", shards=None, **settings):
    """A job whose processes are there."""
    play = kit.play(kit.config(command, **settings), **(shards or {}))
    play.core.begin(play.now)
    for action in play.do(StartProcess):
        handle = ProcessHandle(action.role, action.index, f"{action.role} {action.index}")
        play.core.processes.started(handle, play.now)
    play.register_ps(*range(play.core.config.num_ps))
    play.register(*range(settings.get("num_workers", 1)))
    return play


def exits(play, index, role=Role.WORKER, reason=ExitReason.KILLED, code=-9, words=""):
    handle = ProcessHandle(role, index, f"{role} {index}")
    play.core.process_exited(Exited(handle, reason, code, words), play.now)


def kinds(tasks):
    return [task.kind for task in tasks]


def fail(play, times, message="boom in records 30 to 60", **values):
    for _ in range(times):
        lease = play.lease()
        assert play.report(lease, outcome=Outcome.FAILED, message=message, **values)
    return lease.task
