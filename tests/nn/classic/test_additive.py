"""Additive attention and the pooling head."""

from __future__ import annotations

import pytest
import torch

from protlat.nn.classic import AdditiveAttention, AttentionPooling, additive
from protlat.ops.segments import Segments


def plain_additive(
    module: AdditiveAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    rows = []
    for b, n in enumerate(lengths):
        for i in range(q.shape[1]):
            scores = [
                module.score.weight[0] @ torch.tanh(module.query.weight @ q[b, i] + module.key.weight @ k[b, j])
                for j in range(n)
            ]
            rows.append(torch.stack(scores).softmax(0) @ v[b, :n])
    return torch.stack(rows).unflatten(0, (len(lengths), -1))


@pytest.mark.parametrize("numbers", [1, 10**6])
def test_additive_attention(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    monkeypatch.setattr(additive, "_NUMBERS_AT_ONCE", numbers)
    torch.manual_seed(1)
    module = AdditiveAttention(3, 4, 5).double()
    q, k, v = (torch.randn(2, n, width, generator=rng, dtype=torch.float64) for n, width in ((4, 3), (6, 4), (6, 2)))
    ours, theirs = module(q, k, v, torch.tensor([6, 2])), plain_additive(module, q, k, v, [6, 2])
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(x.square().sum(), list(module.parameters())) for x in (ours, theirs))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def pooling() -> AttentionPooling:
    torch.manual_seed(2)
    module = AttentionPooling(4, 5).double()
    with torch.no_grad():
        module.score.weight.normal_()
    return module


def test_pooling_is_additive_attention_with_one_query(rng: torch.Generator) -> None:
    module, lengths = pooling(), [3, 1, 8]
    x = torch.randn(sum(lengths), 4, generator=rng, dtype=torch.float64).requires_grad_()
    ours = module(x, Segments(lengths))
    theirs = []
    for part in x.split(lengths):
        scores = torch.stack(
            [module.score.weight[0] @ torch.tanh(module.key.weight @ row + module.query) for row in part]
        )
        theirs.append(scores.softmax(0) @ part)
    torch.testing.assert_close(ours, torch.stack(theirs))
    wanted = [x, *module.parameters()]
    gradients = (torch.autograd.grad(out.square().sum(), wanted) for out in (ours, torch.stack(theirs)))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_rows_that_do_not_count(rng: torch.Generator) -> None:
    module, lengths = pooling(), [5, 2, 3]
    x = torch.randn(10, 4, generator=rng, dtype=torch.float64)
    keep = torch.tensor([False, True, True, True, False, False, False, True, True, True])
    ours = module(x, Segments(lengths), keep)
    torch.testing.assert_close(ours[0], module(x[1:4], Segments([3]))[0])
    assert torch.equal(ours[1], torch.zeros(4, dtype=torch.float64))
    poisoned = x.masked_fill(~keep[:, None], 1e6)
    torch.testing.assert_close(module(poisoned, Segments(lengths), keep), ours)


def test_a_new_head_is_the_mean(rng: torch.Generator) -> None:
    x = torch.randn(9, 4, generator=rng)
    pooled = AttentionPooling(4)(x, Segments([4, 5]))
    torch.testing.assert_close(pooled, torch.stack([part.mean(0) for part in x.split([4, 5])]))
    assert AttentionPooling(4).bfloat16()(x.bfloat16(), Segments([9])).dtype == torch.bfloat16


def test_the_head_learns_which_rows_matter(rng: torch.Generator) -> None:
    """The class stands in one marked row among 40; the mean alone does not find it as well."""
    torch.manual_seed(0)
    n, length = 200, 40
    x = torch.randn(n, length, 6, generator=rng)
    label = torch.randint(0, 2, (n,), generator=rng)
    at = torch.randint(0, length, (n,), generator=rng)
    row = torch.arange(n)
    x[row, at, 0] = 6.0
    x[row, at, 1] = 2.0 * (2 * label - 1).float()
    head, readout = AttentionPooling(6, 8), torch.nn.Linear(6, 2)
    optim = torch.optim.Adam([*head.parameters(), *readout.parameters()], lr=0.05)
    segments = Segments([length] * n)
    for _ in range(120):
        optim.zero_grad()
        loss = torch.nn.functional.cross_entropy(readout(head(x.flatten(0, 1), segments)), label)
        loss.backward()
        optim.step()
    accuracy = (readout(head(x.flatten(0, 1), segments)).argmax(1) == label).float().mean()
    assert accuracy > 0.95
    weights = head.weights(x.flatten(0, 1), segments).view(n, length)
    assert weights[row, at].mean() > 5 / length
