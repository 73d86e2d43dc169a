"""Which role may call what: the table has each method, and roles of processes steer no job."""

import pytest

from elasticdl.job import Role
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.rights import RIGHTS, may, role_of
from elasticdl.runtime.credentials.authority import USER, Identity

METHODS = {
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_every_method_is_in_the_table_and_no_other():
    assert set(RIGHTS) == METHODS


@pytest.mark.parametrize("role", [Role.WORKER, Role.PS, Role.MASTER])
def test_no_process_of_a_job_stops_it_or_scales_it_or_reads_its_events(role):
    for name in ("Stop", "SetNumWorkers", "GetStatus", "WatchStatus", "WatchEvents", "GetEvents"):
        assert not may(role, f"/elasticdl.v1.Master/{name}")
        assert may(USER, f"/elasticdl.v1.Master/{name}")


def test_a_user_takes_no_task_and_is_no_ps_replica():
    for name in ("Lease", "Report", "RegisterWorker", "RegisterPs", "Attend", "HandOver"):
        assert not may(USER, f"/elasticdl.v1.Master/{name}")


def test_a_role_without_a_certificate_of_the_job_is_not_known():
    assert role_of(["elasticdl://ctr%2F1/worker/3"]) == Role.WORKER
    assert role_of([Identity("a job", USER).uri]) == USER
    assert role_of([]) is role_of(["https://example.com/worker/3"]) is None
    assert may(None, "/elasticdl.v1.Master/Stop")


@pytest.mark.parametrize("role", ["", "root", "workers", "USER"])
def test_a_role_that_there_is_not_may_do_nothing(role):
    assert not any(may(role, method) for method in METHODS)
