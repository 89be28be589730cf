"""What every causal model keeps: nothing moves back, pieces with state equal the whole, sequences do not touch."""

from __future__ import annotations

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError
from protlat.models import CausalLM, ModelConfig
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments
from tests.models.variants import CAUSAL, bfloat16_error

LENGTHS = [9, 1, 30, 17]
EVERY = pytest.mark.parametrize("name", CAUSAL)
# A float64 product taken in another order; the normaliser divides by sums that may be small.
EXACT = {"rtol": 1e-8, "atol": 1e-9}


def build(name: str, dtype: torch.dtype = torch.float64) -> CausalLM:
    torch.manual_seed(3)
    model = CausalLM(CAUSAL[name], PROTEIN).to(dtype).eval()
    with torch.no_grad():
        # Zero starts (convolution, biases) would hide faults.
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=dtype)
    return model


def residues(generator: torch.Generator, n: int) -> torch.Tensor:
    return torch.randint(4, 24, (n,), generator=generator)


def in_pieces(
    model: CausalLM, sequences: list[torch.Tensor], cuts: list[list[int]], detach: bool = True
) -> list[torch.Tensor]:
    """Logits of sequences read in pieces; `cuts` holds the lengths of each call's pieces, one for every sequence."""
    state, at = RecurrentState(), [0] * len(sequences)
    out: list[list[torch.Tensor]] = [[] for _ in sequences]
    for lengths in cuts:
        pieces = [x[start : start + n] for x, start, n in zip(sequences, at, lengths, strict=True)]
        logits = model(torch.cat(pieces), Segments(lengths, offsets=at), state=state)
        for collected, piece in zip(out, logits.split(lengths), strict=True):
            collected.append(piece)
        at = [start + n for start, n in zip(at, lengths, strict=True)]
        state = state.next(detach)
    return [torch.cat(pieces) for pieces in out]


@EVERY
def test_a_token_moves_nothing_before_it(rng: torch.Generator, name: str) -> None:
    model = build(name)
    tokens, segments = residues(rng, sum(LENGTHS)), Segments(LENGTHS)
    with torch.no_grad():
        logits = model(tokens, segments)
        for t in (10, 17, 25, 39):
            changed = tokens.clone()
            changed[t] = 4 + (tokens[t] - 3) % 20
            moved = model(changed, segments)
            torch.testing.assert_close(moved[:t], logits[:t], **EXACT)
            assert not torch.allclose(moved[t], logits[t], **EXACT)


@EVERY
def test_no_gradient_reaches_later_tokens(rng: torch.Generator, name: str) -> None:
    model = build(name)
    tokens, segments = residues(rng, 40), Segments([40])
    inputs: list[torch.Tensor] = []
    model.encoder.embedding.register_forward_hook(lambda _module, _args, out: inputs.append(out))
    logits = model(tokens, segments)
    for t in (0, 7, 15, 38):
        (gradient,) = torch.autograd.grad(logits[t].square().sum(), inputs[:1], retain_graph=True)
        assert gradient[t].abs().sum() > 0
        assert gradient[t + 1 : 40].abs().sum() == 0


@EVERY
def test_pieces_with_state_equal_the_whole(rng: torch.Generator, name: str) -> None:
    model = build(name)
    cuts = [[7, 1, 2], [1, 1, 1], [1, 1, 1], [3, 17, 2], [1, 1, 1], [12, 2, 9]]
    sequences = [residues(rng, n) for n in map(sum, zip(*cuts, strict=True))]
    with torch.no_grad():
        for sequence, read in zip(sequences, in_pieces(model, sequences, cuts), strict=True):
            torch.testing.assert_close(read, model(sequence, Segments([len(sequence)])), **EXACT)


