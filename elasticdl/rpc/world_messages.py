"""The nouns of the rendezvous as messages of `proto/elasticdl.proto`, and back."""

from __future__ import annotations

from elasticdl.job import Attendance, Finished, Restore, Seat, Wait
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.messages import MessageError


def attendance_to_message(worker_id: int, session: str, attendance: Attendance) -> pb.AttendRequest:
    """Pack what a worker says at the rendezvous."""
    return pb.AttendRequest(
        worker_id=worker_id,
        session=session,
        ring=attendance.ring,
        store=attendance.store,
        version=attendance.version,
        synced_world=attendance.synced_world,
        told_world=attendance.told_world,
        missed=attendance.missed,
        num_unsound=attendance.num_unsound,
        problem=attendance.problem,
    )


def attendance_from_message(message: pb.AttendRequest) -> Attendance:
    """Unpack what a worker says at the rendezvous."""
    return Attendance(
        ring=message.ring,
        store=message.store,
        version=message.version,
        synced_world=message.synced_world,
        told_world=message.told_world,
        missed=tuple(message.missed),
        num_unsound=message.num_unsound,
        problem=message.problem,
    )


def seating_to_message(answer: Seat | Restore | Wait | Finished) -> pb.AttendResponse:
    """Pack the answer to a worker that came to the rendezvous."""
    match answer:
        case Seat():
            seat = pb.Seat(
                world_id=answer.world_id,
                rank=answer.rank,
                workers=answer.workers,
                rings=answer.rings,
                are_behind=answer.are_behind,
                generation=answer.generation,
                tasks_per_epoch=answer.tasks_per_epoch,
            )
            return pb.AttendResponse(seat=seat)
        case Restore(checkpoint):
            return pb.AttendResponse(restore=pb.Restore(checkpoint=checkpoint))
        case Wait(seconds):
            return pb.AttendResponse(wait=pb.Wait(seconds=seconds))
        case Finished():
            return pb.AttendResponse(finished=pb.Finished())


def seating_from_message(message: pb.AttendResponse) -> Seat | Restore | Wait | Finished:
    """Unpack the answer to a worker that came to the rendezvous."""
    match message.WhichOneof("answer"):
        case "seat":
            seat = message.seat
            return Seat(
                seat.world_id,
                seat.rank,
                tuple(seat.workers),
                tuple(seat.rings),
                tuple(seat.are_behind),
                seat.generation,
                seat.tasks_per_epoch,
            )
        case "restore":
            return Restore(message.restore.checkpoint)
        case "wait":
            return Wait(message.wait.seconds)
        case "finished":
            return Finished()
        case _:
            raise MessageError("expected a seat, restore, wait or finished, found an empty answer")
