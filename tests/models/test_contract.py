"""What every variant of the encoder keeps: sequences do not touch each other, gradients are right, extremes work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.models import MaskedLM, ModelConfig
from protlat.nn import row_wise
from protlat.ops.segments import Segments
from tests.models.variants import VARIANTS, bfloat16_error

LENGTHS = [9, 1, 30, 30, 17]
EVERY = pytest.mark.parametrize("name", VARIANTS)
# A float64 product taken in another order.
EXACT = {"rtol": 1e-9, "atol": 1e-10}


def build(name_or_config: str | ModelConfig, dtype: torch.dtype = torch.float64) -> MaskedLM:
    config = VARIANTS[name_or_config] if isinstance(name_or_config, str) else name_or_config
    torch.manual_seed(3)
    model = MaskedLM(config, PROTEIN).to(dtype).eval()
    with torch.no_grad():
        # Zero starts (convolution, biases) would hide faults.
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=dtype)
    return model


def residues(generator: torch.Generator, n: int) -> torch.Tensor:
    return torch.randint(4, 24, (n,), generator=generator)


@EVERY
def test_a_sequence_does_not_see_its_batch_mates(rng: torch.Generator, name: str) -> None:
    model = build(name)
    sequences = [residues(rng, n) for n in LENGTHS]
    with torch.no_grad():
        together = model(torch.cat(sequences), Segments(LENGTHS)).split(LENGTHS)
        for sequence, packed in zip(sequences, together, strict=True):
            torch.testing.assert_close(packed, model(sequence, Segments([len(sequence)])), **EXACT)


def poisoner(scale: torch.Tensor) -> Callable[..., torch.Tensor]:
    """A hook that blows up the embeddings where `scale` (T, 1) is not zero, filler rows included."""

    def hook(_module: torch.nn.Module, _inputs: object, out: torch.Tensor) -> torch.Tensor:
        whole = torch.nn.functional.pad(scale, (0, 0, 0, len(out) - len(scale)), value=float(scale.max()))
        return out * (1 + whole) + whole

    return hook


@EVERY
def test_poisoned_batch_mates_change_nothing(rng: torch.Generator, name: str) -> None:
    """Neither values nor gradients of one sequence react when the others' embeddings become enormous."""
    model = build(name).train()
    tokens = residues(rng, sum(LENGTHS))
    mine = slice(10, 40)
    results = []
    for poison in (0.0, 1e4):
        scale = torch.full((len(tokens), 1), poison, dtype=torch.float64)
        scale[mine] = 0
        handle = model.encoder.embedding.register_forward_hook(poisoner(scale))
        logits = model(tokens, Segments(LENGTHS))[mine]
        gradient = torch.autograd.grad(logits.square().sum(), model.encoder.blocks[0].attention.project.weight)[0]
        handle.remove()
        results.append((logits.detach(), gradient))
    torch.testing.assert_close(results[0][0], results[1][0], **EXACT)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-6, atol=1e-7)


@EVERY
def test_padding_is_never_read(rng: torch.Generator, name: str) -> None:
    encoder = build(name).encoder
    mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    tokens = residues(rng, mask.numel()).view(mask.shape)
    with torch.no_grad():
        clean = encoder.forward_padded(tokens, mask)
        # An id outside the alphabet would stop the embedding if it were looked up.
        poisoned = encoder.forward_padded(tokens.masked_fill(~mask, 10_000), mask)
        wider = encoder.forward_padded(torch.nn.functional.pad(tokens, (0, 9)), torch.nn.functional.pad(mask, (0, 9)))
    assert torch.equal(clean, poisoned)
    torch.testing.assert_close(wider[:, : mask.shape[1]], clean, **EXACT)


@EVERY
def test_gradients_match_finite_differences(rng: torch.Generator, name: str) -> None:
    model = build(name)
    tokens, segments = residues(rng, 12), Segments([7, 1, 4])
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = model(tokens, segments).log_softmax(-1)[:, 5].sum()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    direction = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in parameters]
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True) if g is not None)
    step = 1e-6
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p += sign * step * d
            values.append(model(tokens, segments).log_softmax(-1)[:, 5].sum())
            for p, d in zip(parameters, direction, strict=True):
                p -= sign * step * d
    torch.testing.assert_close(slope, (values[0] - values[1]) / (2 * step), rtol=1e-5, atol=1e-6)


@EVERY
def test_every_parameter_is_used(rng: torch.Generator, name: str) -> None:
    model = build(name).train()
    model(residues(rng, 30), Segments([30])).square().sum().backward()
    unused = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert unused == []


@EVERY
def test_length_one_and_all_unknown(name: str) -> None:
    model = build(name, torch.float32)
    with torch.no_grad():
        one = model(torch.tensor([5]), Segments([1]))
        unknown = model(torch.full((50,), PROTEIN.unk_id), Segments([50]))
    assert one.shape == (1, 33)
    assert one.isfinite().all()
    assert unknown.isfinite().all()


