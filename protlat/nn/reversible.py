"""Reversible residual layers: activations are computed back from the output, so their memory does not grow with depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

Addition = Callable[[torch.Tensor], torch.Tensor]


def reversible_chain(
    x: torch.Tensor, additions: Sequence[Addition], wanted: Iterable[int] | None = None
) -> dict[int, torch.Tensor]:
    """Two streams, each fed by what the other one holds.

    Both streams begin as x. With additions f, g, f, g, ... a block computes y1 = x1 + f(x2), then y2 = x2 + g(y1), and
    the value of the network at any depth is the mean of its streams.

    Parameters
    ----------
    x : torch.Tensor, shape (T, E)
    additions : sequence of callables, (T, E) -> (T, E)
        What attention and feed-forward layers add, first to last; any even number a block.
    wanted : iterable of int, or None
        Numbers of additions after which the mean is returned; None: after all of them.

    Returns
    -------
    dict of int to torch.Tensor, shape (T, E), dtype of x
        Means by number of additions done. Each keeps its two streams in memory until the backward pass.

    Raises
    ------
    RuntimeError
        In the backward pass, when it reaches an addition before those behind it, which only a loss on something else
        than the returned values (a state that was not detached) can cause.

    Notes
    -----
    The backward pass solves x2 = y2 - g(y1), then x1 = y1 - f(x2), from the last block to the first, and records the
    graph of one addition at a time while it does so, under the random numbers and the autocast state of the forward
    pass (that part is `torch.utils.checkpoint`, whose hooks make parameters, DeepSpeed and `torch.autograd.grad` work
    as ever). Memory: the streams, and the graph of one addition; time: a third more. Streams are held in float32 when
    x is narrower, since subtracting undoes an addition only to rounding.

    References
    ----------
    Gomez et al. 2017, "The reversible residual network", equations 6 to 8; Kitaev et al. 2020 (Reformer), section 3.
    """
    n = len(additions)
    taps = {n} if wanted is None else set(wanted)
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    record = _Record(x.dtype) if torch.is_grad_enabled() else None
    # (stream that changes next, stream that it is fed from)
    streams = (wide, wide)
    out: dict[int, torch.Tensor] = {}
    if 0 in taps:
        out[0] = x
    for number, addition in enumerate(additions, start=1):
        changing, source = streams
        if record is None:
            added = addition(source.to(x.dtype))
        else:
            added = record.run(number, addition, source)
        streams = (source, changing + added)
        if number in taps or number == n:
            if record is not None:
                record.kept[number] = (streams[0].detach(), streams[1].detach())
            if number in taps:
                out[number] = ((streams[0] + streams[1]) * 0.5).to(x.dtype)
    return out


class _Record:
    """Runs additions without keeping their inputs, and finds those again on the way back.

    Attributes
    ----------
    kept : dict of int to pair of tensors
        Streams after so many additions, where they are in memory anyway: the walk back starts there afresh.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.reached: tuple[int, tuple[torch.Tensor, torch.Tensor]] | None = None

    def run(self, number: int, addition: Addition, source: torch.Tensor) -> torch.Tensor:
        """addition(source), of which the graph keeps nothing."""
        # Emptied by the first call; a call that finds it empty is the recomputation.
        waiting = [source]
        needs_gradient = source.requires_grad

        def compute(_like: torch.Tensor) -> torch.Tensor:
            if waiting:
                return addition(waiting.pop().to(self.dtype))
            before, added = self._undo(number, addition, needs_gradient)
            self.reached = (number - 1, before) if number > 1 else None
            return added

        # An empty tensor tells `checkpoint` on which device random numbers are drawn. Stopping early would leave the
        # addition's last product, and with it the sum to undo, uncomputed.
        with set_checkpoint_early_stop(False):
            return checkpoint(compute, source.new_empty(0), use_reentrant=False)

    def _undo(
        self, number: int, addition: Addition, needs_gradient: bool
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        source, changed = self._streams_after(number)
        source = source.detach().requires_grad_(needs_gradient)
        added = addition(source.to(self.dtype))
        with torch.no_grad():
            return (changed - added, source.detach()), added

    def _streams_after(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if number in self.kept:
            return self.kept[number]
        if self.reached is None or self.reached[0] != number:
            raise RuntimeError(
                "reversible layers: the backward pass reached a layer before those behind it; take the loss from the "
                "model's output, and detach a state before the next call"
            )
        return self.reached[1]
