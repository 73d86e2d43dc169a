"""Finds the problems of a job with faults; a correct job has none.

The functions are pure: they take the results of the job and return problems in words. For each
check `tests/unit/chaos/test_judge.py` has a test in which it must find a problem.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expected import Minibatch, sums
from .faults import MASTER_STOP_SECONDS, Struck, Victim
from .job import MAX_STALENESS, Model

_TOLERANCE = 1e-3  # sums of whole numbers in float32
_MOST_TWICE = 64  # ids that two minibatches of a round may share: some records where epochs meet
_SHOWN = 5
_NOTICED_SECONDS = 2.0  # within which a job may end before it notices a loss
NOT_DONE = "fault not carried out"

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The results of a job.

    planned: The planned faults, one word each; `struck` has the result of each.
    trained: Every minibatch that the job had to train.
    occurrences: Occurrences of each id in the data, counted independently of `trained`.
    events: The event log of the job.
    """

    mode: str
    num_ps: int
    num_epochs: int
    planned: Sequence[str]
    struck: Sequence[Struck]
    trained: Sequence[Minibatch]
    occurrences: NDArray[np.int64]
    model: Model
    summary: Mapping[str, Any]
    events: Sequence[Event] = field(default_factory=tuple)


def judge(evidence: Evidence, num_signatures: int) -> list[str]:
    """Return the problems, each in a sentence."""
    lost = lost_minibatches(evidence.events)
    trained = [m for m in evidence.trained if (m.task, m.number) not in lost]
    problems = [
        *fault_problems(evidence),
        *ledger_problems(evidence, lost),
        *staleness_problems(evidence),
        *data_problems(evidence),
    ]
    if evidence.mode == "synchronous":
        roles = [victim.role for struck in evidence.struck for victim in struck.victims]
        limit = None if "ps" in roles else 2 * roles.count("worker")
        return problems + visit_problems(trained, evidence.model, num_signatures, limit)
    return problems + count_problems(evidence, trained, num_signatures)


# --- faults ---------------------------------------------------------------------------------------


def fault_problems(evidence: Evidence) -> list[str]:
    """Return faults that did not happen, and faults that the job did not notice or repair."""
    found = [f"{NOT_DONE}: {word}" for word in _missing(evidence.planned, evidence.struck)]
    found += [f"{NOT_DONE}: {s.kind}: {s.problem}" for s in evidence.struck if s.problem]
    # A master that was killed just after the end was in its journal has told nobody.
    ended = min((e["time"] for e in evidence.events if e["event"] == "ended"), default=-np.inf)
    required: Counter[int] = Counter()
    for struck in evidence.struck:
        for victim in struck.victims:
            name = _name(victim)
            too_late = f"{NOT_DONE}: {struck.kind}: the job had ended before"
            is_at_end = ended - victim.when < _NOTICED_SECONDS
            if victim.when > ended:
                found.append(too_late)
            elif victim.is_back:
                found += [
                    f"the master stood still, and took {event['process']} as lost for that"
                    for event in evidence.events
                    if event["event"] == "lost"
                    and _is_of_its_stop(event, victim)
                    and not _was_struck(event, evidence.struck)
                ]
            elif victim.role == "master":
                if not _after(evidence.events, victim.when, "resumed"):
                    why = "the master was killed, and none resumed the job"
                    found.append(too_late if is_at_end else why)
            elif not _was_noticed(victim, evidence):
                why = f"the loss of {name}, pid {victim.pid}, was never noticed"
                found.append(too_late if is_at_end else why)
            elif victim.role == "ps" and was_ready(evidence.events, victim.index, victim.pid):
                required[victim.index] += 1
    recovered = Counter(recovery["replica"] for recovery in evidence.summary["recoveries"])
    found += [
        f"ps replica {index} was lost {times} times, and recovered {recovered[index]} times"
        for index, times in sorted(required.items())
        if recovered[index] < times
    ]
    return found


