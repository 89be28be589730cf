"""One token of every sequence through causal linear attention: the recurrence itself, in a few products."""

from __future__ import annotations

from typing import NamedTuple

import torch

from protlat.ops.divisor import divisor


class StepSums(NamedTuple):
    """What a head remembers, sequences first (as a state keeps it), float32 or wider.

    Attributes
    ----------
    memory : torch.Tensor, shape (S, H, M, D)
        Sum of features of keys times values.
    norm : torch.Tensor, shape (S, H, M)
        Sum of features of keys.
    """

    memory: torch.Tensor
    norm: torch.Tensor


def linear_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    past: StepSums,
    eps: float = 0.0,
    turned: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, StepSums]:
    """Add a key and value to the sums, and read them.

    Parameters
    ----------
    q, k : torch.Tensor, shape (S, H, M)
        Non-negative features of the one token of each sequence.
    v : torch.Tensor, shape (S, H, D)
    past : StepSums
    eps : float
        Floor of the normaliser, relative to the mean feature.
    turned : (torch.Tensor, torch.Tensor) or None
        What takes the place of q and k in the numerator.

    Returns
    -------
    out : torch.Tensor, shape (S, H, D)
    past : StepSums

    References
    ----------
    Katharopoulos et al. 2020, equations 18 to 20.
    """
    wide = past.memory.dtype
    q, k, rows_v = q.to(wide), k.to(wide), v.to(wide)
    turned_q, turned_k = (q, k) if turned is None else (x.to(wide) for x in turned)
    memory = torch.addcmul(past.memory, turned_k[..., None], rows_v[..., None, :])
    norm = past.norm + k
    # Autocast would read the sums, which are float32 on purpose, in half precision.
    with torch.autocast(v.device.type, enabled=False):
        value = torch.matmul(turned_q[..., None, :], memory)[..., 0, :]
    floored = norm if eps == 0 else norm + eps * norm.mean(-1, keepdim=True)
    weight = (q * floored).sum(-1, keepdim=True)
    return (value / divisor(weight)).to(v.dtype), StepSums(memory, norm)


def exp_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: StepSums, peak: torch.Tensor
) -> tuple[torch.Tensor, StepSums, torch.Tensor]:
    """The same for queries softmaxed over channels and exponential keys, with a running greatest key.

    Parameters
    ----------
    q, k : torch.Tensor, shape (S, H, M)
        Before softmax and exponential.
    v : torch.Tensor, shape (S, H, D)
    past : StepSums
        Of exp(k - peak).
    peak : torch.Tensor, shape (S, H, M)
        Greatest key of each channel so far.

    Returns
    -------
    out : torch.Tensor, shape (S, H, D)
    past : StepSums
    peak : torch.Tensor, shape (S, H, M)

    Notes
    -----
    No gradient flows through the greatest key, which cancels. Every channel's norm is at least one, since the greatest
    key is one of those that the token sees.

    References
    ----------
    Shen et al. 2021, equation 5, read causally; Milakov and Gimelshein 2018 (running maximum).
    """
    k = k.to(peak.dtype)
    new = torch.maximum(peak, k.detach())
    fade = (peak - new).exp()
    scaled = StepSums(past.memory * fade[..., None], past.norm * fade)
    out, sums = linear_step((q + new).softmax(-1), (k - new).exp(), v, scaled)
    return out, sums, new
