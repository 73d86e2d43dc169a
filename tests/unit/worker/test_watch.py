"""A hang in a process that nothing may end is told once, with the stacks."""

import logging
import subprocess
import sys
import time

from elasticdl.job import Lease, Shard, Task, TaskKind
from elasticdl.runtime.proc import cpu_seconds
from elasticdl.worker.spans import Place, Work
from elasticdl.worker.watch import Watch
from elasticdl.worker.watchdog import Watchdog


class NoMaster:
    def announce(self, worker_id, position):
        pass


def test_a_hang_is_told_once_with_stacks_where_nothing_may_end_the_process(caplog, capfd):
    lease = Lease(Task(7, TaskKind.TRAINING, Shard("a.recordio", 100, 200), epoch=1), 2)
    hangs = Work("feed", Place(lease, 3, 10), since=-1000.0, is_first=False, longest=0.0)
    watch = Watch(Watchdog(20.0), lambda: [hangs], NoMaster(), 0, 1.0, 10.0, is_ending=False)
    with caplog.at_level(logging.ERROR):
        watch.look()
        watch.look()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "no end of" in told
    assert "a.recordio" in told
    assert "press Ctrl-C twice" in told
    # Not where it came from: of a process with more than 100 threads it shows the newest 100.
    assert "most recent call first" in capfd.readouterr().err


def test_a_process_that_waits_for_its_compiler_computes():
    burn = "import sys\nprint(sum(i * i for i in range(3_000_000)), flush=True)\nsys.stdin.read()"
    before = cpu_seconds()
    # As a framework does it: a shell, and the compiler below it.
    words = ["/bin/sh", "-c", f"{sys.executable} -c '{burn}'; true"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        try:
            own = time.process_time()
            shell.stdout.readline()
            meanwhile = cpu_seconds() - before
            assert meanwhile > 0.05 + (time.process_time() - own)
        finally:
            shell.stdin.close()  # what the shell has started waits for that
