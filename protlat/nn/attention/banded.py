"""Local heads whose scores pass through learned convolutions: banded attention and its rounds (EVO)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn
from typing_extensions import Self

from protlat.nn.attention.base import AttentionConfig
from protlat.nn.positions import rotate
from protlat.nn.state import RecurrentState
from protlat.ops.banded import Activation, BandSettings, Normalisation, banded_attention, banded_step
from protlat.ops.segments import Segments


class BandedAttention(nn.Module):
    """Scores of the keys at most `radius` away, convolved along the keys in `rounds` rounds, average the values.

    Parameters
    ----------
    n_heads, rounds, n_taps : int
    shared_taps : bool
        One kernel a round for all heads.
    rotary : bool
    settings : BandSettings

    Notes
    -----
    Kernels begin as the identity, so that a new layer with softmax is window attention (between rounds an activation
    acts all the same). A query's convolution needs its own scores alone, so that a causal head remembers the last
    `radius` keys and values and nothing of the convolution.
    """

    def __init__(
        self, n_heads: int, rounds: int, n_taps: int, shared_taps: bool, rotary: bool, settings: BandSettings
    ) -> None:
        super().__init__()
        self.rotary, self.settings = rotary, settings
        self.taps = nn.Parameter(torch.zeros(rounds, 1 if shared_taps else n_heads, n_taps))
        with torch.no_grad():
            self.taps[..., n_taps // 2] = 1
        self.reach = settings.reach(n_taps)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Segments,
        write_gate: torch.Tensor | None = None,
        extra: torch.Tensor | None = None,
        state: RecurrentState | None = None,
    ) -> torch.Tensor:
        if self.rotary:
            q, k = rotate(q, segments), rotate(k, segments)
        if state is None:
            return banded_attention(q, k, v, self.taps, segments, self.settings)
        # Keys are kept turned: their positions count from the start of the whole sequence.
        offsets = segments.offsets or (0,) * len(segments)
        keys, values = state.get("keys"), state.get("values")
        if keys is None or values is None:
            keys = values = k.new_zeros(len(segments), self.reach, *k.shape[1:])
        if max(segments.lengths) == 1:
            keys, values = torch.cat([keys, k[:, None]], 1), torch.cat([values, v[:, None]], 1)
            state.put("keys", keys[:, 1:])
            state.put("values", values[:, 1:])
            n_before = torch.tensor(offsets, device=q.device)
            return banded_step(q, keys, values, n_before, self.taps, self.settings)
        return self._piece(q, k, v, keys, values, segments, offsets, state)

    def _piece(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        segments: Segments,
        offsets: tuple[int, ...],
        state: RecurrentState,
    ) -> torch.Tensor:
        """Several tokens of each sequence: the remembered rows stand before them, and their own results are dropped."""
        lengths = list(segments.lengths)
        n_kept = [min(offset, self.reach) for offset in offsets]
        longer = Segments([n + m for n, m in zip(lengths, n_kept, strict=True)], segments.device)

        def joined(memory: torch.Tensor, own: torch.Tensor) -> list[torch.Tensor]:
            parts = zip(memory, n_kept, own.split(lengths), strict=True)
            return [torch.cat([rows[self.reach - m :], part]) for rows, m, part in parts]

        all_keys, all_values = joined(keys, k), joined(values, v)
        for name, parts in (("keys", all_keys), ("values", all_values)):
            last = [F.pad(x[-self.reach :], (0, 0, 0, 0, max(self.reach - len(x), 0), 0)) for x in parts]
            state.put(name, torch.stack(last))
        queries = torch.cat(joined(torch.zeros_like(keys), q))
        out = banded_attention(
            queries, torch.cat(all_keys), torch.cat(all_values), self.taps, longer, self.settings
        ).split(longer.lengths)
        return torch.cat([part[m:] for part, m in zip(out, n_kept, strict=True)])


class BandedAttentionConfig(AttentionConfig):
    """Local heads with a learned convolution over their scores, in one or several rounds; cost linear in length."""

    kind: Literal["banded"] = "banded"
    radius: int = Field(64, ge=1)
    """Greatest distance, in tokens, that a head sees on either side (causal: before it)."""
    rounds: int = Field(1, ge=1)
    """Rounds of mask and convolution, each with kernels of its own; several make EVO attention."""
    taps: int = Field(5, ge=3)
    """Length of a kernel, odd, at most 2 radius + 1."""
    shared_taps: bool = False
    """One kernel a round for all heads of the group, not one per head."""
    normalise: Normalisation = "softmax"
    """softmax; rmsnorm (a row of scores over its root mean square and the root of its length); none."""
    activation: Activation = "none"
    """Between rounds: none, gelu, relu, silu or tanh. Without one, several rounds are one linear map of the scores."""
    scale: bool = True
    """Divide scores by sqrt(head_dim)."""
    rotary: bool = True
    """Turn queries and keys by their position, so that scores depend on distance."""
    remask_output: bool = True
    """Mask what the last convolution moved out of the band; false lets it reach taps // 2 keys farther."""

    @model_validator(mode="after")
    def _can_act(self) -> Self:
        if self.taps % 2 == 0:
            raise ValueError(f"taps {self.taps} is even, but a kernel is centred on its key; use {self.taps + 1}")
        if self.taps > 2 * self.radius + 1:
            raise ValueError(
                f"taps {self.taps} is wider than the band of {2 * self.radius + 1} keys; use fewer taps or a larger radius"
            )
        if self.activation != "none" and self.rounds == 1:
            raise ValueError(
                f"activation {self.activation} stands between rounds, but there is one round; use rounds of at least 2, "
                f"or activation none"
            )
        if not self.scale and self.normalise == "rmsnorm" and self.activation in ("none", "relu"):
            raise ValueError(
                "scale false cannot act with normalise rmsnorm, which divides by the size of the scores; leave scale at "
                "true, or use an activation between rounds that depends on their size (gelu, silu, tanh)"
            )
        if not self.remask_output and self.normalise == "softmax":
            raise ValueError(
                "remask_output false cannot act with normalise softmax, which gives no weight outside the band; use "
                "normalise none or rmsnorm"
            )
        return self

    def build(self, head_dim: int, causal: bool) -> BandedAttention:
        settings = BandSettings(self.radius, causal, self.normalise, self.activation, self.scale, self.remask_output)
        return BandedAttention(self.n_heads, self.rounds, self.taps, self.shared_taps, self.rotary, settings)
