"""Single steps against the form in chunks, in float64, gradients included."""

from __future__ import annotations

import pytest
import torch

from protlat.nn.attention import EfficientAttentionConfig, LinearAttentionConfig
from protlat.nn.state import RecurrentState
from protlat.ops.causal_step import StepSums, exp_step, linear_step
from protlat.ops.segments import Segments

CORES = {
    "linear": LinearAttentionConfig(n_heads=2),
    "linear, rotary": LinearAttentionConfig(n_heads=2, rotary=True, eps=0.1),
    "linear, before": LinearAttentionConfig(n_heads=2, rotary="before"),
    "efficient": EfficientAttentionConfig(n_heads=2),
    "efficient, rotary": EfficientAttentionConfig(n_heads=2, rotary=True),
}


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("shift", [0.0, -300.0, 200.0])
def test_steps_are_the_whole(name: str, shift: float) -> None:
    torch.manual_seed(0)
    core = CORES[name].build(8, True).double()
    inputs = [torch.randn(15, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    gate = torch.rand(15, 2, 1, dtype=torch.float64) + 0.1
    q, k, v = inputs[0], inputs[1] + shift, inputs[2]
    # Three sequences of five tokens; the last begins two steps after the others.
    whole = core(q, k, v, Segments([5, 5, 5]), gate)
    state, out = RecurrentState(), []
    for step in range(7):
        places = [(row, step - 2 * (row == 2)) for row in range(3)]
        places = [(row, t) for row, t in places if 0 <= t < 5]
        if step == 2:
            state = state.select(torch.tensor([0, 1, -1]))
        if step == 5:
            state = state.select(torch.tensor([2]))
        at = torch.tensor([5 * row + t for row, t in places])
        segments = Segments([1] * len(at), offsets=[t for _, t in places])
        out += list(zip(at.tolist(), core(q[at], k[at], v[at], segments, gate[at], state=state), strict=True))
        state = state.next(detach=False)
    steps = torch.stack([x for _, x in sorted(out, key=lambda pair: pair[0])])
    torch.testing.assert_close(steps, whole, rtol=1e-9, atol=1e-12)
    weights = torch.randn_like(whole)
    ours, theirs = (torch.autograd.grad((x * weights).sum(), inputs, retain_graph=True) for x in (steps, whole))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


def test_half_precision_values_meet_sums_in_float32() -> None:
    q, k, v = (torch.rand(3, 2, 8).bfloat16() for _ in range(3))
    empty = StepSums(torch.zeros(3, 2, 8, 8), torch.zeros(3, 2, 8))
    out, sums = linear_step(q, k, v, empty)
    assert out.dtype == torch.bfloat16
    assert sums.memory.dtype == sums.norm.dtype == torch.float32
    # One key: whatever its weight, the value is read.
    torch.testing.assert_close(out, v, rtol=1e-2, atol=1e-3)
    out, _, peak = exp_step(q, k, v, empty, torch.full((3, 2, 8), -1e30))
    torch.testing.assert_close(out, v, rtol=1e-2, atol=1e-3)
    assert torch.equal(peak, k.float())


def test_features_of_zero_read_zero() -> None:
    zero = torch.zeros(1, 1, 4)
    out, _ = linear_step(zero, zero, torch.ones(1, 1, 4), StepSums(torch.zeros(1, 1, 4, 4), zero), eps=1e-6)
    assert torch.equal(out, zero)


def test_autocast_does_not_narrow_the_sums() -> None:
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.rand(3, 2, 8, generator=generator) for _ in range(3))
    past = StepSums(1000 * torch.rand(3, 2, 8, 8, generator=generator), 1000 * torch.rand(3, 2, 8, generator=generator))
    expected, _ = linear_step(q, k, v, past)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = linear_step(q, k, v, past)
    assert torch.equal(out, expected)