@EVERY
def test_same_numbers_with_and_without_a_graph(rng: torch.Generator, name: str) -> None:
    model = build(name)
    tokens, segments = residues(rng, sum(LENGTHS)), Segments(LENGTHS)
    with torch.no_grad():
        quick = model(tokens, segments)
    torch.testing.assert_close(model(tokens, segments).detach(), quick, **EXACT)


@EVERY
def test_bfloat16_stays_near_float32(rng: torch.Generator, name: str) -> None:
    """Relative error of the last layer, over all tokens, below 3 %: two blocks, 8 bits a value."""
    model = MaskedLM(VARIANTS[name], PROTEIN).eval()
    tokens, segments = residues(rng, 300), Segments([200, 100])
    with torch.no_grad():
        wide = model.encoder(tokens, segments)[2]
        narrow = model.bfloat16().encoder(tokens, segments)[2].float()
    assert (narrow - wide).norm() / wide.norm() < bfloat16_error(VARIANTS[name])


@EVERY
def test_no_nan_in_bfloat16_at_100_000_tokens(rng: torch.Generator, name: str) -> None:
    kinds = {group.kind for layer in range(2) for group in VARIANTS[name].groups_of(layer)}
    # Full softmax costs the square of the length: 100,000 tokens would take minutes.
    n_tokens = 8_000 if "softmax" in kinds else 100_000
    model = MaskedLM(VARIANTS[name], PROTEIN).bfloat16().eval()
    with torch.no_grad():
        out = model.encoder(residues(rng, n_tokens), Segments([n_tokens]))[2]
    assert out.isfinite().all()
    assert out.float().std() > 0.1


@pytest.mark.parametrize("name", ["efficient-chunked", "linear-chunked-rotary"])
def test_chunk_size_changes_nothing(rng: torch.Generator, name: str) -> None:
    tokens, segments = residues(rng, sum(LENGTHS)), Segments(LENGTHS)
    values = VARIANTS[name].to_plain()
    results = []
    for chunk in (1, 8, 13, 512):
        values["attention"][0]["chunk"] = chunk
        with torch.no_grad():
            results.append(build(ModelConfig.parse(values))(tokens, segments))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, **EXACT)


def test_checkpointing_gives_the_same_gradients(rng: torch.Generator) -> None:
    tokens, segments = residues(rng, 40), Segments([25, 15])
    gradients = []
    for name in ("default", "checkpointed"):
        model = build(name).train()
        model(tokens, segments).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_dropout_acts_in_training_only_and_checkpointing_replays_it(rng: torch.Generator) -> None:
    values = VARIANTS["default"].to_plain()
    values["dropout"] = {"embedding": 0.1, "residual": 0.2, "feed_forward": 0.3}
    values["attention"][0]["dropout"] = 0.4
    tokens, segments = residues(rng, 60), Segments([40, 20])
    gradients = []
    for checkpointed in (False, True):
        model = build(ModelConfig.parse({**values, "checkpoint_activations": checkpointed}))
        with torch.no_grad():
            assert torch.equal(model(tokens, segments), model(tokens, segments))
            model.train()
            assert not torch.equal(model(tokens, segments), model(tokens, segments))
        torch.manual_seed(11)
        model(tokens, segments).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", ["embedding", "residual", "feed_forward"])
def test_each_dropout_does_something(rng: torch.Generator, share: str) -> None:
    model = build(ModelConfig.parse({**VARIANTS["default"].to_plain(), "dropout": {share: 0.5}})).train()
    tokens, segments = residues(rng, 60), Segments([60])
    with torch.no_grad():
        assert not torch.equal(model(tokens, segments), model(tokens, segments))


@pytest.mark.parametrize("name", ["default", "swiglu"])
def test_feed_forward_in_slabs(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = build(name)
    tokens, segments = residues(rng, 50), Segments([30, 20])
    with torch.no_grad():
        whole = model(tokens, segments)
        monkeypatch.setattr(row_wise, "ROWS_AT_ONCE", 7)
        torch.testing.assert_close(model(tokens, segments), whole, **EXACT)


def test_layers_and_positions_asked_for(rng: torch.Generator) -> None:
    model = build("default")
    tokens, segments = residues(rng, 20), Segments([20])
    with torch.no_grad():
        out = model.encoder(tokens, segments, layers=(0, 1, -1))
        assert sorted(out) == [0, 1, 2]
        torch.testing.assert_close(out[0], model.encoder.embedding(tokens))
        at = torch.tensor([3, 17])
        torch.testing.assert_close(model(tokens, segments, at), model(tokens, segments)[at], **EXACT)
