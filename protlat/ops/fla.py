"""Decay and delta-rule heads on the kernels of flash-linear-attention: CUDA only, an optional package.

References
----------
Yang and Zhang 2024, "FLA: a Triton-based library for hardware-efficient implementations of linear attention".
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from protlat.errors import ConfigError, MissingExtraError
from protlat.ops.segments import Segments

_HALF = (torch.bfloat16, torch.float16)


def require_fla() -> None:
    """Stop unless the package is installed.

    Raises
    ------
    MissingExtraError
        With the install command.
    """
    _kernel("simple_gla", "chunk_simple_gla")


def decay_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    segments: Segments,
    causal: bool,
    own: torch.Tensor | None = None,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`protlat.ops.decay.decay_attention` without a normaliser; both directions are two passes.

    Parameters
    ----------
    q, k, v : torch.Tensor, shape (T, H, M) and (T, H, D)
    log_decay : torch.Tensor, shape (T, H), float32
    segments : Segments
    causal : bool
    own : torch.Tensor, shape (T, H), or None
    start : torch.Tensor, shape (S, H, M, D), float32, or None
        Causal only: state of each sequence before its first token.

    Returns
    -------
    out : torch.Tensor, shape (T, H, D)
    state : torch.Tensor, shape (S, H, M, D)
        Behind the last token of each sequence, of the forward direction.

    Raises
    ------
    MissingExtraError, ConfigError
        The package is missing; the tensors are not on a CUDA device.
    """
    run = _kernel("simple_gla", "chunk_simple_gla")
    require_cuda(q.device)
    borders = segments.cu_seqlens

    def scan(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, start: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # One row of a batch holds all sequences; a scale is not applied, since queries come normalised.
        batched = {name: x.contiguous()[None] for name, x in (("q", q), ("k", k), ("v", v), ("g", g.float()))}
        out, state = run(**batched, scale=1.0, initial_state=start, output_final_state=True, cu_seqlens=borders)
        return out[0], state

    out, state = scan(q, k, v, log_decay, start)
    if not causal:
        turn = _reversed_rows(segments)
        back, _ = scan(q[turn], k[turn], v[turn], log_decay[turn], None)
        out = out + back[turn]
    if own is not None or not causal:
        # Each direction counts a token's own weight q_i . k_i once.
        score = (q.float() * k.float()).sum(-1)
        counted = score if causal else 2 * score
        out = torch.addcmul(out, ((score if own is None else own) - counted).to(v.dtype)[..., None], v)
    return out, state


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    log_decay: torch.Tensor | None,
    segments: Segments,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`protlat.ops.delta.delta_rule` on the package's kernels, which take bfloat16 and float16 only.

    Raises
    ------
    MissingExtraError, ConfigError
        The package is missing; the tensors are not on a CUDA device, or of another precision.
    """
    gated = log_decay is not None
    run = _kernel("gated_delta_rule", "chunk_gated_delta_rule") if gated else _kernel("delta_rule", "chunk_delta_rule")
    require_cuda(q.device)
    if q.dtype not in _HALF:
        raise ConfigError(
            f"attention.implementation: fla has no delta rule in {str(q.dtype).removeprefix('torch.')}; run in bf16, or "
            f"use implementation: chunked"
        )
    batched = {name: x.contiguous()[None] for name, x in (("q", q), ("k", k), ("v", v), ("beta", beta.to(q.dtype)))}
    if log_decay is not None:
        batched["g"] = log_decay.float().contiguous()[None]
    out, state = run(**batched, scale=1.0, initial_state=start, output_final_state=True, cu_seqlens=segments.cu_seqlens)
    return out[0], state


def require_cuda(device: torch.device) -> None:
    """Stop on any other device: the kernels are written in Triton for CUDA."""
    if device.type != "cuda":
        raise ConfigError(
            f"attention.implementation: fla runs on CUDA devices only, not on {device.type}; use implementation: chunked"
        )


def _kernel(module: str, name: str) -> Any:
    try:
        return getattr(import_module(f"fla.ops.{module}"), name)
    except ImportError as error:
        raise MissingExtraError("fla", "fla", "attention.implementation: fla") from error


def _reversed_rows(segments: Segments) -> torch.Tensor:
    """Row at which each packed token stands when every sequence is turned round, shape (T,), int64."""

    def make() -> torch.Tensor:
        ends = segments.cu_seqlens[1:][segments.ids] - 1
        return ends - segments.rows

    return segments.derive("reversed", make)
