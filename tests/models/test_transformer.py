"""The transformer that reads vectors, and the padding helper."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import CheckpointError, ConfigError
from protlat.models import CausalLM, Encoder, MaskedLM, ModelConfig, Transformer, pad_sequences
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments

LENGTHS = [7, 1, 30, 12]
EXACT = {"rtol": 1e-9, "atol": 1e-10}


def config(**options: object) -> ModelConfig:
    return ModelConfig.parse({"d_model": 16, "n_layers": 2, "head_dim": 8, **options})


def vectors(rng: torch.Generator) -> list[torch.Tensor]:
    return [torch.randn(n, 16, generator=rng, dtype=torch.float64) for n in LENGTHS]


def test_sequences_packed_padded_and_alone_are_the_same(rng: torch.Generator) -> None:
    model = Transformer(config(positions={"kind": "sinusoidal"})).double().eval()
    sequences = vectors(rng)
    padded, mask = pad_sequences(sequences)
    assert padded.shape == (4, 30, 16)
    assert mask.sum(1).tolist() == LENGTHS
    with torch.no_grad():
        packed = model(torch.cat(sequences), Segments(LENGTHS))[2]
        alone = [model(x, Segments([len(x)]))[2] for x in sequences]
        torch.testing.assert_close(packed, torch.cat(alone), **EXACT)
        out = model.forward_padded(padded.masked_fill(~mask[..., None], torch.nan), mask)
    torch.testing.assert_close(out[mask], packed, **EXACT)
    assert not out[~mask].any()


def test_tokens_of_any_length_pad_too(rng: torch.Generator) -> None:
    encoder = Encoder(config(), PROTEIN).double().eval()
    sequences = [torch.randint(4, 24, (n,), generator=rng) for n in LENGTHS]
    padded, mask = pad_sequences(sequences, fill=PROTEIN.pad_id)
    assert padded.dtype == torch.int64
    assert (padded[~mask] == PROTEIN.pad_id).all()
    with torch.no_grad():
        out = encoder.forward_padded(padded, mask)
        torch.testing.assert_close(out[mask], encoder(torch.cat(sequences), Segments(LENGTHS))[2], **EXACT)


def test_it_is_an_encoder_behind_its_embedding(rng: torch.Generator) -> None:
    encoder = Encoder(config(reversible=True), PROTEIN).double().eval()
    body = Transformer(encoder.config).double().eval()
    body.load_state_dict({name: value for name, value in encoder.state_dict().items() if "embedding" not in name})
    tokens = torch.randint(4, 24, (50,), generator=rng)
    with torch.no_grad():
        theirs = encoder(tokens, Segments([50]), layers=(0, 1, -1))
        ours = body(encoder.embedding(tokens), Segments([50]), layers=(0, 1, -1))
    for layer in range(3):
        torch.testing.assert_close(ours[layer], theirs[layer], **EXACT)


def test_gradients_reach_the_input(rng: torch.Generator) -> None:
    model = Transformer(config()).double()
    x = torch.cat(vectors(rng)).requires_grad_()
    gradient = torch.autograd.grad(model(x, Segments(LENGTHS))[2][10].square().sum(), x)[0].abs().sum(1)
    assert gradient[8:38].all()
    assert not gradient[:8].any()
    assert not gradient[38:].any()


def test_causal_ones_keep_a_state(rng: torch.Generator) -> None:
    model = Transformer(config(causal=True)).double().eval()
    x = vectors(rng)[2]
    with torch.no_grad():
        whole = model(x, Segments([30]))[2]
        state = RecurrentState()
        first = model(x[:13], Segments([13]), state=state)[2]
        second = model(x[13:], Segments([17], offsets=[13]), state=state.next())[2]
    torch.testing.assert_close(torch.cat([first, second]), whole, **EXACT)
    with pytest.raises(ConfigError, match="keeps no state"):
        Transformer(config())(x.float(), Segments([30]), state=RecurrentState())


def test_folders(rng: torch.Generator, tmp_path: Path) -> None:
    model = Transformer(config()).eval()
    model.save_pretrained(tmp_path / "body")
    x = torch.randn(20, 16, generator=rng)
    with torch.no_grad():
        assert torch.equal(
            Transformer.from_pretrained(tmp_path / "body")(x, Segments([20]))[2], model(x, Segments([20]))[2]
        )
        # The body of a language model serves too.
        language_model = MaskedLM(config(), PROTEIN).eval()
        language_model.save_pretrained(tmp_path / "lm")
        body = Transformer.from_pretrained(tmp_path / "lm")
        tokens = torch.randint(4, 24, (20,), generator=rng)
        ours = body(language_model.encoder.embedding(tokens), Segments([20]))[2]
        assert torch.equal(ours, language_model.encoder(tokens, Segments([20]))[2])
    with pytest.raises(CheckpointError, match=r"'embedding\.weight' is missing; a Encoder needs it"):
        Encoder.from_pretrained(tmp_path / "body")


def test_a_factorised_embedding_is_refused() -> None:
    with pytest.raises(ConfigError, match="a Transformer does not have"):
        Transformer(config(embedding_dim=4))


@pytest.mark.parametrize("sequences", [[], [torch.zeros(3, 2), torch.zeros(0, 2)]])
def test_nothing_to_pad_is_refused(sequences: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        pad_sequences(sequences)


@pytest.mark.parametrize("embedding_dim", [None, 10])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_plain_heads_are_a_projection_and_a_read_out(
    rng: torch.Generator, embedding_dim: int | None, tied: bool, causal: bool
) -> None:
    settings = config(head="plain", embedding_dim=embedding_dim, tie_output=tied, causal=causal)
    model = (CausalLM if causal else MaskedLM)(settings, PROTEIN).double().eval()
    tokens = torch.randint(4, 24, (20,), generator=rng)
    with torch.no_grad():
        model.head.bias += torch.randn(33, generator=rng, dtype=torch.float64)
        x = model.encoder(tokens, Segments([20]))[2]
        if embedding_dim is not None:
            x = x @ model.head.dense.weight.T + model.head.dense.bias
        weight = model.encoder.embedding.weight if tied else model.head.readout.weight
        torch.testing.assert_close(model(tokens, Segments([20])), x @ weight.T + model.head.bias, **EXACT)
    n_head = 33 + (0 if tied else 33 * (embedding_dim or 16)) + (0 if embedding_dim is None else 17 * embedding_dim)
    assert sum(p.numel() for p in model.head.parameters()) == n_head


def test_attention_layer_dropout_spares_the_feed_forward(rng: torch.Generator) -> None:
    model = Transformer(config(dropout={"attention_layer": 0.5})).train()
    block = model.blocks[0]
    x, segments = torch.randn(40, 16, generator=rng), Segments([40])
    with torch.no_grad():
        assert torch.equal(block.feed(x, segments), block.feed(x, segments))
        dropped = block.attend(x, segments) == 0
        assert 0.4 < dropped.float().mean() < 0.6
        block.eval()
        assert not (block.attend(x, segments) == 0).any()
