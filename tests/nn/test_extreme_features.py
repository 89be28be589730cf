"""Normalised heads at features that are zero, tiny or huge: values and gradients stay finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from protlat.nn.attention import (
    AttentionConfig,
    DecayAttentionConfig,
    DeltaAttentionConfig,
    EfficientAttentionConfig,
    LinearAttentionConfig,
)
from protlat.ops.segments import Segments

LENGTHS = [40, 1, 9]
_DECAY: dict[str, Any] = {"n_heads": 2, "normalise": "none", "normaliser": True}
HEADS: dict[str, AttentionConfig] = {
    "efficient": EfficientAttentionConfig(n_heads=2),
    **{f"linear {kind}": LinearAttentionConfig.parse({"n_heads": 2, "feature_map": {"kind": kind}})
       for kind in ("elu", "relu", "softmax")},
    **{f"decay {kind}": DecayAttentionConfig.parse({**_DECAY, "feature_map": {"kind": kind}})
       for kind in ("elu", "relu", "softmax")},
    "delta": DeltaAttentionConfig(n_heads=2, negative_eigenvalues=True),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 30.0, 200.0, 1e4])
@pytest.mark.parametrize(("name", "causal"), [(n, c) for n in HEADS for c in (False, True) if c or n != "delta"])
def test_values_and_gradients_are_finite(name: str, causal: bool, size: float, dtype: torch.dtype) -> None:
    config: Any = HEADS[name]
    core = config.build(4, causal)
    # With four channels, relu leaves some queries and whole sequences nothing.
    generator = torch.Generator().manual_seed(1)
    shape = (sum(LENGTHS), 2, 4)
    q, k, v = (
        (torch.randn(shape, generator=generator) * scale).to(dtype).requires_grad_() for scale in (size, size, 1.0)
    )
    extra = torch.randn(*shape[:2], config.n_extra, generator=generator).to(dtype) if config.n_extra else None
    out = core(q, k, v, Segments(LENGTHS), None, extra)
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out.float().square().sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_a_sequence_without_features_reads_zero_and_harms_no_other() -> None:
    core = LinearAttentionConfig.parse({"n_heads": 1, "feature_map": {"kind": "relu"}}).build(4, False)
    k = torch.rand(5, 1, 4)
    k[3:] = -1
    q, v = torch.rand(5, 1, 4), torch.rand(5, 1, 4)
    k.requires_grad_()
    out = core(q, k, v, Segments([3, 2]))
    assert torch.equal(out[3:], torch.zeros(2, 1, 4))
    (gradient,) = torch.autograd.grad(out.sum(), k)
    assert gradient.isfinite().all()
    alone = core(q[:3], k[:3], v[:3], Segments([3]))
    torch.testing.assert_close(out[:3], alone)
