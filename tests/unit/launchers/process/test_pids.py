"""A process is found by its name as long as it is there, whoever has its pid afterwards."""

import json
import os
import threading

from elasticdl.launchers.process.pids import open_same, ref_of


def test_a_process_is_opened_by_its_name_alone():
    own = ref_of(os.getpid())
    pidfd = open_same(own)
    assert pidfd is not None
    os.close(pidfd)
    for other in ({"start_time": 1}, {"boot": "another"}):
        assert open_same(json.dumps({**json.loads(own), **other})) is None


def test_a_pid_that_a_thread_has_now_is_of_no_process():
    has_looked, ids = threading.Event(), []
    began = threading.Event()

    def thread():
        ids.append(threading.get_native_id())
        began.set()
        has_looked.wait(60)

    other = threading.Thread(target=thread)
    other.start()
    try:
        assert began.wait(60)
        assert open_same(json.dumps({**json.loads(ref_of(os.getpid())), "pid": ids[0]})) is None
    finally:
        has_looked.set()
        other.join()
