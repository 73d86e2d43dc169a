"""Model servers of a job: processes that workers ask, and that hold nothing of the job."""

from __future__ import annotations

from elasticdl.errors import ElasticdlError
from elasticdl.job import Role
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.observe import kinds


class ModelServerAddresses(JobFeature):
    """Says where they listen."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self._number = job.config.num_model_servers

    def register(self, index: int, session: str, pid: int, address: str, now: float) -> float:
        """A model server announces itself; return how often it is to send a heartbeat.

        All model servers hold the same, so a new process takes the place of an old one.

        Raises:
            ElasticdlError: The job has no model server of that number.
        """
        if not 0 <= index < self._number:
            raise ElasticdlError(
                f"model server {index} registers, but the job has "
                f"--num_model_servers={self._number}"
            )
        members = self._job.members
        member = members.find(Role.MODEL_SERVER, index)
        if member is not None and member.is_alive and member.session != session:
            self._job.processes.replaced(member, now)
        member = members.register(Role.MODEL_SERVER, index, session, pid, address, now)
        registered = kinds.Registered(member.name, pid, address)
        self._job.note(registered, f"{member.name} listens at {address}")
        self._job.advance(now)
        return members.tell_interval(member, 0.0)

    def addresses(self) -> list[str]:
        """Return where each model server listens; "" of one that is away."""
        found = (self._job.members.find(Role.MODEL_SERVER, i) for i in range(self._number))
        return ["" if m is None or not m.is_alive else m.address for m in found]
