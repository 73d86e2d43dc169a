"""A journal in etcd: for jobs whose master may come back on another machine.

Below the prefix lie (numbers have leading zeros, so that keys sort as they do):

    master              the process that writes; deleted when its lease ends
    epoch               written by each master that takes over; without a lease
    current             the current snapshot, its number of parts, and its last facts
    snapshots/G/I       part I of snapshot G
    facts/N             one batch of facts, or how many parts it has
    parts/N/I           part I of batch N

Facts are numbered in one sequence over all snapshots. A new snapshot is written beside the old one,
and one small transaction makes it current. Only then the replaced facts are deleted. A crash in
between may leave keys that no master reads; the next snapshot deletes them.

Every write is a transaction that compares the create revision of the key `master` with the revision
that this master has made. See docs/designs/state.md.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc

from elasticdl.errors import StateError, TakenOverError, UnusableStateError
from elasticdl.packages.etcd.access import EtcdAccess
from elasticdl.packages.etcd.client import EtcdClient, RefusedError, rpc
from elasticdl.packages.etcd.owner import is_gone, name_of, this_process
from elasticdl.state.base import Fact, Snapshot
from elasticdl.state.encoding import dumps, encoded

log = logging.getLogger(__name__)

_FORMAT = 1
_PART_BYTES = 1_000_000  # etcd takes 1.5 MiB in one request
_DELETED_AT_ONCE = 1_000  # keys; etcd answers nobody else meanwhile
_READ_AT_ONCE = 64  # keys
_PARTS_AT_ONCE = 8  # which are large, and must come within an attempt (`client.ATTEMPT_SECONDS`)
_LEASE_SECONDS = 10
_LOOK_SECONDS = 0.2  # how often to look whether the lease of the master before has ended
_REVOKE_SECONDS = 2.0


class EtcdState:
    """`elasticdl.state.base.State` below a prefix of etcd.

    Appended facts are on the disks of a majority of etcd's members. The thread `etcd-lease` keeps
    the lease alive; all other work happens in the calling thread.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        lease_seconds: int = _LEASE_SECONDS,
        access: EtcdAccess | None = None,
    ) -> None:
        """Take the journal over.

        If the other master was on this machine and is known to be gone, this master does not wait
        for it. For any other master the lease must end first, `lease_seconds` after the last sign
        of life.

        Args:
            endpoints: `host:port` of each member of etcd that may be used.
            prefix: The prefix of the journal's keys; no other job may use it.
            lease_seconds: How long a master may be silent before another takes over.
            access: The credentials of etcd and of this master; None: there are none.

        Raises:
            ConfigError: A file of `access` is not as it should be.
            StateError: Another living master has the journal, or the journal is damaged or of
                another version.
        """
        prefix = prefix.strip("/")
        name = f"etcd://{','.join(endpoints)}/{prefix}"
        self._client = EtcdClient(endpoints, name, access)
        self._prefix = f"{prefix}/"
        self._mastership = _Mastership(self._client, self._prefix, lease_seconds)
        self._snapshot_number = 0  # of the current one; 0: there is none
        self._num_parts = 0
        self._through = 0  # the last batch of facts that is in the snapshot
        self._last = 0  # the last batch of all
        self._last_switch = 0  # etcd's revision when the current snapshot became so, if known
        try:
            self._mastership.take()
            self._find_place()
        except BaseException:
            self.close()
            raise

    @property
    def trouble(self) -> str:
        """The reason why the present call takes so long."""
        return self._client.trouble

    def append(self, facts: Sequence[Fact]) -> None:
        """Write facts into the journal."""
        if not facts:
            return
        number = self._last + 1
        parts = list(_in_parts(self._encoded(list(facts))))
        if len(parts) == 1:
            content = parts[0]
        else:
            # The parts come first: a reader finds them only by the key of the facts, which comes
            # last.
            for index, part in enumerate(parts):
                self._write([_put(self._key("parts", number, index), part)])
            content = dumps({"parts": len(parts)}).encode()
        self._write([_put(self._key("facts", number), content)])
        self._last = number

    def load(self) -> tuple[Snapshot | None, list[Fact]]:
        """Return the last snapshot, if there is one, and the facts after it."""
        snapshot = None
        if self._snapshot_number:
            snapshot = self._read_parts("snapshots", self._snapshot_number, self._num_parts)
        facts: list[Fact] = []
        number = self._through
        for key, content in self._read(self._key("facts", number + 1), self._key("facts~")):
            number += 1
            if key != self._key("facts", number):
                raise self._damaged(f"expected the facts {number}, found {key}")
            batch = self._decoded(content, f"the facts {number}")
            if isinstance(batch, dict):
                batch = self._read_parts("parts", number, batch["parts"])
            facts.extend(batch)
        if number != self._last:
            raise self._damaged(f"expected facts up to {self._last}, found {number}")
        return snapshot, facts

    def compact(self, snapshot: Snapshot) -> None:
        """Replace all facts by a snapshot which has the same effect."""
        number, num_parts = self._snapshot_number + 1, 0
        # A crash may have left parts of a snapshot that never became current.
        self._delete(self._key("snapshots", number), self._key("snapshots~"))
        for part in _in_parts(self._encoded(snapshot)):
            self._write([_put(self._key("snapshots", number, num_parts), part)])
            num_parts += 1
        current = {"format": _FORMAT, "snapshot": number, "parts": num_parts, "through": self._last}
        switch = self._write([_put(self._prefix + "current", dumps(current).encode())])
        self._through, self._snapshot_number, self._num_parts = self._last, number, num_parts
        self._clean()
        self._forget_history(switch)

    def sync(self) -> None:
        """Do nothing: etcd has synced all that it acknowledges."""

    def close(self) -> None:
        """Close the journal; another process may open it then."""
        self._client.leave()
        self._mastership.end()
        self._client.close()

    def _find_place(self) -> None:
        """Find the current snapshot and the last facts of the journal."""
        for _, content in self._read(self._prefix + "current", self._prefix + "current\0"):
            current = self._decoded(content, "current")
            if current.get("format") != _FORMAT:
                raise StateError(
                    f"{self._client.name}: expected a journal of format {_FORMAT}, found "
                    f"{current.get('format')}; resume the job with the elasticdl that started it"
                )
            self._snapshot_number, self._num_parts = current["snapshot"], current["parts"]
            self._through = self._last = current["through"]
        self._last = max(self._last, self._number_of("facts", is_last=True))

    # --- keys and values -------------------------------------------------------------------------

    def _key(self, kind: str, number: int | None = None, part: int | None = None) -> str:
        key = self._prefix + kind
        if number is not None:
            key += f"/{number:012d}"
        return key if part is None else f"{key}/{part:06d}"

    def _encoded(self, value: Any) -> Iterator[str]:
        try:
            yield from encoded(value)
        except (TypeError, ValueError) as error:
            raise StateError(
                f"{self._client.name}: the job's journal cannot be written: {error}"
            ) from error

    def _decoded(self, content: bytes, what: str) -> Any:
        try:
            return json.loads(content)
        except ValueError as error:
            raise self._damaged(f"{what}: {error}") from error

    def _damaged(self, found: str) -> UnusableStateError:
        return UnusableStateError(
            f"{self._client.name}: the job's journal is damaged ({found}); restore etcd from a "
            "backup, or start a new job from the last checkpoint (--checkpoint_dir_for_init)"
        )

    # --- reading and writing ---------------------------------------------------------------------

    def _read_parts(self, kind: str, number: int, num_parts: int) -> Any:
        """Return the value in parts 0 to `num_parts`; a torn write may have left more parts."""
        first, end = self._key(kind, number, 0), self._key(kind, number, num_parts)
        parts = [content for _, content in self._read(first, end, _PARTS_AT_ONCE)]
        what = f"{kind}/{number}"
        if len(parts) != num_parts:
            raise self._damaged(f"expected {num_parts} parts of {what}, found {len(parts)}")
        return self._decoded(b"".join(parts), what)

    def _read(
        self, first: str, end: str, at_once: int = _READ_AT_ONCE
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the keys from `first` to before `end`, each with its value."""
        begin, stop = first.encode(), end.encode()
        while True:
            request = rpc.RangeRequest(key=begin, range_end=stop, limit=at_once)
            page = self._client.call("Range", request)
            for kv in page.kvs:
                yield kv.key.decode(), kv.value
            if not page.more:
                return
            # The next page begins with the first possible key after the last one of this page.
            begin = page.kvs[-1].key + b"\0"

    def _number_of(self, kind: str, is_last: bool) -> int:
        """Return the first or the last number of a kind; 0 if there is none."""
        order = rpc.RangeRequest.DESCEND if is_last else rpc.RangeRequest.ASCEND
        request = rpc.RangeRequest(
            key=self._key(kind).encode(),
            range_end=self._key(f"{kind}~").encode(),
            limit=1,
            sort_order=order,
            sort_target=rpc.RangeRequest.KEY,
            keys_only=True,
        )
        found = self._client.call("Range", request).kvs
        place = len(self._key(kind).split("/"))
        return int(found[0].key.decode().split("/")[place]) if found else 0

    def _write(self, operations: list[Any]) -> int:
        return self._mastership.write(operations)

    def _delete(self, first: str, end: str) -> None:
        request = rpc.DeleteRangeRequest(key=first.encode(), range_end=end.encode())
        self._write([rpc.RequestOp(request_delete_range=request)])

    def _clean(self) -> None:
        """Delete what the current snapshot replaces, and what crashes have left before it."""
        self._delete(self._key("snapshots"), self._key("snapshots", self._snapshot_number))
        for kind in ("facts", "parts"):
            first = self._number_of(kind, is_last=False) or self._through + 1
            for number in range(first, self._through + 1, _DELETED_AT_ONCE):
                stop = min(number + _DELETED_AT_ONCE, self._through + 1)
                self._delete(self._key(kind, number), self._key(kind, stop))

    def _forget_history(self, switch: int) -> None:
        """Make etcd drop the versions of keys that are older than the snapshot before this one.

        Etcd keeps old versions for its watchers. The newest ones stay, since etcd may serve others
        as well.
        """
        revision, self._last_switch = self._last_switch, switch
        if revision:
            request = rpc.CompactionRequest(revision=revision)
            try:
                self._client.call("Compact", request)
            except RefusedError as error:
                if error.code is not grpc.StatusCode.OUT_OF_RANGE:  # else it was done already
                    raise


class _Mastership:
    """The right to write: a key with a lease, whose create revision is this master's own."""

    def __init__(self, client: EtcdClient, prefix: str, lease_seconds: int) -> None:
        self._client = client
        self._master = f"{prefix}master".encode()
        self._epoch = f"{prefix}epoch".encode()
        self._owner = dumps(this_process()).encode()
        self._lease_seconds = lease_seconds
        self._lease = 0
        self._revision = 0  # at which this master took over
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep_alive, name="etcd-lease", daemon=True)

    def take(self) -> None:
        """Become the master, once there is no other.

        Raises:
            StateError: Another master lives, and stays.
        """
        self._grant()
        self._keeper.start()
        waited, patience = 0.0, 0.0
        while True:
            found = self._find()
            if found is not None and found.lease == self._lease:
                self._revision = found.create_revision
                return
            if found is None:
                self._put([_compares(self._master, "version", 0)])
                continue
            owner = json.loads(found.value)
            if is_gone(owner):
                self._end_other(found)
                continue
            # The other master may have renewed its lease just now, so this waits for longer than
            # the lease.
            patience = patience or 1.5 * self._lease_seconds_of(found.lease) + 1.0
            if waited >= patience:
                raise StateError(
                    f"{self._client.name}: another master has it open: {name_of(owner)}, which "
                    "is alive; stop it first, or give each job a prefix of its own"
                )
            self._client.wait(_LOOK_SECONDS)
            waited += _LOOK_SECONDS

    def write(self, operations: list[Any]) -> int:
        """Write in one transaction, if this is still the master; return etcd's revision.

        The write may be repeated: the same keys get the same values.

        Raises:
            TakenOverError: Another master has taken over. Nothing was written.
        """
        while True:
            condition = _compares(self._master, "create_revision", self._revision)
            answer = self._transaction([condition], operations)
            if answer.succeeded:
                return int(answer.header.revision)
            self._client.check_open()
            self._retake()

    def end(self) -> None:
        """Give the right up; another master may take it at once."""
        self._ended.set()
        if self._lease:
            self._client.revoke(self._lease, _REVOKE_SECONDS)
        if self._keeper.is_alive():
            self._keeper.join(_REVOKE_SECONDS)

    def _retake(self) -> None:
        """Take a lapsed mastership again, if no other process was master meanwhile."""
        found = self._find()
        if found is None:
            log.warning("%s: the master's lease has lapsed; renewing it", self._client.name)
            self._grant()
            # Each master that takes over writes `epoch`, so an unchanged `epoch` means that there
            # was none.
            unchanged = _compares(self._epoch, "mod_revision", self._revision)
            self._put([_compares(self._master, "version", 0), unchanged])
            found = self._find()
        if found is None or found.lease != self._lease:
            who = "" if found is None else f" ({name_of(json.loads(found.value))})"
            raise TakenOverError(
                f"{self._client.name}: another master{who} has taken over the job; this one ends "
                "and leaves its processes alone"
            )
        self._revision = found.create_revision

    def _grant(self) -> None:
        """Get a lease. Its number is drawn here, so that the call can be repeated."""
        self._lease = secrets.randbits(62) + 1
        request = rpc.LeaseGrantRequest(TTL=self._lease_seconds, ID=self._lease)
        try:
            self._client.call("LeaseGrant", request)
        except RefusedError as error:
            if "already exists" not in str(error):
                raise

    def _put(self, conditions: list[Any]) -> None:
        """Become the master, if the conditions hold; take another lease if this one has ended."""
        while True:
            puts = [_put(self._master, self._owner, self._lease), _put(self._epoch, self._owner)]
            try:
                self._transaction(conditions, puts)
            except RefusedError as error:
                if error.code is not grpc.StatusCode.NOT_FOUND:
                    raise
                log.warning("%s: a lease ended before it was used", self._client.name)
                self._grant()
            else:
                return

    def _end_other(self, found: Any) -> None:
        """Delete the key of a master that is gone, unless another master has the key by now."""
        delete = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._master))
        self._transaction([_compares(self._master, "mod_revision", found.mod_revision)], [delete])

    def _find(self) -> Any:
        request = rpc.RangeRequest(key=self._master)
        answer = self._client.call("Range", request)
        return answer.kvs[0] if answer.kvs else None

    def _lease_seconds_of(self, lease: int) -> int:
        request = rpc.LeaseTimeToLiveRequest(ID=lease)
        answer = self._client.call("LeaseTimeToLive", request)
        return max(int(answer.grantedTTL), 0)

    def _transaction(self, conditions: list[Any], operations: list[Any]) -> Any:
        request = rpc.TxnRequest(compare=conditions, success=operations)
        return self._client.call("Txn", request)

    def _keep_alive(self) -> None:
        """Renew the lease three times in its life; a write finds out if a renewal was too late."""
        while not self._ended.wait(self._lease_seconds / 3):
            self._client.keep_alive(self._lease, self._lease_seconds / 3)


def _put(key: str | bytes, value: bytes, lease: int = 0) -> Any:
    key = key.encode() if isinstance(key, str) else key
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def _compares(key: bytes, what: str, number: int) -> Any:
    """Return the condition that a key has this version or revision; 0: the key does not exist."""
    target = {
        "version": rpc.Compare.VERSION,
        "create_revision": rpc.Compare.CREATE,
        "mod_revision": rpc.Compare.MOD,
    }[what]
    return rpc.Compare(key=key, result=rpc.Compare.EQUAL, target=target, **{what: number})


def _in_parts(texts: Iterable[str]) -> Iterator[bytes]:
    """Join texts to parts that fit into a request; there is at least one part."""
    part = bytearray()
    for text in texts:
        data = text.encode()
        for start in range(0, len(data), _PART_BYTES):
            piece = data[start : start + _PART_BYTES]
            if part and len(part) + len(piece) > _PART_BYTES:
                yield bytes(part)
                part.clear()
            part += piece
    yield bytes(part)
