"""Axial blocks against attention over each column, one sequence at a time; leaks; the state of columns."""

from __future__ import annotations

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError
from protlat.models import CausalLM, ModelConfig
from protlat.models.transformer import Transformer
from protlat.nn.axial import axial_groups
from protlat.nn.state import RecurrentState
from protlat.ops import reference
from protlat.ops.segments import Segments

EXACT = {"rtol": 1e-9, "atol": 1e-10}
SETTINGS = {
    "d_model": 12,
    "n_layers": 2,
    "head_dim": 6,
    "local_conv": None,
    "attention": [{"kind": "window", "n_heads": 1, "radius": 3}, {"kind": "efficient", "n_heads": 1}],
}


def settings(**options: object) -> ModelConfig:
    return ModelConfig.parse({**SETTINGS, "axial_block": {"width": 4, "scale": 0.7}, **options})


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, dtype=parameter.dtype)
    return model.eval()


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    if not causal:
        return reference.efficient_attention(q, k, v)
    # Up to each token, by the definition of causal heads: exp(k) over its own sum so far, weights that sum to one.
    features = k.exp()
    rows = []
    for i in range(len(q)):
        weights = torch.einsum("hd,jhd->hj", q[i].softmax(-1), features[: i + 1])
        rows.append(torch.einsum("hj,jhd->hd", weights / weights.sum(-1, keepdim=True), v[: i + 1]))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [False, True])
def test_block_is_attention_over_each_column(rng: torch.Generator, causal: bool) -> None:
    block = shaken(Transformer(settings(causal=causal)).double()).axial_blocks[0]
    lengths = [11, 1, 4, 2]
    x = torch.randn(sum(lengths), 12, generator=rng, dtype=torch.float64).requires_grad_()
    out = []
    for part in x.split(lengths):
        normed = block.attention_norm(part)
        qkv = (normed @ block.attention.project.weight.T).unflatten(1, (3, 2, 6))
        mixed = torch.zeros(len(part), 2, 6, dtype=torch.float64)
        for offset in range(min(4, len(part))):
            q, k, v = qkv[offset::4].unbind(1)
            mixed = mixed.index_put((torch.arange(offset, len(part), 4),), 0.7 * plain_attention(q, k, v, causal))
        part = part + mixed.flatten(1) @ block.attention.mix.weight.T + block.attention.mix.bias
        out.append(part + block.feed_forward(block.feed_forward_norm(part)))
    ours, theirs = block(x, Segments(lengths)), torch.cat(out)
    torch.testing.assert_close(ours, theirs, **EXACT)
    inputs = [x, *block.parameters()]
    weight = torch.randn(ours.shape, generator=rng, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_groups_are_shorter_where_the_width_does_not_divide(rng: torch.Generator) -> None:
    groups = axial_groups(Segments([6, 2], offsets=[3, 0]), 4)
    # Positions 3 to 8 of the first: offset 0 has 4 and 8, offset 1 has 5, ...; the second has 0 and 1.
    assert groups.segments.lengths == (2, 1, 1, 2, 1, 1)
    assert groups.segments.offsets == (1, 1, 1, 0, 0, 0)
    assert groups.columns.tolist() == [0, 1, 2, 3, 4, 5]
    assert groups.order.tolist() == [1, 5, 2, 3, 0, 4, 6, 7]
    assert groups.order[groups.inverse].tolist() == list(range(8))


@pytest.mark.parametrize("reversible", [False, True])
def test_nothing_later_moves_a_causal_output(rng: torch.Generator, reversible: bool) -> None:
    model = shaken(Transformer(settings(causal=True, reversible=reversible)).double())
    segments = Segments([5, 19])
    x = torch.randn(24, 12, generator=rng, dtype=torch.float64).requires_grad_()
    out = model(x, segments)[2]
    for token in (6, 13, 23):
        gradient = torch.autograd.grad(out[token].sum(), x, retain_graph=True)[0].abs().amax(1)
        assert not gradient[token + 1 :].any()
        assert not gradient[:5].any()
        assert gradient[5 : token + 1].all()
    moved = x.detach().clone()
    moved[14:] += 100
    torch.testing.assert_close(model(moved, segments)[2][:14], out[:14], **EXACT)


@pytest.mark.parametrize("reversible", [False, True])
def test_a_document_in_pieces_is_the_document(rng: torch.Generator, reversible: bool) -> None:
    """Prompts shorter than the width, single tokens, and columns that begin and go on in one call."""
    torch.manual_seed(2)
    model = shaken(CausalLM(settings(causal=True, reversible=reversible, gate={"write": "head"}), PROTEIN).double())
    lengths = [3, 17, 30]
    documents = [torch.randint(4, 24, (n,), generator=rng) for n in lengths]
    with torch.no_grad():
        whole = model(torch.cat(documents), Segments(lengths)).split(lengths)
        state, read = RecurrentState(), [0, 0, 0]
        parts: list[list[torch.Tensor]] = [[], [], []]
        for piece in ((1, 6, 1), (1, 1, 1), (1, 10, 28)):
            tokens = torch.cat([d[at : at + n] for d, at, n in zip(documents, read, piece, strict=True)])
            logits = model(tokens, Segments(piece, offsets=read), state=state).split(piece)
            for kept, part in zip(parts, logits, strict=True):
                kept.append(part)
            read = [at + n for at, n in zip(read, piece, strict=True)]
            state = state.next()
            assert all(len(memory) == 3 for memory in state.before.values())
        for kept, expected in zip(parts, whole, strict=True):
            torch.testing.assert_close(torch.cat(kept), expected, **EXACT)


def test_sequences_of_a_state_can_be_chosen(rng: torch.Generator) -> None:
    model = shaken(CausalLM(settings(causal=True), PROTEIN).double())
    tokens = torch.randint(4, 24, (20,), generator=rng)
    with torch.no_grad():
        state = RecurrentState()
        model(tokens, Segments([9, 11]), state=state)
        state = state.next().select(torch.tensor([1]))
        step = model(tokens[:1], Segments([1], offsets=[11]), state=state)
        whole = model(torch.cat([tokens[9:], tokens[:1]]), Segments([12]))
    torch.testing.assert_close(step, whole[-1:], **EXACT)


def test_a_width_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"axial_block\.width"):
        settings(axial_block={"width": 1})
