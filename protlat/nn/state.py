"""What a causal model remembers of the tokens before: read at the start of a call, written at its end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from typing_extensions import Self


class RecurrentState:
    """Memories of S sequences by name, each a tensor whose first dimension is S.

    One object serves the whole model; every layer works on its own part of the names (`sub`). A call reads what was
    there before it and writes what comes after it, apart from each other, so that a layer whose forward pass is
    computed twice (checkpointing, reversible blocks) reads the same memory both times.

    Zeros are no memory: a row of zeros, for a sequence whose offset in `Segments` is 0, must act as if nothing had been
    read. So sequences that begin anew can stand in one batch beside others that go on; a layer that keeps a buffer of
    tokens takes from the offset how many of them are there.

    Parameters
    ----------
    before : mapping of str to torch.Tensor, or None
        What an earlier call wrote; None or empty at the start of the sequences.

    Attributes
    ----------
    before, after : dict of str to torch.Tensor
    """

    def __init__(self, before: Mapping[str, torch.Tensor] | None = None) -> None:
        self.before: dict[str, torch.Tensor] = dict(before or {})
        self.after: dict[str, torch.Tensor] = {}
        self._prefix = ""

    def sub(self, name: str) -> Self:
        """The part of a layer inside this one: the same memories, names under `name`."""
        inner = type(self).__new__(type(self))
        inner.before, inner.after, inner._prefix = self.before, self.after, f"{self._prefix}{name}."
        return inner

    def get(self, name: str) -> torch.Tensor | None:
        """What the call before this one left, (S, ...); None at the start."""
        return self.before.get(self._prefix + name)

    def put(self, name: str, value: torch.Tensor) -> None:
        """Leave (S, ...) for the next call."""
        self.after[self._prefix + name] = value

    def next(self, detach: bool = True) -> RecurrentState:
        """The state that the next call begins with.

        Parameters
        ----------
        detach : bool
            Cut the graph, so that gradients stop at the border of the calls (truncated back-propagation).
        """
        return RecurrentState({name: x.detach() if detach else x for name, x in self.after.items()})

    def select(self, rows: torch.Tensor) -> RecurrentState:
        """The state of some of the sequences, in a new order.

        Parameters
        ----------
        rows : torch.Tensor, shape (R,), int64
            Sequence whose memories each row takes; -1: a sequence that begins anew.
        """
        new = rows < 0
        if not bool(new.any()):
            return RecurrentState({name: x.index_select(0, rows) for name, x in self.before.items()})
        rows, new = rows.clamp_min(0), new.nonzero().flatten()
        return RecurrentState({name: x.index_select(0, rows).index_fill(0, new, 0) for name, x in self.before.items()})
