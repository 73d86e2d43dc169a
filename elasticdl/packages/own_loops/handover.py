"""The meeting point of a worker that asks for gradients and a script that computes them."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

from elasticdl.backends.base import Float32, Minibatch, StepResult


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """A minibatch to compute gradients of, and the parameters to compute them on."""

    minibatch: Minibatch
    dense: Float32
    state: Float32


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


class Handover:
    """Two threads: the worker's asks and waits; the script's computes whenever it is asked.

    The model is touched by the script's thread alone. So a script may use it between two
    minibatches as it likes.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[GradientRequest | _Call | _End] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[StepResult | Exception | None] = queue.SimpleQueue()

    # --- the worker's side -----------------------------------------------------------------------

    def compute(self, step: GradientRequest) -> StepResult:
        """Have the script compute a step; return its result."""
        self._asked.put(step)
        answer = self._answered.get()
        assert isinstance(answer, StepResult), "only a step answers a step"
        return answer

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the script's thread when it asks for its next minibatch."""
        self._asked.put(_Call(function))
        answer = self._answered.get()
        if isinstance(answer, Exception):
            raise answer

    def end(self, error: BaseException | None = None) -> None:
        """Say that there are no more minibatches, and why if something failed."""
        self._asked.put(_End(error))

    # --- the script's side -----------------------------------------------------------------------

    def take(self) -> GradientRequest | None:
        """Wait for the next step; None after the last one.

        Raises:
            BaseException: The error with which the worker failed.
        """
        while True:
            match self._asked.get():
                case GradientRequest() as step:
                    return step
                case _Call(function):
                    self._answered.put(_error_of(function))
                case _End(None):
                    return None
                case _End(error):
                    assert error is not None
                    raise error

    def give(self, result: StepResult) -> None:
        """Answer the step that was taken."""
        self._answered.put(result)


def _error_of(function: Callable[[], None]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None
