"""Models with a context: each sequence reads its own context only, and decoding by steps is the parallel forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protlat.alphabet import BYTES, PROTEIN
from protlat.errors import CheckpointError, ConfigError, SequenceError
from protlat.models import Encoder, EncoderDecoder, EncoderDecoderConfig, ModelConfig, Transformer
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments

SOURCES, TARGETS = [7, 20, 1, 70, 70], [9, 1, 13, 13, 5]
SIZE = {"d_model": 24, "n_layers": 2, "head_dim": 8}
HEADS = [{"kind": "window", "n_heads": 1, "radius": 3}, {"kind": "efficient", "n_heads": 2, "chunk": 8}]
LINFORMER = {"kind": "linformer", "n_heads": 2, "max_length": 400, "k": 5}
CONTEXTS = {
    "efficient": {"kind": "efficient", "n_heads": 2, "scale": 0.5},
    "softmax": {"kind": "softmax", "n_heads": 2, "head_dim": 12},
    "linformer": LINFORMER,
    "linformer-short": {**LINFORMER, "max_length": 70, "sharing": "key_value"},
    "linformer-layerwise": {**LINFORMER, "sharing": "layerwise", "feed_forward": {"kind": "swiglu"}},
}
BODIES = {"causal": {"causal": True}, "bidirectional": {}, "reversible": {"causal": True, "reversible": True}}
BODIES["checkpointed"] = {"causal": True, "checkpoint_activations": True}
EVERY = pytest.mark.parametrize("context", CONTEXTS)
EXACT = {"rtol": 1e-9, "atol": 1e-10}


def build(context: str, body: str = "causal") -> EncoderDecoder:
    encoder = {**SIZE, "attention": HEADS}
    decoder = {**encoder, **BODIES[body], "context": CONTEXTS[context]}
    torch.manual_seed(5)
    config = EncoderDecoderConfig.parse({"encoder": encoder, "decoder": decoder})
    model = EncoderDecoder(config, PROTEIN, BYTES).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    return model


def draw(rng: torch.Generator, lengths: list[int]) -> torch.Tensor:
    return torch.randint(4, 24, (sum(lengths),), generator=rng)


@EVERY
@pytest.mark.parametrize("body", ["causal", "bidirectional", "reversible"])
def test_batch_mates_and_their_contexts_are_not_seen(rng: torch.Generator, context: str, body: str) -> None:
    model = build(context, body)
    sources, targets = draw(rng, SOURCES), draw(rng, TARGETS)
    with torch.no_grad():
        together = model(sources, Segments(SOURCES), targets, Segments(TARGETS)).split(TARGETS)
        for source, target, packed in zip(sources.split(SOURCES), targets.split(TARGETS), together, strict=True):
            alone = model(source, Segments([len(source)]), target, Segments([len(target)]))
            torch.testing.assert_close(packed, alone, **EXACT)
        other = sources.clone()
        other[7:27] = 5
        moved = model(other, Segments(SOURCES), targets, Segments(TARGETS)).split(TARGETS)
    changed = [not torch.allclose(a, b, **EXACT) for a, b in zip(together, moved, strict=True)]
    assert changed == [False, True, False, False, False]


@EVERY
def test_poisoned_contexts_of_batch_mates_change_nothing(rng: torch.Generator, context: str) -> None:
    """Enormous vectors in the other contexts move neither values nor gradients of a sequence."""
    decoder = build(context).decoder.encoder
    tokens, segments = draw(rng, TARGETS), Segments(TARGETS)
    vectors = torch.randn(sum(SOURCES), 24, generator=rng, dtype=torch.float64)
    results = []
    for poison in (1.0, 1e6):
        given = vectors * poison
        given[7:27] = vectors[7:27]
        given.requires_grad_()
        out = decoder(tokens, segments, context=given, context_segments=Segments(SOURCES))[2][9:10]
        weight = decoder.cross_blocks[0].attention.project_context.weight
        results.append((out, *torch.autograd.grad(out.square().sum(), [given, weight])))
    torch.testing.assert_close(results[0][0], results[1][0], **EXACT)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(results[0][2], results[1][2], rtol=1e-6, atol=1e-7)
    outside = torch.cat([results[0][1][:7], results[0][1][27:]])
    assert results[0][1][7:27].abs().sum() > 0
    assert not outside.any()


@EVERY
@pytest.mark.parametrize("body", BODIES)
def test_gradients_match_finite_differences(rng: torch.Generator, context: str, body: str) -> None:
    model = build(context, body)
    lengths = [4, 1, 6], [5, 3, 1]
    call = draw(rng, lengths[0]), Segments(lengths[0]), draw(rng, lengths[1]), Segments(lengths[1])
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(model(*call).log_softmax(-1)[:, 5].sum(), parameters)
    assert all(bool(g.any()) for g in gradients)
    direction = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in parameters]
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    step, values = 1e-6, []
    with torch.no_grad():
        for sign in (1, -2, 1):
            for p, d in zip(parameters, direction, strict=True):
                p += sign * step * d
            values.append(model(*call).log_softmax(-1)[:, 5].sum())
    torch.testing.assert_close(slope, (values[0] - values[1]) / (2 * step), rtol=1e-5, atol=1e-6)


@EVERY
@pytest.mark.parametrize("pieces", [[1] * 6, [3, 2, 1], [6]])
def test_decoding_by_steps_is_the_parallel_forward(rng: torch.Generator, context: str, pieces: list[int]) -> None:
    model = build(context)
    source, n = draw(rng, SOURCES), len(SOURCES)
    targets = torch.randint(4, 24, (n, sum(pieces)), generator=rng)
    with torch.no_grad():
        whole = model(source, Segments(SOURCES), targets.flatten(), Segments([sum(pieces)] * n)).unflatten(0, (n, -1))
        state = model.start(source, Segments(SOURCES))
        done = 0
        for size in pieces:
            segments = Segments([size] * n, offsets=[done] * n)
            logits, state = model.step(targets[:, done : done + size].flatten(), segments, state)
            torch.testing.assert_close(logits.unflatten(0, (n, -1)), whole[:, done : done + size], **EXACT)
            done += size


@EVERY
def test_sequences_may_be_chosen_and_ragged_between_steps(rng: torch.Generator, context: str) -> None:
    model = build(context)
    source, target = draw(rng, SOURCES), draw(rng, TARGETS)
    rows = [3, 1]
    with torch.no_grad():
        whole = model(source, Segments(SOURCES), target, Segments(TARGETS)).split(TARGETS)
        state = model.start(source, Segments(SOURCES)).select(torch.tensor(rows))
        chosen = [target.split(TARGETS)[row] for row in rows]
        logits, _ = model.step(torch.cat(chosen), Segments([len(part) for part in chosen], offsets=[0, 0]), state)
    torch.testing.assert_close(logits, torch.cat([whole[row] for row in rows]), **EXACT)


def test_a_sequence_that_begins_anew_needs_its_context(rng: torch.Generator) -> None:
    model = build("efficient")
    state = model.start(draw(rng, [4, 5]), Segments([4, 5])).select(torch.tensor([1, -1]))
    with pytest.raises(SequenceError, match="remembers contexts for 1; pass context"):
        model.step(torch.tensor([5, 6]), Segments([1, 1], offsets=[0, 0]), state)


def test_padding_of_source_and_target_is_never_read(rng: torch.Generator) -> None:
    model = build("efficient")
    masks = [torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None] for lengths in (SOURCES, TARGETS)]
    source, target = (torch.randint(4, 24, mask.shape, generator=rng) for mask in masks)
    with torch.no_grad():
        clean = model.forward_padded(source, target, context_mask=masks[0], input_mask=masks[1])
        poisoned = model.forward_padded(
            source.masked_fill(~masks[0], 10_000), target.masked_fill(~masks[1], 10_000), masks[0], masks[1]
        )
        packed = model(source[masks[0]], Segments(SOURCES), target[masks[1]], Segments(TARGETS))
        assert torch.equal(clean, poisoned)
        assert torch.equal(clean[masks[1]], packed)
        decoder = model.decoder.encoder
        vectors = torch.randn(5, 70, 24, generator=rng, dtype=torch.float64)
        by_hand = decoder(
            target[masks[1]], Segments(TARGETS), context=vectors[masks[0]], context_segments=Segments(SOURCES)
        )[2]
        padded = decoder.forward_padded(target.masked_fill(~masks[1], 10_000), masks[1], vectors, masks[0])
    assert torch.equal(padded[masks[1]], by_hand)


@pytest.mark.parametrize("context", ["efficient", "linformer-layerwise"])
def test_folder_round_trip(rng: torch.Generator, tmp_path: Path, context: str) -> None:
    model = build(context).float()
    model.save_pretrained(tmp_path, card="# Both\n")
    again = EncoderDecoder.from_pretrained(tmp_path)
    call = draw(rng, SOURCES), Segments(SOURCES), draw(rng, TARGETS), Segments(TARGETS)
    with torch.no_grad():
        assert torch.equal(model(*call), again(*call))
    assert again.config == model.config
    assert (again.alphabet, again.target_alphabet) == (PROTEIN, BYTES)
    maps = [name for name in model.state_dict() if "maps" in name]
    assert maps == (["decoder.encoder.shared_context_maps.keys"] if context == "linformer-layerwise" else [])
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        EncoderDecoder.from_pretrained(tmp_path)
    Encoder(ModelConfig.parse(SIZE), PROTEIN).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="holds Encoder, not an EncoderDecoder"):
        EncoderDecoder.from_pretrained(tmp_path)


def test_readme_example_of_the_reference(rng: torch.Generator) -> None:
    """Six layers and six, 4,096 tokens, a causal decoder, masks; narrower than there."""
    size = {"d_model": 32, "n_layers": 6, "head_dim": 8, "attention": [{"kind": "efficient", "n_heads": 4}]}
    decoder = {**size, "causal": True, "context": {"kind": "efficient", "n_heads": 4}}
    model = EncoderDecoder(EncoderDecoderConfig.parse({"encoder": size, "decoder": decoder}), BYTES)
    source, target = (torch.randint(4, 250, (1, 4096), generator=rng) for _ in range(2))
    mask = torch.ones(1, 4096, dtype=torch.bool)
    logits = model.forward_padded(source, target, context_mask=mask, input_mask=mask)
    assert logits.shape == (1, 4096, len(BYTES))
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@EVERY
def test_bfloat16_stays_near_float32(rng: torch.Generator, context: str) -> None:
    """Relative error of the last layer below 3 %: two blocks and two context blocks, 8 bits a value."""
    config = ModelConfig.parse({**SIZE, "attention": HEADS, "context": CONTEXTS[context]})
    model = Transformer(config).eval()
    lengths, sources = [100, 37], [70, 33]
    x = torch.randn(sum(lengths), 24, generator=rng)
    vectors = torch.randn(sum(sources), 24, generator=rng)
    with torch.no_grad():
        wide = model(x, Segments(lengths), context=vectors, context_segments=Segments(sources))[2]
        model.bfloat16()
        narrow = model(x.bfloat16(), Segments(lengths), context=vectors.bfloat16(), context_segments=Segments(sources))[
            2
        ]
    assert (narrow.float() - wide).norm() / wide.norm() < 0.03


def test_what_a_context_model_refuses(rng: torch.Generator) -> None:
    decoder = build("efficient").decoder.encoder
    plain = Encoder(ModelConfig.parse(SIZE), PROTEIN)
    tokens, segments, vectors = torch.tensor([5, 6]), Segments([2]), torch.randn(3, 24, dtype=torch.float64)
    with pytest.raises(ConfigError, match="pass context and context_segments"):
        decoder(tokens, segments)
    with pytest.raises(ConfigError, match="pass context and context_segments"):
        decoder(tokens, segments, context=vectors)
    with pytest.raises(ConfigError, match="pass context and context_segments"):
        decoder(tokens, segments, state=RecurrentState())
    with pytest.raises(ConfigError, match="receives no context"):
        plain(tokens, segments, context=vectors, context_segments=Segments([3]))
    with pytest.raises(ConfigError, match="receives no context"):
        Transformer(ModelConfig.parse(SIZE))(torch.randn(2, 24), segments, context_segments=Segments([3]))
    with pytest.raises(ConfigError, match="context of width 23"):
        decoder(tokens, segments, context=vectors[:, :23], context_segments=Segments([3]))
    with pytest.raises(SequenceError, match="1 sequences, but 2 contexts"):
        decoder(tokens, segments, context=vectors, context_segments=Segments([1, 2]))
    long, short = torch.randn(71, 24, dtype=torch.float64), build("linformer-short").decoder.encoder
    with pytest.raises(SequenceError, match="at most 70"):
        short(tokens, segments, context=long, context_segments=Segments([71]))
    with pytest.raises(ConfigError, match="cannot write a target"):
        build("efficient", "bidirectional").start(torch.tensor([5]), Segments([1]))
    with pytest.raises(ConfigError, match="not causal"):
        build("efficient", "bidirectional").decoder.encoder.remember(vectors, Segments([3]))


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        ({}, {}, "decoder needs context attention"),
        ({"context": CONTEXTS["efficient"]}, {"context": CONTEXTS["efficient"]}, "encoder reads the source alone"),
        ({"d_model": 32}, {"context": CONTEXTS["efficient"]}, "set decoder.context.width=32"),
        ({}, {"context": {"kind": "linformer", "n_heads": 1}}, "max_length"),
        ({}, {"context": {"kind": "eficient", "n_heads": 1}}, "'efficient', 'softmax', 'linformer'"),
    ],
)
def test_impossible_settings_are_refused(encoder: dict, decoder: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderDecoderConfig.parse({"encoder": {**SIZE, **encoder}, "decoder": {**SIZE, **decoder}})


def test_contexts_may_have_a_width_of_their_own(rng: torch.Generator) -> None:
    decoder = {**SIZE, "context": {**CONTEXTS["efficient"], "width": 32}}
    config = EncoderDecoderConfig.parse({"encoder": {**SIZE, "d_model": 32}, "decoder": decoder})
    logits = EncoderDecoder(config, PROTEIN)(draw(rng, [5]), Segments([5]), draw(rng, [3]), Segments([3]))
    assert logits.shape == (3, len(PROTEIN))


def test_other_loaders_name_what_the_folder_is(tmp_path: Path) -> None:
    build("efficient").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="an encoder with a decoder, not one model"):
        Encoder.from_pretrained(tmp_path)
