r"""Counts the Python calls for a minibatch in the steady state of a job in one process.

    python scripts/walk.py --model_zoo=model_zoo --model_def=flights.deepfm.forward \
        --training_data=demo/data/train --minibatch_size=512 --num_minibatches_per_task=500

It takes the options of `elasticdl train`. After 100 minibatches it counts the calls of the next 200
in the threads that work on them. The resumption of a generator is a call too. A change of file is a
call from one file of the package to another.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import elasticdl
from elasticdl.cli.main import run_command
from elasticdl.worker.computation import Computation

ROOT = f"{Path(elasticdl.__file__).parent}/"
STEP = Computation.step.__code__
FIRST, COUNTED = 100, 200
THREADS = {"_feed": "feed", "_prepare": "prepare", "job": "compute", "_commit": "commit"}
ACCOUNTING = {"worker/spans.py", "worker/activity.py", "worker/measuring.py", "observe/labels.py"}


class Walk:
    """Counts calls by thread, file of the caller ("": outside of the package) and callee."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str, CodeType]] = Counter()
        self._num_steps = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; `threading.setprofile` calls this."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT):
            return
        self._num_steps += code is STEP
        thread = THREADS.get(threading.current_thread().name)
        if thread is not None and FIRST < self._num_steps <= FIRST + COUNTED:
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
                caller = caller.f_back
            self.calls[thread, "" if caller is None else file_of(caller.f_code), code] += 1


def file_of(code: CodeType) -> str:
    """Return the file of a function, within the package."""
    return code.co_filename.removeprefix(ROOT)


def main() -> None:
    """Run the job, and print the counts for one minibatch."""
    walk = Walk()
    threading.setprofile(walk)
    status = run_command(["train", "--distribution_strategy=Local", *sys.argv[1:]])
    files: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    num_changes = 0
    for (thread, caller, code), count in walk.calls.items():
        files[file_of(code)] += count
        threads[thread] += count
        num_changes += count * (caller not in ("", file_of(code)))
    often = sum(count >= COUNTED for count in files.values())
    share = sum(files[name] for name in ACCOUNTING) / max(files.total(), 1)
    print(f"calls {files.total() / COUNTED:.0f}, changes of file {num_changes / COUNTED:.0f}")
    print(f"files {len(files)}, in each minibatch {often}; accounting of time {share:.0%} of calls")
    print(", ".join(f"{name} {count / COUNTED:.0f}" for name, count in threads.most_common()))
    for name, count in files.most_common(often):
        print(f"{count / COUNTED:6.1f}  {name}")
    sys.exit(status)


if __name__ == "__main__":
    main()
