"""The momentum of state variables: how much of the old value a step keeps.

Workers train at the same time, so none of them knows the value that its change will meet. The
replicas keep the value, and can apply `new = momentum * old + change` to whatever is there. For
this, `momentum` is a number from 0 to 1, and `change` does not depend on `old`. Moving averages
fit, counts and sums (1), and values that are replaced (0).

The layers of a framework say their momentum. The momentum of a user's own variable, or that it has
none, is found by three steps from three values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from elasticdl.backends.base import Float32

# The relative step between numbers of the small float types; others count as float32.
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_LEAP = 2**20  # a count that starts again, or stops, does so before
# A momentum such as 0.99 is computed of rounded values, so its last digits are noise.
_DIGITS = 6


def momentum_of(
    step: Callable[[Float32], Float32], start: Float32, part: slice, dtype: str
) -> float | None:
    """Return the momentum of one variable; None: its new value follows another rule.

    A variable that begins with inf, as that of a smallest value does, tells nothing: each step
    replaces it.

    Args:
        step: Given a state, returns the state that a step leaves, always by the same minibatch.
        start: The state that training begins with.
        part: The place of the variable in the state.
        dtype: The variable's own type.
    """
    if not np.all(np.isfinite(start[part])):
        return 0.0
    is_float = "float" in dtype
    try:
        before, after = _three_steps(step, start, part, dtype, _LEAP)
    except Exception:  # of a user's code: a number may be an index, or must not be negative
        before, after = _three_steps(step, start, part, dtype, 3, keeps_sign=True)
    # A layer rounds several times within a step, so some units in the last place may differ.
    tolerance = 64 * _EPSILONS.get(dtype, 2.0**-23) if is_float else 0.0
    candidates = [0.0] if dtype == "bool" else [1.0, 0.0]
    if is_float and after.size:
        slopes = (after[1:] - after[0]) / (before[1:] - before[0])
        candidates = [round(float(np.median(slopes)), _DIGITS)]
    size = 1 + (np.abs(before) + np.abs(after)).max(0, initial=0.0)
    for momentum in candidates:
        change = after - momentum * before
        is_free = np.all(np.abs(change - change[0]) <= tolerance * size)  # not where one is NaN
        if 0 <= momentum <= 1 and is_free:
            return momentum
    return None


def _three_steps(
    step: Callable[[Float32], Float32],
    start: Float32,
    part: slice,
    dtype: str,
    leap: int,
    keeps_sign: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a variable before and after steps, a row each."""
    random, old = np.random.default_rng(0), start[part].astype(np.float64)
    after = [step(start)[part].astype(np.float64)]
    far = 3 * (1 + random.random(old.size)) * (1 + np.abs(old) + np.abs(after[0]))
    # Each element goes up in one step and down in the other: a maximum shows by both.
    up = far * random.choice([-1.0, 1.0], old.size)
    others = [old + up, old - up]
    if keeps_sign:
        others = [old + np.copysign(far, old), np.where(old == 0, 2 * far, old * 2.0**-10)]
    if dtype == "bool":
        others = [1 - old, old]
    elif "float" not in dtype:
        others = [old + random.integers(1, 8), old + leap]
    before = [old]
    for other in others:
        state = start.copy()
        state[part] = other
        before.append(state[part].astype(np.float64))
        after.append(step(state)[part].astype(np.float64))
    return np.stack(before), np.stack(after)


def change_of(new: Any, old: Any, momentum: Any, xp: Any = np) -> Any:
    """Return the `state_delta` that makes a new state of an old one, each with its momentum.

    Infinity minus infinity is no number. So the change of a value that is replaced is the new
    value, and a value that stays infinite has no change. If an infinite value became something
    else, no change that can be added says so: the change is NaN, which the worker refuses.

    Args:
        new: float32, as old and momentum, which have its shape.
        old: The state before the step.
        momentum: The factor by which the holder of the state multiplies the old one; 0 replaces it.
        xp: NumPy, or what does as NumPy does with such tensors.
    """
    was_infinite = xp.isinf(old)
    with np.errstate(invalid="ignore", over="ignore"):
        change = new - momentum * old
    change = xp.where(was_infinite, xp.full_like(old, np.nan), change)
    change = xp.where(was_infinite & (new == old), xp.zeros_like(old), change)
    return xp.where(momentum == 0.0, new, change)
