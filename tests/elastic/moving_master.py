"""A master whose ps replicas listen at another address each time they are started.

Run in place of `python -m elasticdl.master`: on one machine, every replica is at 127.0.0.1 and only
its port is another one. On a cluster each pod has an address of its own.
"""

import itertools

from elasticdl.launchers import choose
from elasticdl.launchers.process.launcher import ProcessLauncher
from elasticdl.launchers.process.parts import PARTS
from elasticdl.master.__main__ import main
from elasticdl.runtime.addresses import Listening


class MovingLauncher(ProcessLauncher):
    """Starts each process at the next address of this machine."""

    _hosts = (f"127.0.0.{number}" for number in itertools.count(2))

    @property
    def listening(self):
        return Listening(next(self._hosts))


class MovingParts(type(PARTS)):
    """The parts of this machine, with that launcher."""

    def launcher(self, config, job_dir, on_event, authority):
        return MovingLauncher(on_event, job_dir)


if __name__ == "__main__":
    choose.parts_of = lambda config: MovingParts()
    main()