def _was_noticed(victim: Victim, evidence: Evidence) -> bool:
    """Whether the job knew of a loss: it has an event, or it has started a successor.

    A master may be killed when it notices a loss. Then the loss may be only in its journal.
    """
    name = _name(victim)
    if _after(evidence.events, victim.when, "lost", name):
        return True
    masters = [v for struck in evidence.struck for v in struck.victims if v.role == "master"]
    was_cut_short = any(0 <= m.when - victim.when < _NOTICED_SECONDS for m in masters)
    return was_cut_short and _after(evidence.events, victim.when, "registered", name)


def _is_of_its_stop(event: Event, victim: Victim) -> bool:
    within = victim.when < event["time"] < victim.when + MASTER_STOP_SECONDS + 1
    return within and event.get("reason") == "unknown"  # not seen to end: nothing was heard of it


def _was_struck(event: Event, struck: Sequence[Struck]) -> bool:
    victims = [victim for one in struck for victim in one.victims if victim.when < event["time"]]
    return event["process"] in map(_name, victims)


def _name(victim: Victim) -> str:
    return f"{'ps replica' if victim.role == 'ps' else victim.role} {victim.index}"


def _missing(planned: Sequence[str], struck: Sequence[Struck]) -> list[str]:
    return sorted((Counter(planned) - Counter(s.kind for s in struck)).elements())


def was_ready(events: Iterable[Event], index: int, pid: int) -> bool:
    """Whether a process had become the ps replica of an index, so that its loss needs a recovery.

    The first process of an index is ready when it registers. A successor is ready when the master
    knows which work it lacks.
    """
    name, is_first, is_there = f"ps replica {index}", True, False
    for event in events:
        if event.get("process") != name:
            continue
        if event["event"] == "registered":
            if event["pid"] == pid:
                if is_first:
                    return True
                is_there = True
            elif is_there:
                return False
            is_first = False
        elif event["event"] == "ps recovered" and is_there:
            return True
    return False


def _after(events: Iterable[Event], when: float, what: str, process: str = "") -> bool:
    return any(
        event["event"] in (what, "left" if what == "lost" else what)
        and event["time"] >= when
        and process in ("", event.get("process"))
        for event in events
    )


# --- what the job says ----------------------------------------------------------------------------


def lost_minibatches(events: Iterable[Event]) -> set[tuple[int, int]]:
    """Return (task, minibatch) of the work that a ps replica lost for good, as the job says."""
    return {
        (task, number)
        for event in events
        if event["event"] == "ps recovered"
        for task, first, end in event.get("lost", ())
        for number in range(first, end)
    }


def ledger_problems(evidence: Evidence, lost: set[tuple[int, int]]) -> list[str]:
    """Compare the job's own ledger with the data, epoch by epoch."""
    found = []
    lines = {line["epoch"]: line for line in evidence.summary["ledger"]}
    if sorted(lines) != list(range(evidence.num_epochs)):
        found.append(f"the ledger has epochs {sorted(lines)}, expected {evidence.num_epochs}")
    for epoch, line in sorted(lines.items()):
        there = [m for m in evidence.trained if m.epoch == epoch]
        total = sum(m.num_records for m in there)
        gone = sum(m.num_records for m in there if (m.task, m.number) in lost)
        wanted = {"records": total, "trained_once": total - gone, "repeated": 0, "lost": gone}
        found += [
            f"the ledger of epoch {epoch} says {line[name]} {name}, expected {number}"
            for name, number in wanted.items()
            if line[name] != number
        ]
    return found


def staleness_problems(evidence: Evidence) -> list[str]:
    """Return updates that were later than the mode promises (docs/designs/synchrony.md).

    A synchronous job only promises it if no ps replica was lost. Replica 0 alone decides which
    gradients are too old for a round, and the others come back with their own versions.
    """
    limits = {"bounded": MAX_STALENESS, "synchronous": 0}
    lost_ps = any(v.role == "ps" for struck in evidence.struck for v in struck.victims)
    if evidence.mode == "synchronous" and lost_ps:
        return []
    limit, found = limits.get(evidence.mode), evidence.summary["staleness"]["max"]
    if limit is None or found <= limit:
        return []
    return [f"an update was {found} versions late, expected {limit} at most"]


# --- what was trained, one update at a time -------------------------------------------------------


