"""Converts the dataclasses of `elasticdl.job` to messages of `proto/elasticdl.proto`, and back."""

from __future__ import annotations

from google.protobuf import json_format

from elasticdl.job import (
    Attendance,
    Finished,
    Lease,
    Position,
    Progress,
    PsRoute,
    Restore,
    Role,
    Seat,
    TaskReport,
    Usage,
    Wait,
)
from elasticdl.job.status import JobStatus, MemberStatus
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.codec import Codec, MessageError, OneOf

ANSWER: OneOf[Lease | Wait | Finished, pb.LeaseResponse] = OneOf(
    pb.LeaseResponse, Lease, Wait, Finished
)
SEATING: OneOf[Seat | Restore | Wait | Finished, pb.AttendResponse] = OneOf(
    pb.AttendResponse, Seat, Restore, Wait, Finished
)
ATTENDANCE = Codec(Attendance, pb.Attendance)
MEMBER = Codec(MemberStatus, pb.Member)
POSITION = Codec(Position, pb.Position)
PROGRESS = Codec(Progress, pb.Progress)
REPORT = Codec(TaskReport, pb.TaskReport)
ROUTE = Codec(PsRoute, pb.PsRoute)
STATUS = Codec(JobStatus, pb.JobStatus)
USAGE = Codec(Usage, pb.Usage)

_ROLES = {
    Role.MASTER: pb.ROLE_MASTER,
    Role.WORKER: pb.ROLE_WORKER,
    Role.PS: pb.ROLE_PS,
    Role.MODEL_SERVER: pb.ROLE_MODEL_SERVER,
}
_ROLES_BACK = {number: role for role, number in _ROLES.items()}


def role_to_message(role: Role) -> pb.Role.ValueType:
    """Return the number of a role."""
    return _ROLES[role]


def role_from_message(number: pb.Role.ValueType) -> Role:
    """Return the role of a number."""
    role = _ROLES_BACK.get(number)
    if role is None:
        raise MessageError(f"expected a role, found number {number}")
    return role


def status_to_json(status: JobStatus) -> str:
    """Return a picture of the job as text, for a file that is read when the master is gone."""
    return json_format.MessageToJson(STATUS.pack(status), preserving_proto_field_name=True)


def status_from_json(text: str) -> JobStatus:
    """Parse the text of `status_to_json`.

    Raises:
        MessageError: The text has another form.
    """
    try:
        message = json_format.Parse(text, pb.JobStatus(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise MessageError(f"expected a picture of a job as JSON: {error}") from error
    return STATUS.unpack(message)
