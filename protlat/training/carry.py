"""Recurrent states that go from the batch of one step to that of the next: truncated back-propagation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from protlat.data.batch import TrainingBatch
from protlat.nn.state import RecurrentState


def begin_state(before: RecurrentState | None, carried: np.ndarray, device: torch.device | str) -> RecurrentState:
    """The state that a batch begins with.

    Parameters
    ----------
    before : RecurrentState or None
        States of the lanes.
    carried : numpy.ndarray, shape (S,), int64
        Lane that each sequence goes on from, -1 where it begins anew.
    """
    if before is None or not before.before or (carried < 0).all():
        return RecurrentState()
    return before.select(torch.from_numpy(carried).to(device))


class CarriedStates:
    """The states of the lanes of one rank, a set of lanes for each batch of a step.

    A step's new states are staged, and take the place of the old ones when the step is done: what is saved when a step
    fails is the state before it.

    Parameters
    ----------
    rank, world_size, accumulate : int
        Set number a * world_size + rank is this rank's a-th batch of a step.
    """

    def __init__(self, rank: int, world_size: int, accumulate: int) -> None:
        self.numbers = [turn * world_size + rank for turn in range(accumulate)]
        self._states: list[RecurrentState | None] = [None] * accumulate
        self._staged = list(self._states)

    def before(self, turn: int, batch: TrainingBatch) -> RecurrentState:
        """The state that the step's batch number `turn` begins with."""
        assert batch.carried is not None
        return begin_state(self._states[turn], batch.carried, batch.tokens.device)

    def stage(self, turn: int, batch: TrainingBatch, state: RecurrentState) -> None:
        """Take what that batch has left, cut from the graph, one row for each lane."""
        assert batch.last is not None
        after = state.next()
        if len(batch.last) < len(batch.segments):
            after = after.select(torch.from_numpy(batch.last).to(batch.tokens.device))
        self._staged[turn] = after

    def commit(self) -> None:
        """The step is done: its states are those to go on from."""
        self._states = list(self._staged)

    def tensors(self) -> dict[int, dict[str, torch.Tensor]]:
        """Memories by set number and name, on the CPU."""
        found = zip(self.numbers, self._states, strict=True)
        return {
            number: {name: x.detach().cpu().contiguous() for name, x in state.before.items()}
            for number, state in found
            if state is not None
        }

    def restore(self, load: Callable[[int], dict[str, torch.Tensor]], device: torch.device) -> None:
        """Set the states to what `tensors` gave; `load` returns the memories of a set by its number."""
        self._states = [
            RecurrentState({name: x.to(device) for name, x in load(number).items()}) for number in self.numbers
        ]
        self._staged = list(self._states)