def data_problems(evidence: Evidence) -> list[str]:
    """Return a problem if the expected minibatches are not the whole data once an epoch."""
    ids = np.concatenate([minibatch.ids.ravel() for minibatch in evidence.trained])
    there = np.bincount(ids, minlength=len(evidence.occurrences))
    if np.array_equal(evidence.num_epochs * evidence.occurrences, there):
        return []
    return ["the expected minibatches are not each record once an epoch"]


def count_problems(
    evidence: Evidence, trained: Sequence[Minibatch], num_signatures: int
) -> list[str]:
    """Compare rows, dense parameters and state of the counting model with the expected sums.

    Some replicas may have lost minibatches for good. Then only their part of these minibatches is
    missing. So each number lies between the sums without and with these minibatches.
    """
    model, whole = evidence.model, evidence.trained
    upper = sums(whole, len(model.rows), num_signatures)
    lower = upper if len(trained) == len(whole) else sums(trained, len(model.rows), num_signatures)
    if evidence.num_ps == 1:
        upper = lower  # all of a lost minibatch is missing
    found = []
    for column, what in enumerate(("count", "sum of signatures")):
        values, low, high = model.rows[:, column], lower.rows[:, column], upper.rows[:, column]
        wrong = np.flatnonzero((values < low - _TOLERANCE) | (values > high + _TOLERANCE))
        found += [
            f"the {what} of id {key} is {values[key]:.6g}, expected {_range(low[key], high[key])}"
            for key in wrong[:_SHOWN]
        ]
        if len(wrong) > _SHOWN:
            found.append(f"the {what} of {len(wrong) - _SHOWN} more ids is wrong")
    for kind, vectors in (("dense parameter", model.dense), ("state", model.state)):
        if not vectors:
            found.append(f"the model has no {kind}")
        found += [
            f"{kind} {name} is {values[-1].tolist()}, expected {lower.vector.tolist()} in each row"
            for name, values in vectors.items()
            if (values < lower.vector - _TOLERANCE).any()
            or (values > upper.vector + _TOLERANCE).any()
        ]
    return found


def _range(low: float, high: float) -> str:
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


# --- what was trained, averaged over workers ------------------------------------------------------


def visit_problems(
    trained: Sequence[Minibatch], model: Model, num_signatures: int, max_split: int | None = 0
) -> list[str]:
    """Compare the visits in each row with the rounds of the job.

    Each minibatch has one weight, its share of the records of its round. The weights of a round
    add up to one. Rounds follow each other without a gap. The averages of the dense parameters use
    the same weights. The state counts minibatches, so it is summed.

    A worker may be killed when only one replica has applied its round. The minibatch is then
    computed again for the other replica, with the old weight, and its rows there have a later
    round. `max_split` is the largest number of such rounds. None: rounds are not checked, because
    a lost ps replica forgets them and gradients then count alone (docs/designs/synchrony.md).
    """
    weights, rounds, signatures = _visits(model)
    num_epochs = max(minibatch.epoch for minibatch in trained) + 1
    found = []
    times = np.count_nonzero(weights, axis=1)
    twice = _twice_in_a_round(trained, model, times == num_epochs - 1, num_signatures)
    times[twice] += 1
    found += [
        f"id {key} was trained {times[key]} times, expected {num_epochs}"
        for key in np.flatnonzero(times != num_epochs)[:_SHOWN]
    ]
    if found:
        return found  # nothing can be said of the rounds
    members: dict[int, list[tuple[Minibatch, float]]] = {}
    split: set[int] = set()
    total = 0.0
    for minibatch in trained:
        where = f"minibatch {minibatch.number} of task {minibatch.task}, epoch {minibatch.epoch}"
        signature, keys = minibatch.signature(num_signatures), minibatch.ids.ravel()
        keys = keys[~np.isin(keys, twice)]
        is_it = signatures[keys] == signature
        times = np.count_nonzero(is_it, axis=1)
        if not times.all():
            found.append(f"id {keys[times == 0][0]} was not trained in {where}")
            continue
        if (times > 1).all():
            found.append(f"id {keys[0]} was trained {times[0]} times in {where}")
            continue
        # Some ids may have been in two minibatches of the same signature.
        at, keys = is_it[times == 1].argmax(axis=1), keys[times == 1]
        weight, numbers = weights[keys, at], np.unique(rounds[keys, at]).astype(int).tolist()
        if np.ptp(weight) > _TOLERANCE and max_split is not None:
            found.append(f"the rows of {where} have weights {weight.min()} to {weight.max()}")
        if len(numbers) > 1:
            split.update(numbers)
        members.setdefault(numbers[0], []).append((minibatch, float(weight[0])))
        total += float(weight[0]) * signature
    if found or max_split is None:
        return found[:_SHOWN]
    if len(split) > max_split:
        found.append(f"minibatches are spread over rounds {sorted(split)[:_SHOWN]}")
    found += _round_problems({n: ms for n, ms in members.items() if n not in split})
    if not split and sorted(members) != list(range(len(members))):
        found.append(f"{len(members)} rounds, the last is number {max(members, default=-1)}")
    # Dense parameters get the average of a round, and state that counts gets the sum.
    averaged = {"rounds": float(len(members)), "signatures": total}
    all_signatures = sum(minibatch.signature(num_signatures) for minibatch in trained)
    summed = {"rounds": float(len(trained)), "signatures": float(all_signatures)}
    for kind, vectors, wanted in (
        ("dense parameter", model.dense, averaged),
        ("state", model.state, summed),
    ):
        for name, value in wanted.items():
            values = vectors.get(name, np.zeros(0))
            if not values.size or not np.allclose(values, value, rtol=1e-4):
                found.append(f"{kind} {name} is {values[:1].tolist()}, expected {value:.6g}")
    return found


