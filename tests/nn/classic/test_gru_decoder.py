"""The recurrent decoder: teacher forcing against a plain loop, batch-mates, greedy decoding, a task it learns."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from protlat.nn.classic import GRUDecoder
from protlat.ops.segments import Segments

START, STOP = 0, 1


def decoder(n_layers: int = 1) -> GRUDecoder:
    torch.manual_seed(4)
    return GRUDecoder(7, 5, 4, 6, n_layers).double()


def plain(module: GRUDecoder, states: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """One sequence, one GRU layer: states (K, E), inputs (L,)."""
    weight_in, weight_hidden, bias_in, bias_hidden = module.gru.all_weights[0]
    attention = module.attention
    hidden = torch.tanh(module.start.weight @ states.mean(0) + module.start.bias)
    out = []
    for token in inputs:
        scores = torch.stack(
            [
                attention.score.weight[0] @ torch.tanh(attention.query.weight @ hidden + attention.key.weight @ state)
                for state in states
            ]
        )
        x = torch.cat([scores.softmax(0) @ states, module.embedding.weight[token]])
        reset_i, update_i, new_i = (weight_in @ x + bias_in).chunk(3)
        reset_h, update_h, new_h = (weight_hidden @ hidden + bias_hidden).chunk(3)
        update = torch.sigmoid(update_i + update_h)
        new = torch.tanh(new_i + torch.sigmoid(reset_i + reset_h) * new_h)
        hidden = (1 - update) * new + update * hidden
        out.append(module.readout.weight @ hidden + module.readout.bias)
    return torch.stack(out)


def test_teacher_forcing_equals_the_equations(rng: torch.Generator) -> None:
    module, lengths = decoder(), [4, 1, 6]
    states = torch.randn(sum(lengths), 5, generator=rng, dtype=torch.float64)
    inputs = torch.randint(0, 7, (3, 5), generator=rng)
    ours = module(states, Segments(lengths), inputs)
    theirs = torch.stack([plain(module, *pair) for pair in zip(states.split(lengths), inputs, strict=True)])
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(x.square().sum(), list(module.parameters())) for x in (ours, theirs))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_batch_mates_and_later_tokens_do_not_act(rng: torch.Generator) -> None:
    module, lengths = decoder(2), [4, 1, 6]
    states = torch.randn(sum(lengths), 5, generator=rng, dtype=torch.float64)
    inputs = torch.randint(0, 7, (3, 5), generator=rng)
    together = module(states, Segments(lengths), inputs)
    for row, part in enumerate(states.split(lengths)):
        alone = module(part, Segments([len(part)]), inputs[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone)
    changed = inputs.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % 7
    torch.testing.assert_close(module(states, Segments(lengths), changed)[:, :3], together[:, :3], rtol=0, atol=0)


def test_greedy_follows_teacher_forcing_and_stops_each_sequence_alone(rng: torch.Generator) -> None:
    module, lengths = decoder(2), [4, 1, 6, 3, 9]
    states = torch.randn(sum(lengths), 5, generator=rng, dtype=torch.float64)
    segments = Segments(lengths)
    found = module.greedy(states, segments, START, STOP, 8)
    for row, tokens in enumerate(found):
        inputs = torch.tensor([[START, *tokens]])
        expected = module(states.split(lengths)[row], Segments([lengths[row]]), inputs).argmax(-1)[0].tolist()
        assert STOP not in tokens
        assert expected[: len(tokens)] == tokens
        assert len(tokens) == 8 or expected[len(tokens)] == STOP
    assert module.greedy(states, segments, START, STOP, 0) == [[] for _ in lengths]


def test_it_learns_to_reverse(rng: torch.Generator) -> None:
    """Reading back to front needs attention that moves; tokens 2 to 6, encoded one-hot with their place."""
    torch.manual_seed(0)
    n, length = 64, 4
    source = torch.randint(2, 7, (n, length), generator=rng)
    places = torch.eye(length).expand(n, -1, -1)
    states = torch.cat([F.one_hot(source, 7).float(), places], -1).flatten(0, 1)
    module, segments = GRUDecoder(7, 7 + length, 8, 32), Segments([length] * n)
    target = torch.cat([source.flip(1), torch.full((n, 1), STOP)], 1)
    inputs = torch.cat([torch.full((n, 1), START), target[:, :-1]], 1)
    optim = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(150):
        optim.zero_grad()
        F.cross_entropy(module(states, segments, inputs).flatten(0, 1), target.flatten()).backward()
        optim.step()
    found = module.greedy(states, segments, START, STOP, 10)
    right = sum(row == list(reversed(original)) for row, original in zip(found, source.tolist(), strict=True))
    assert right > 0.9 * n