@EVERY
def test_token_by_token_equals_the_whole(rng: torch.Generator, name: str) -> None:
    model = build(name)
    sequences = [residues(rng, 21), residues(rng, 21)]
    with torch.no_grad():
        read = in_pieces(model, sequences, [[1, 1]] * 21)
        whole = model(torch.cat(sequences), Segments([21, 21])).split(21)
    for a, b in zip(read, whole, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@EVERY
def test_gradients_flow_through_the_state(rng: torch.Generator, name: str) -> None:
    model = build(name)
    sequences = [residues(rng, 20), residues(rng, 14)]
    parameters = list(model.parameters())
    whole = model(torch.cat(sequences), Segments([20, 14]))
    expected = torch.autograd.grad(whole.square().mean(), parameters, allow_unused=True)
    read = torch.cat(in_pieces(model, sequences, [[6, 5], [1, 1], [13, 8]], detach=False))
    got = torch.autograd.grad(read.square().mean(), parameters, allow_unused=True)
    for (parameter, _), ours, theirs in zip(model.named_parameters(), got, expected, strict=True):
        assert (ours is None) == (theirs is None), parameter
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


@EVERY
def test_a_sequence_does_not_see_its_batch_mates(rng: torch.Generator, name: str) -> None:
    model = build(name)
    sequences = [residues(rng, n) for n in LENGTHS]
    with torch.no_grad():
        together = model(torch.cat(sequences), Segments(LENGTHS)).split(LENGTHS)
        for sequence, packed in zip(sequences, together, strict=True):
            torch.testing.assert_close(packed, model(sequence, Segments([len(sequence)])), **EXACT)


@EVERY
def test_states_of_some_sequences(rng: torch.Generator, name: str) -> None:
    """Sequences may end, be copied and change places between calls."""
    model = build(name)
    lengths, rest = [9, 2, 13], [4, 4, 4]
    sequences = [residues(rng, n + 4) for n in lengths]
    state = RecurrentState()
    with torch.no_grad():
        model(torch.cat([x[:n] for x, n in zip(sequences, lengths, strict=True)]), Segments(lengths), state=state)
        state = state.next()
        assert all(len(x) == 3 for x in state.before.values())
        rows = [2, 0, 2]
        chosen = state.select(torch.tensor(rows))
        tail = torch.cat([sequences[row][-4:] for row in rows])
        read = model(tail, Segments(rest, offsets=[lengths[row] for row in rows]), state=chosen).split(rest)
        for row, logits in zip(rows, read, strict=True):
            whole = model(sequences[row], Segments([lengths[row] + 4]))
            torch.testing.assert_close(logits, whole[-4:], **EXACT)


@EVERY
def test_a_state_reads_the_same_twice(rng: torch.Generator, name: str) -> None:
    model = build(name)
    tokens = residues(rng, 12)
    state = RecurrentState()
    with torch.no_grad():
        model(tokens[:7], Segments([7]), state=state)
        state = state.next()
        kept = {key: value.clone() for key, value in state.before.items()}
        first = model(tokens[7:], Segments([5], offsets=[7]), state=state)
        again = model(tokens[7:], Segments([5], offsets=[7]), state=state)
    assert torch.equal(first, again)
    for key, value in kept.items():
        assert torch.equal(value, state.before[key])


@EVERY
def test_bfloat16_stays_near_float32(rng: torch.Generator, name: str) -> None:
    """Relative error of the last layer, over all tokens, below 3 %: two blocks, 8 bits a value."""
    model = CausalLM(CAUSAL[name], PROTEIN).eval()
    tokens, segments = residues(rng, 300), Segments([200, 100])
    with torch.no_grad():
        wide = model.encoder(tokens, segments)[2]
        narrow = model.bfloat16().encoder(tokens, segments)[2].float()
    assert (narrow - wide).norm() / wide.norm() < bfloat16_error(CAUSAL[name])


@pytest.mark.parametrize("name", ["default", "efficient-blindspot", "linear-elu", "softmax"])
def test_a_state_in_bfloat16(rng: torch.Generator, name: str) -> None:
    model = build(name, torch.float32)
    tokens = residues(rng, 40)
    cuts = [[20], *[[1]] * 10, [10]]
    with torch.no_grad():
        wide = model(tokens, Segments([40]))
        narrow = in_pieces(model.bfloat16(), [tokens], cuts)[0]
    assert (narrow - wide).norm() / wide.norm() < 0.05


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention": [{"kind": "efficient", "n_heads": 1, "blindspot": 4}]}, "set causal: true"),
        ({"attention": [{"kind": "linear", "n_heads": 1, "blindspot": 0}]}, "greater than or equal to 1"),
        (
            {"causal": True, "attention": [{"kind": "linear", "n_heads": 1, "implementation": "split"}]},
            "use implementation auto or chunked",
        ),
        (
            {"attention": [{"kind": "efficient", "n_heads": 1, "implementation": "split", "chunk": 64}]},
            "chunk 64 does not act",
        ),
        (
            {"causal": True, "gate": {"write": "seed"}, "attention": [{"kind": "efficient", "n_heads": 1}]},
            "use gate.write channel or head, or linear heads",
        ),
        ({"gate": {"write": "seed", "write_bias": 1.0}}, "use write channel or head"),
        ({"gate": {"write": "seed"}, "attention": [{"kind": "window", "n_heads": 1}]}, "use gate.output"),
        ({"attention": [{"kind": "linear", "n_heads": 1, "rotary": "after"}]}, "before"),
        ({"head_dim": 7, "attention": [{"kind": "linear", "n_heads": 1, "rotary": "before"}]}, "use an even one"),
    ],
)
def test_settings_that_cannot_act_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.parse(values)


def test_seed_gate_has_no_weights() -> None:
    gated, plain = (
        CausalLM(ModelConfig.parse({**CAUSAL["write-seed"].to_plain(), "gate": gate}), PROTEIN)
        for gate in ({"write": "seed"}, {"write": "none"})
    )
    assert gated.n_parameters() == plain.n_parameters()