def _twice_in_a_round(
    trained: Sequence[Minibatch], model: Model, is_suspect: NDArray[np.bool_], num_signatures: int
) -> list[int]:
    """Return the ids that two minibatches of one round had. This may happen between two epochs.

    Both minibatches saw the row before the round, so their visits are in the same columns. These
    columns hold the sum of the two visits. Other ids of each minibatch show its own visit.
    """
    rows = model.rows.astype(np.float64).reshape(len(model.rows), -1, 3)
    _, rounds, signatures = _visits(model)

    def visit_in(minibatch: Minibatch) -> tuple[float, NDArray[np.float64]] | None:
        keys = minibatch.ids.ravel()
        at, column = np.nonzero(signatures[keys] == minibatch.signature(num_signatures))
        if not at.size:
            return None
        return rounds[keys[at[0]], column[0]], rows[keys[at[0]], column[0]]

    found = []
    for key in np.flatnonzero(is_suspect)[:_MOST_TWICE].tolist():
        visits = [visit_in(m) for m in trained if (m.ids == key).any()]
        pairs = itertools.combinations([visit for visit in visits if visit is not None], 2)
        joined = [one + other for (a, one), (b, other) in pairs if a == b]
        if any(np.isclose(rows[key], both, rtol=_TOLERANCE).all(axis=1).any() for both in joined):
            found.append(key)
    return found


def _round_problems(rounds: Mapping[int, Sequence[tuple[Minibatch, float]]]) -> list[str]:
    found = []
    for number, parts in sorted(rounds.items()):
        records = sum(minibatch.num_records for minibatch, _ in parts)
        for minibatch, weight in parts:
            if abs(weight - minibatch.num_records / records) > _TOLERANCE:
                found.append(
                    f"round {number}: a minibatch of {minibatch.num_records} of {records} records "
                    f"has weight {weight:.4f}, expected {minibatch.num_records / records:.4f}"
                )
    return found[:_SHOWN]


def _visits(
    model: Model,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return weight, round and signature of each id's visits, shape (ids, visits)."""
    visits = model.rows.astype(np.float64).reshape(len(model.rows), -1, 3)
    weights = visits[..., 0]
    divisor = np.where(weights == 0, 1.0, weights)
    rounds, signatures = visits[..., 1] / divisor, visits[..., 2] / divisor
    return weights, np.round(rounds), np.where(weights == 0, -1.0, np.round(signatures))
