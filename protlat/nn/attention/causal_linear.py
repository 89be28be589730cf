"""Causal global attention at linear cost: every token reads the keys up to itself, or of earlier buckets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import nn

from protlat.nn.positions import rotate
from protlat.nn.state import RecurrentState
from protlat.ops.causal import Past, Sums, causal_linear_attention
from protlat.ops.causal_exp import PeakedPast, causal_exp_attention
from protlat.ops.causal_merge import NOTHING, Peaked
from protlat.ops.causal_step import StepSums, exp_step, linear_step
from protlat.ops.segments import Segments

Rotary = bool | Literal["before"]


class CausalEfficientAttention(nn.Module):
    """Weights sum over channels c of softmax(q_i)_c exp(k_jc) over the keys seen, divided by their sum, times `scale`.

    References
    ----------
    Shen et al. 2021, equation 5, with sums that end at the query.
    """

    def __init__(self, scale: float, rotary: Rotary, chunk: int, blindspot: int) -> None:
        super().__init__()
        self.scale, self.rotary, self.chunk, self.blindspot = scale, rotary, chunk, blindspot

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
        if self.rotary == "before":
            q, k = rotate(q, segments), rotate(k, segments)
        if write_gate is not None:
            # exp(k + log g) is exp(k) g.
            k = k + write_gate.clamp_min(1e-30).log()
        if state is not None and self._can_step(segments):
            out = self._step(q, k, v, segments, state)
            return out if self.scale == 1.0 else out * self.scale
        out, after = causal_exp_attention(
            q, k, v, segments, self.chunk, self.blindspot, _turn(self.rotary, segments), _read_peaked(state, segments)
        )
        _write(state, after)
        return out if self.scale == 1.0 else out * self.scale

    def _can_step(self, segments: Segments) -> bool:
        return segments.is_step and self.blindspot == 1 and self.rotary is not True

    def _step(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, state: RecurrentState
    ) -> torch.Tensor:
        past, peak = _step_sums(v, k, state), state.get("seen.peak")
        if peak is None:
            peak = past.norm.new_full(k.shape, NOTHING)
        elif (fresh := _fresh(segments)) is not None:
            peak = peak.masked_fill(fresh[:, None, None], NOTHING)
        out, past, peak = exp_step(q, k, v, past, peak)
        for field, value in zip(Peaked._fields, (*past, peak), strict=True):
            state.put(f"seen.{field}", value)
        return out


class CausalLinearAttention(nn.Module):
    """Weights phi(q_i) . phi(k_j) over the keys seen, divided by their sum.

    References
    ----------
    Katharopoulos et al. 2020, equation 9; Su et al. 2021 (RoFormer), equation 19.
    """

    def __init__(self, feature_map: nn.Module, eps: float, rotary: Rotary, chunk: int, blindspot: int) -> None:
        super().__init__()
        self.feature_map = feature_map
        self.eps, self.rotary, self.chunk, self.blindspot = eps, rotary, chunk, blindspot
        self.seed_gate = False
        """Whether features are multiplied by their own sigmoid (`gate.write: seed`)."""

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
        if self.rotary == "before":
            q, k = rotate(q, segments), rotate(k, segments)
        features_q, features_k = self.feature_map(q), self.feature_map(k)
        if write_gate is not None:
            features_k = features_k * write_gate
        if self.seed_gate:
            features_k = features_k * features_k.sigmoid()
        if state is not None and segments.is_step and self.blindspot == 1:
            turned = (rotate(features_q, segments), rotate(features_k, segments)) if self.rotary is True else None
            out, past = linear_step(features_q, features_k, v, _step_sums(v, features_k, state), self.eps, turned)
            for field, value in zip(Sums._fields, past, strict=True):
                state.put(f"seen.{field}", value)
            return out
        out, after = causal_linear_attention(
            features_q, features_k, v, segments, self.chunk, self.blindspot, self.eps,
            _turn(self.rotary, segments), _read(state),
        )  # fmt: skip
        _write(state, after)
        return out


def _turn(rotary: Rotary, segments: Segments) -> Callable[[torch.Tensor], torch.Tensor] | None:
    return partial(rotate, segments=segments) if rotary is True else None


def _read(state: RecurrentState | None) -> Past | None:
    if state is None:
        return None
    return Past(
        *(None if x is None else Sums(*x) for x in (_parts(state, part, Sums._fields) for part in Past._fields))
    )


def _read_peaked(state: RecurrentState | None, segments: Segments) -> PeakedPast | None:
    if state is None:
        return None
    fields = (_parts(state, part, Peaked._fields) for part in PeakedPast._fields)
    return PeakedPast(*(None if x is None else _begin_anew(Peaked(*x), segments) for x in fields))


def _begin_anew(sums: Peaked, segments: Segments) -> Peaked:
    """Sequences without earlier tokens hold zeros: empty sums, whose greatest key is nothing, not zero."""
    fresh = _fresh(segments)
    return sums if fresh is None else sums._replace(peak=sums.peak.masked_fill(fresh[:, None], NOTHING))


def _fresh(segments: Segments) -> torch.Tensor | None:
    """Which sequences have no earlier tokens, (S,) bool; None: none of them."""
    if segments.offsets is None or 0 not in segments.offsets:
        return None
    return segments.derive("fresh", lambda: (torch.tensor(segments.offsets) == 0).to(segments.device))


def _step_sums(v: torch.Tensor, k: torch.Tensor, state: RecurrentState) -> StepSums:
    """What the state holds of keys like k (S, H, M) and values like v (S, H, D); zeros before the first token."""
    memory, norm = state.get("seen.memory"), state.get("seen.norm")
    wide = torch.promote_types(v.dtype, torch.float32)
    if memory is None:
        memory = v.new_zeros(*k.shape, v.shape[-1], dtype=wide)
    return StepSums(memory, v.new_zeros(k.shape, dtype=wide) if norm is None else norm)


def _parts(state: RecurrentState, part: str, fields: tuple[str, ...]) -> list[torch.Tensor] | None:
    """Tensors (S, H, ...) of the state as (H, S, ...)."""
    found = [state.get(f"{part}.{field}") for field in fields]
    kept = [x.transpose(0, 1) for x in found if x is not None]
    return kept if len(kept) == len(found) else None


def _write(state: RecurrentState | None, past: Past | PeakedPast) -> None:
    if state is None:
        return
    for part, sums in zip(past._fields, past, strict=True):
        if sums is not None:
            for field, value in zip(sums._fields, sums, strict=True):
                state.put(f"{part}.{field}", value.transpose(0, 1))
