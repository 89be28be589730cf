"""Sums of chunk states that fade on the way, forward or backward, in a few matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F

# Chunks joined by one product: 32 keep its cost below that of making the states, for chunks of 64 tokens.
_JOINED = 32


def faded_sums(x: torch.Tensor, fade: torch.Tensor, fresh: torch.Tensor, backward: bool = False) -> torch.Tensor:
    """For every chunk the sum over the earlier (or later) chunks of its sequence, each faded by the chunks between.

    Parameters
    ----------
    x : torch.Tensor, shape (H, N, X)
        State that each chunk makes.
    fade : torch.Tensor, shape (H, N), float64
        Logarithm, at most 0, of what a whole chunk leaves of the states that pass it.
    fresh : torch.Tensor, shape (N,), bool
        True where a chunk is the first of its sequence.
    backward : bool
        Sum what comes after in place of what came before.

    Returns
    -------
    torch.Tensor, shape (H, N, X)
        Chunk i: sum over j < i (j > i) of the same sequence of exp(sum of `fade` strictly between i and j) x_j.

    Notes
    -----
    A product with a triangular matrix for every 32 chunks, then the same once more over the sums of those groups:
    O(32 H N X) time, depth log N, and the number and lengths of the sequences do not matter. Products add up in float32
    and sums of groups are float32; a bfloat16 `x` is rounded once per level, not once per chunk. Sums of `fade` are
    taken in float64, since those of chunks in other sequences cancel. Backward is the transposed product.
    """
    return _faded(x, fade, fresh, True, backward)


def _faded(x: torch.Tensor, fade: torch.Tensor, fresh: torch.Tensor, closed: bool, backward: bool) -> torch.Tensor:
    """`closed`: a fresh element reads nothing itself. Groups that hold a border do read, but let nothing pass."""
    n = x.shape[1]
    n_groups = -(-n // _JOINED)
    size = -(-n // n_groups)
    if n_groups * size > n:
        added = n_groups * size - n
        x, fade, fresh = F.pad(x, (0, 0, 0, added)), F.pad(fade, (0, added)), F.pad(fresh, (0, added))
    fade, groups = fade.unflatten(1, (n_groups, size)), x.unflatten(1, (n_groups, size))
    after = fade.cumsum(-1)
    before = after - fade
    borders = fresh.view(n_groups, size).cumsum(-1)
    reads = borders if closed else borders - fresh.view(n_groups, size).long()
    seen = (reads[:, :, None] == borders[:, None, :]).tril(-1)
    weights = (before[..., :, None] - after[..., None, :]).masked_fill(~seen, -torch.inf).exp()
    weights = weights.transpose(-1, -2) if backward else weights
    if n_groups == 1:
        return torch.matmul(weights.to(x.dtype), groups).flatten(1, 2)
    last = borders[:, -1:]
    # How much of a state reaches the end of its group, and how much of one that enters reaches an element.
    leaving = (after[..., -1:] - after).exp() * (borders == last)
    entering = before.exp() * (reads == 0)
    gives, takes = (entering, leaving) if backward else (leaving, entering)
    # The group's own sum is one more row of the product.
    product = torch.matmul(torch.cat([weights, gives[..., None, :]], -2).to(x.dtype), groups)
    inner, sums = product.split((size, 1), -2)
    wide = torch.promote_types(x.dtype, torch.float32)
    carried = _faded(sums.squeeze(-2).to(wide), after[..., -1], last.squeeze(-1) > 0, False, backward)
    out = torch.addcmul(inner, takes.to(x.dtype)[..., None], carried.to(x.dtype)[..., None, :])
    return out.flatten(1, 2)[:, :n]
