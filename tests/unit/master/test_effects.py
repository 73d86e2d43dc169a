"""Whom of those who serve the parameters the master asks for what."""

import json

import numpy as np
import pytest

from elasticdl.checkpoints.dense import DENSE
from elasticdl.errors import UnavailableError
from elasticdl.job import PsRoute, Role
from elasticdl.master.effects import JobAccess, ReplicaAccess

EXPIRED = json.dumps([[{"rows": 2, "candidates": 0}]])


class Client:
    """Serves parameters of which `have` minibatches of task 7 are applied."""

    def __init__(self, have):
        self.have, self.folders = have, []

    def audit(self, first=0):
        return [np.array([[7, self.have, 10 * self.have]])]

    def stats(self):
        return json.dumps([{"watermarks": {"duplicates": self.have}}])

    def expire(self, now_seconds):
        return EXPIRED

    def export(self, request):
        return [request]

    def checkpoint(self, folder):
        self.folders.append(folder)
        return [json.dumps({"version": self.have})]


def access(**clients):
    """Return the access to a job whose clients are given by role."""
    return JobAccess(
        {
            role: ReplicaAccess(lambda: PsRoute(0, ("here",)), lambda *_, c=clients[role]: c)
            for role in (Role.PS, Role.WORKER)
            if role in clients
        }
    )


@pytest.mark.parametrize("role", [Role.PS, Role.WORKER])
def test_who_has_all_parameters_is_asked_alone(role, tmp_path):
    client = Client(3)
    job = access(**{role: client})
    assert [[entry.next_index for entry in replica] for replica in job.audit()] == [[3]]
    assert job.tally() == {"duplicates": 3}
    assert job.export("all") == ["all"]
    assert job.expire(1).startswith("2 rows")
    assert job.checkpoint(tmp_path) == ['{"version": 3}']
    assert client.folders == [str(tmp_path)]


def test_rows_and_dense_parameters_are_asked_of_those_who_have_them(tmp_path):
    rows, dense = Client(3), Client(4)
    job = access(**{Role.PS: rows, Role.WORKER: dense})
    assert [[entry.next_index for entry in replica] for replica in job.audit()] == [[3], [4]]
    assert job.tally() == {"duplicates": 7}
    assert job.checkpoint(tmp_path) == ['{"version": 3}']
    assert rows.folders == [str(tmp_path)]
    assert dense.folders == [str(tmp_path / DENSE)]
    found = job.applied_by("there", Role.WORKER)
    assert (found.task_ids.tolist(), found.have.tolist()) == ([7], [4])


def test_one_that_is_gone_is_not_asked():
    gone = JobAccess({Role.PS: ReplicaAccess(lambda: PsRoute(1, ("here", "")), lambda *_: None)})
    with pytest.raises(UnavailableError, match="gone"):
        gone.audit()
