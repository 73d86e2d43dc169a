"""Builds the JSON for a job's page: a whole history, or its changes since a version.

The page keeps what it has and adds new parts. So an answer names the first cell that it brings. A
whole answer comes whenever the cells got longer (`generation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elasticdl.job import Role
from elasticdl.observe.events import finite
from elasticdl.packages.page.history import dips
from elasticdl.packages.page.history.bins import Bins, Row
from elasticdl.packages.page.history.bound import bound_of
from elasticdl.packages.page.history.fold import LOSS, LOSS_RECORDS, RECORDS, History
from elasticdl.packages.page.history.lanes import LABELS, Lane

SCHEMA = 1
EMPTY = "...."
"""The code of a cell in which there was no process."""

_PARTS = 32  # in which the share of a label is told
_FIRST_LETTER = ord("a")
_FIRST_DIGIT = ord("0")
_FACTS_SHOWN = 500


def board(
    history: History,
    since: int = -1,
    generation: int = -1,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what the page shows.

    Args:
        history: The history of the job.
        since: The version that the page has; -1: none.
        generation: The generation of the cells that the page has.
        config: The job's settings, without secrets; for a whole answer.
    """
    bins, bound = history.bins, bound_of(history)
    # A version of another master may be larger; then everything is sent.
    if since > history.version or generation != bins.generation:
        since = -1
    is_whole = since < 0
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "version": history.version,
        "generation": bins.generation,
        "whole": is_whole,
        "grid": {"began": bins.began, "step": bins.step, "count": bins.count},
        "latest": history.latest,
        "phase": history.phase,
        "ended": history.ended,
        "message": history.message,
        "bests": history.bests.as_json(),
        "overfitting": history.bests.overfitting,
        "picture": _picture(history),
        "tables": dict(history.tables),
        "data": list(history.data),
        "series": _series(history, since),
        "lanes": [_lane(lane, bins, since) for lane in history.lanes if lane.stamp > since],
        "points": _points(history, since),
        "facts": [f for f in history.facts[-_FACTS_SHOWN:] if f["stamp"] > since],
        "dips": dips.as_json(dips.dips_of(history)),
        "goodput": {
            "workers": history.goodput().as_json(),
            "ps": history.goodput(Role.PS).as_json(),
            "master": history.goodput(Role.MASTER).as_json(),
        },
        "bound": None if bound is None else bound.as_json(),
        "stages": dict(history.stages),
        "lost": dict(history.num_lost),
    }
    if is_whole:
        found["labels"] = list(LABELS)
        found["config"] = dict(config or {})
    answer: dict[str, Any] = finite(found)
    return answer


def _picture(history: History) -> dict[str, Any]:
    return {
        name: history.picture[name] for name in history.picture if name not in ("role", "index")
    }


def _series(history: History, since: int) -> dict[str, Any]:
    first = history.progress.first_changed(since)
    if first is None:
        return {"from": history.bins.count, "throughput": [], "loss": []}
    amounts = history.progress.amounts[first : history.bins.count]
    rates = amounts[:, RECORDS] / history.bins.step
    known = amounts[:, LOSS_RECORDS]
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(known > 0, amounts[:, LOSS] / known, np.nan)
    return {"from": first, "throughput": _rounded(rates), "loss": _rounded(loss)}


def _rounded(values: Any) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def _lane(lane: Lane, bins: Bins, since: int) -> dict[str, Any]:
    first = lane.row.first_changed(since)
    cores, sent, received = lane.rates
    return {
        "name": lane.name,
        "role": lane.role,
        "index": lane.index,
        "state": lane.state,
        "label": lane.label,
        "pid": lane.pid,
        "address": lane.address,
        "processes": lane.num_processes,
        "heard": lane.heard,
        "cores": round(cores, 3),
        "sent": round(sent),
        "received": round(received),
        "memory": lane.usage.get("resident_bytes", 0),
        "seconds": {label: round(seconds, 3) for label, seconds in lane.seconds.items()},
        "from": bins.count if first is None else first,
        "cells": "" if first is None else cells(lane.row, first, bins.count, bins.step),
    }


def cells(row: Row, first: int, stop: int, step: float) -> str:
    """Return the two labels with the most time in each cell: four characters a cell.

    The first character is the label ("a": the first of `LABELS`). The second is its part of the
    cell, from "0" to "P" (32 parts). The same follows for the second label. "." stands for no
    label. The rest of a cell's time is divided between the two.
    """
    amounts = row.amounts[first:stop]
    if not len(amounts):
        return ""
    order = np.argsort(-amounts, axis=1, kind="stable")[:, :2]
    largest = np.take_along_axis(amounts, order, axis=1)
    known = largest.sum(axis=1, keepdims=True)
    # The time of other labels is divided between these two, so that a full cell looks full.
    shares = np.divide(largest, known, out=np.zeros_like(largest), where=known > 0.0)
    # A lane of several processes has more seconds in a cell than the cell is long.
    total = amounts.sum(axis=1, keepdims=True)
    parts = shares * np.minimum(total / step, 1.0) * _PARTS
    parts = np.maximum(np.rint(parts), 0).astype(np.int64)
    letters = np.where(parts > 0, order + _FIRST_LETTER, ord("."))
    digits = np.where(parts > 0, parts + _FIRST_DIGIT, ord("."))
    codes = np.stack([letters[:, 0], digits[:, 0], letters[:, 1], digits[:, 1]], axis=1)
    return codes.astype(np.uint8).tobytes().decode("ascii")


def _points(history: History, since: int) -> dict[str, list[dict[str, Any]]]:
    """Return the points of each sort: all of them, since they are few, or none if none is new."""
    sorts: Mapping[str, Sequence[dict[str, Any]]] = {
        "training": history.training.items,
        "evaluation": history.evaluations.items,
        "window": history.windows.items,
        "learning_rate": history.learning_rates.items,
        "checkpoint": history.checkpoints,
        "export": history.exports,
    }
    return {
        name: list(items) for name, items in sorts.items() if items and items[-1]["stamp"] > since
    }
