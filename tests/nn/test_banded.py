"""Banded heads: their start, their settings, and the state of causal ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from protlat.errors import ConfigError
from protlat.models import ModelConfig
from protlat.nn.attention.banded import BandedAttention, BandedAttentionConfig
from protlat.nn.attention.window import WindowAttentionConfig
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments

EXACT = {"rtol": 1e-9, "atol": 1e-10}
CAUSAL_OPTIONS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "evo": {"rounds": 3, "activation": "gelu", "shared_taps": True},
    "wider": {"rounds": 2, "normalise": "rmsnorm", "remask_output": False},
    "plain": {"normalise": "none", "rotary": False, "scale": False},
}


def heads(generator: torch.Generator, n_tokens: int) -> list[torch.Tensor]:
    return [torch.randn(n_tokens, 2, 4, generator=generator, dtype=torch.float64) for _ in range(3)]


def core_of(generator: torch.Generator, causal: bool, **options: Any) -> BandedAttention:
    core = BandedAttentionConfig(n_heads=2, radius=6, **options).build(4, causal).double()
    with torch.no_grad():
        core.taps += 0.4 * torch.randn(core.taps.shape, generator=generator, dtype=torch.float64)
    return core


@pytest.mark.parametrize("options", [{}, {"shared_taps": True, "rounds": 3}, {"rotary": False, "taps": 13}])
def test_a_new_layer_is_window_attention(rng: torch.Generator, options: dict[str, Any]) -> None:
    inputs, segments = heads(rng, 70), Segments([40, 1, 29])
    ours = BandedAttentionConfig(n_heads=2, radius=6, **options).build(4, False).double()
    window = WindowAttentionConfig(n_heads=2, radius=6, rotary=options.get("rotary", True)).build(4, False)
    torch.testing.assert_close(ours(*inputs, segments), window(*inputs, segments), **EXACT)


@pytest.mark.parametrize("name", CAUSAL_OPTIONS)
@pytest.mark.parametrize("cuts", [[1] * 25, [4, 1, 1, 12, 7], [25], [3, 22]])
def test_pieces_and_steps_equal_the_whole(rng: torch.Generator, name: str, cuts: list[int]) -> None:
    """Two sequences, the second of which begins two calls later: memories of different fill."""
    core = core_of(rng, True, **CAUSAL_OPTIONS[name])
    first, late = heads(rng, 25), heads(rng, 25)
    with torch.no_grad():
        whole = core(*first, Segments([25])), core(*late, Segments([25]))
        state, parts, done = RecurrentState(), ([], []), 0
        for n in cuts:
            pieces = [torch.cat([a[done : done + n], b[done : done + n]]) for a, b in zip(first, late, strict=True)]
            out = core(*pieces, Segments([n, n], offsets=[done, done]), state=state)
            for kept, part in zip(parts, out.split(n), strict=True):
                kept.append(part)
            state, done = state.next(), done + n
    for expected, kept in zip(whole, parts, strict=True):
        torch.testing.assert_close(torch.cat(kept), expected, **EXACT)


@pytest.mark.parametrize("name", CAUSAL_OPTIONS)
def test_prompts_of_different_length_go_on_together(rng: torch.Generator, name: str) -> None:
    core = core_of(rng, True, **CAUSAL_OPTIONS[name])
    lengths = [1, 9, 4]
    sequences = [heads(rng, n + 5) for n in lengths]
    with torch.no_grad():
        state = RecurrentState()
        prompts = [torch.cat([s[i][:n] for s, n in zip(sequences, lengths, strict=True)]) for i in range(3)]
        core(*prompts, Segments(lengths), state=state)
        for step in range(5):
            state = state.next()
            at = [n + step for n in lengths]
            new = [torch.stack([s[i][t] for s, t in zip(sequences, at, strict=True)]) for i in range(3)]
            out = core(*new, Segments([1, 1, 1], offsets=at), state=state)
            for row, sequence, t in zip(out, sequences, at, strict=True):
                whole = core(*(x[: t + 1] for x in sequence), Segments([t + 1]))
                torch.testing.assert_close(row, whole[t], **EXACT)
    assert all(x.shape == (3, core.reach, 2, 4) for x in state.next().before.values())


def test_gradients_flow_through_a_state_that_is_kept(rng: torch.Generator) -> None:
    core = core_of(rng, True, rounds=2)
    inputs = [x.requires_grad_() for x in heads(rng, 12)]
    whole = core(*inputs, Segments([12]))[7:].square().sum()
    state = RecurrentState()
    core(*(x[:7] for x in inputs), Segments([7]), state=state)
    pieces = core(*(x[7:] for x in inputs), Segments([5], offsets=[7]), state=state.next(detach=False)).square().sum()
    for a, b in zip(torch.autograd.grad(whole, inputs), torch.autograd.grad(pieces, inputs), strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taps": 4}, "taps 4 is even.*use 5"),
        ({"radius": 2, "taps": 7}, "taps 7 is wider than the band of 5 keys; use fewer taps"),
        ({"activation": "gelu"}, "one round; use rounds of at least 2"),
        ({"remask_output": False}, "cannot act with normalise softmax.*use normalise none or rmsnorm"),
        ({"round": 2}, "unknown key; did you mean 'rounds'"),
    ],
)
def test_settings_that_cannot_act_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.parse({"attention": [{"kind": "banded", "n_heads": 1, **options}]})


def test_odd_head_dim_is_refused_with_rotary() -> None:
    values = {"head_dim": 9, "attention": [{"kind": "banded", "n_heads": 1}]}
    with pytest.raises(ConfigError, match="head_dim 9 is odd"):
        ModelConfig.parse(values)
    values["attention"][0]["rotary"] = False
    assert ModelConfig.parse(values).head_dim == 9
