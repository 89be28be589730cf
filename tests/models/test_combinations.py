"""Settings drawn at random either name a way out when they are refused, or keep every promise of a model.

Each test is one draw, named by its seed; `tests.models.combinations.draw(seed)` gives its settings again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError
from protlat.models import ModelConfig, describe_model, language_model_class
from protlat.models.language_model import LanguageModel
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments
from tests.models.combinations import CONTEXT_WIDTH, draw

LENGTHS = [9, 1, 33, 17, 7]
CONTEXT_LENGTHS = [4, 1, 20, 7, 3]
CUTS = [[4, 1, 2], [1, 1, 1], [1, 1, 1], [3, 17, 2], [12, 2, 9]]
# A product taken in another order, through three layers with a normaliser or a norm of small values.
CLOSE = {"rtol": 1e-7, "atol": 1e-8}
N_DRAWS = 110
WAYS_OUT = (" use ", " set ", " give ", " drop ", " leave ", " exchange ", "one with one", "one does the same")
Context = tuple[torch.Tensor, Segments] | tuple[None, None]


def build(seed: int) -> LanguageModel | None:
    """The model of a draw in float64; None where it is refused, with a way out."""
    refusal = ""
    try:
        config = ModelConfig.parse(draw(seed))
        torch.manual_seed(seed)
        model = language_model_class(config)(config, PROTEIN).double().eval()
    except ConfigError as error:
        refusal = str(error)
    if refusal:
        # A line for each fault.
        assert all(any(way in f" {line} " for way in WAYS_OUT) for line in refusal.splitlines()), refusal
        return None
    with torch.no_grad():
        # Zero starts (convolution, biases) would hide faults.
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype)
    return model


def residues(generator: torch.Generator, n: int) -> torch.Tensor:
    return torch.randint(4, 24, (n,), generator=generator)


def context_of(model: LanguageModel, generator: torch.Generator, lengths: list[int]) -> Context:
    if model.config.context is None:
        return None, None
    return torch.randn(sum(lengths), CONTEXT_WIDTH, generator=generator, dtype=torch.float64), Segments(lengths)


def part(context: Context, number: int) -> Context:
    """The context of one sequence alone."""
    vectors, segments = context
    if vectors is None or segments is None:
        return None, None
    own = vectors.split(segments.lengths)[number]
    return own, Segments([len(own)])


def check_batch_mates(model: LanguageModel, rng: torch.Generator) -> None:
    sequences = [residues(rng, n) for n in LENGTHS]
    context = context_of(model, rng, CONTEXT_LENGTHS)
    with torch.no_grad():
        together = model(torch.cat(sequences), Segments(LENGTHS), None, None, *context).split(LENGTHS)
        for number, (sequence, packed) in enumerate(zip(sequences, together, strict=True)):
            alone = model(sequence, Segments([len(sequence)]), None, None, *part(context, number))
            torch.testing.assert_close(packed, alone, **CLOSE)


def check_nothing_moves_back(model: LanguageModel, rng: torch.Generator) -> None:
    tokens, segments = residues(rng, sum(LENGTHS)), Segments(LENGTHS)
    context = context_of(model, rng, CONTEXT_LENGTHS)
    with torch.no_grad():
        logits = model(tokens, segments, None, None, *context)
        for t in (10, 25, 44):
            changed = tokens.clone()
            changed[t] = 4 + (tokens[t] - 3) % 20
            moved = model(changed, segments, None, None, *context)
            torch.testing.assert_close(moved[:t], logits[:t], **CLOSE)
            assert not torch.equal(moved[t], logits[t])


def check_pieces(model: LanguageModel, rng: torch.Generator) -> None:
    lengths = [sum(column) for column in zip(*CUTS, strict=True)]
    sequences = [residues(rng, n) for n in lengths]
    context = context_of(model, rng, CONTEXT_LENGTHS[:3])
    state, at, given = RecurrentState(), [0, 0, 0], context
    read: list[list[torch.Tensor]] = [[], [], []]
    with torch.no_grad():
        for cut in CUTS:
            pieces = [x[start : start + n] for x, start, n in zip(sequences, at, cut, strict=True)]
            logits = model(torch.cat(pieces), Segments(cut, offsets=at), None, state, *given)
            for collected, piece in zip(read, logits.split(cut), strict=True):
                collected.append(piece)
            at = [start + n for start, n in zip(at, cut, strict=True)]
            state, given = state.next(), (None, None)
        whole = model(torch.cat(sequences), Segments(lengths), None, None, *context).split(lengths)
    for ours, theirs in zip(read, whole, strict=True):
        torch.testing.assert_close(torch.cat(ours), theirs, **CLOSE)


def check_gradients(model: LanguageModel, rng: torch.Generator) -> None:
    """In training mode, random numbers the same each time: what recomputes layers must draw them again."""
    model.train()
    tokens, segments = residues(rng, 40), Segments([31, 1, 8])
    context = context_of(model, rng, CONTEXT_LENGTHS[:3])
    named = dict(model.named_parameters())

    def loss() -> torch.Tensor:
        torch.manual_seed(1)
        return model(tokens, segments, None, None, *context).log_softmax(-1)[:, 5:9].square().mean()

    gradients = torch.autograd.grad(loss(), list(named.values()), allow_unused=True)
    unused = [name for name, g in zip(named, gradients, strict=True) if g is None or not g.abs().sum() > 0]
    assert unused == []
    assert all(bool(g.isfinite().all()) for g in gradients)
    direction = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in named.values()]
    slope = float(sum((g * d).sum() for g, d in zip(gradients, direction, strict=True)))
    differences = []
    # The smaller step is for draws whose direction passes a corner: a relu, or another order of the best keys.
    for step in (1e-6, 1e-8):
        values = []
        for sign in (step, -step):
            with torch.no_grad():
                for p, d in zip(named.values(), direction, strict=True):
                    p += sign * d
                values.append(float(loss()))
                for p, d in zip(named.values(), direction, strict=True):
                    p -= sign * d
        differences.append((values[0] - values[1]) / (2 * step))
        if slope == pytest.approx(differences[-1], rel=1e-4, abs=1e-4):
            break
    else:
        raise AssertionError(f"slope {slope}, differences {differences}")
    model.eval()


def check_folder(model: LanguageModel, rng: torch.Generator, folder: Path) -> None:
    model.save_pretrained(folder)
    loaded = type(model).from_pretrained(folder, dtype=torch.float64)
    assert loaded.config == model.config
    tokens, segments = residues(rng, 10), Segments([7, 3])
    context = context_of(model, rng, [2, 3])
    with torch.no_grad():
        expected = model(tokens, segments, None, None, *context)
        assert torch.equal(loaded(tokens, segments, None, None, *context), expected)
    described = describe_model(folder)
    assert described["parameters"] == model.n_parameters()
    assert ModelConfig.parse(described["settings"]) == model.config


@pytest.mark.parametrize("seed", range(N_DRAWS))
def test_a_draw_is_refused_or_keeps_every_promise(seed: int, tmp_path: Path) -> None:
    model = build(seed)
    if model is None:
        return
    print(draw(seed))  # shown when the test fails
    rng = torch.Generator().manual_seed(seed)
    check_batch_mates(model, rng)
    if model.config.causal:
        check_nothing_moves_back(model, rng)
        check_pieces(model, rng)
    check_gradients(model, rng)
    check_folder(model, rng, tmp_path)


def test_enough_draws_are_built() -> None:
    built = [build(seed) for seed in range(N_DRAWS)]
    assert sum(model is not None for model in built) >= 30
