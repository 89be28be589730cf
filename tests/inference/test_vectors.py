from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.data.packing import pack_ids, with_specials
from protlat.errors import SequenceError
from protlat.inference.batches import OutOfMemoryOnOne
from protlat.inference.naming import Column
from protlat.inference.settings import LongConfig
from protlat.inference.vectors import Embedder
from protlat.models import Encoder, ModelConfig

COLUMNS = [Column(kind, layer) for kind in ("mean", "per_tok", "cls") for layer in (0, 2)]


@pytest.fixture(scope="module")
def encoder(model_folder: Path) -> Encoder:
    return Encoder.from_pretrained(model_folder)


def random_sequences(n: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 24, int(length)).astype(np.uint8) for length in rng.integers(1, 60, n)]


def run(embedder: Embedder, sequences: list[np.ndarray]) -> list[dict]:
    found = dict(embedder.run(sequences, [f"s{i}" for i in range(len(sequences))]))
    return [found[i] for i in range(len(sequences))]


def test_vectors_are_what_the_definition_says(encoder: Encoder) -> None:
    ids = PROTEIN.encode("MKT<mask>AYIAK")
    [vectors] = run(Embedder(encoder, COLUMNS, 100), [ids])
    batch = pack_ids([with_specials(ids, PROTEIN)])
    with torch.inference_mode():
        states = encoder(batch.tokens, batch.segments, layers=(0, 2))
    for layer in (0, 2):
        state = states[layer].numpy()
        assert vectors[Column("per_tok", layer)].shape == (9, 16)
        np.testing.assert_allclose(vectors[Column("per_tok", layer)], state[1:10], rtol=1e-6)
        np.testing.assert_allclose(vectors[Column("mean", layer)], state[1:10].mean(0), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(vectors[Column("cls", layer)], state[0], rtol=1e-6)
    embedding = encoder.embedding.weight[PROTEIN.mask_id].detach().numpy()
    np.testing.assert_allclose(vectors[Column("per_tok", 0)][3], embedding, rtol=1e-6)


# Rounding of the working precision: 24 bits and 8 bits of significand, through two blocks of values of order one.
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_batch_mates_order_and_budget_change_nothing(model_folder: Path, dtype: torch.dtype, bound: float) -> None:
    model = Encoder.from_pretrained(model_folder, dtype=dtype)
    sequences = random_sequences(30)
    alone = [run(Embedder(model, COLUMNS, 1), [sequence])[0] for sequence in sequences]
    for budget in (1, 100, 10_000):
        for order in (range(30), range(29, -1, -1)):
            together = run(Embedder(model, COLUMNS, budget), [sequences[i] for i in order])
            for place, i in enumerate(order):
                for column in COLUMNS:
                    np.testing.assert_allclose(together[place][column], alone[i][column], rtol=0, atol=bound)


def test_a_sequence_within_the_window_is_embedded_whole(encoder: Encoder) -> None:
    sequences = random_sequences(5)
    windowed = run(Embedder(encoder, COLUMNS, 100, LongConfig(policy="window", window=60, overlap=10)), sequences)
    whole = run(Embedder(encoder, COLUMNS, 100), sequences)
    for one, other in zip(windowed, whole, strict=True):
        for column in COLUMNS:
            np.testing.assert_array_equal(one[column], other[column])


def test_windows_give_every_residue_a_row_and_no_seam(encoder: Encoder) -> None:
    ids = np.tile(PROTEIN.encode("MKTAYIAKQR"), 20)
    long = LongConfig(policy="window", window=50, overlap=20)
    [vectors] = run(Embedder(encoder, COLUMNS, 1000, long), [ids])
    rows = vectors[Column("per_tok", 2)]
    assert rows.shape == (200, 16)
    np.testing.assert_allclose(vectors[Column("mean", 2)], rows.mean(0), rtol=1e-5, atol=1e-6)
    # Layer 0 sees no context, so blending must give back the token embedding exactly.
    whole = run(Embedder(encoder, COLUMNS, 1000), [ids])[0]
    np.testing.assert_allclose(vectors[Column("per_tok", 0)], whole[Column("per_tok", 0)], rtol=1e-5, atol=1e-7)
    # Inside, a repeat of period 10 looks alike everywhere but for what the window's borders add: no jump at a seam.
    inner = rows[20:180]
    steps = np.abs(inner[10:] - inner[:-10]).max(1)
    assert steps.max() < 3 * np.abs(np.diff(inner, axis=0)).max() / 2


class SmallDevice(Encoder):
    """Runs out of memory above a number of tokens, as a GPU would."""

    limit = 140

    def forward(self, tokens, segments, layers=(-1,)):
        self.sizes.append(len(tokens))
        if len(tokens) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory (pretended)")
        return super().forward(tokens, segments, layers)


@pytest.fixture
def small_device(model_folder: Path) -> SmallDevice:
    model = SmallDevice.from_pretrained(model_folder)
    model.sizes = []
    return model


def test_out_of_memory_halves_the_batch(
    encoder: Encoder, small_device: SmallDevice, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = random_sequences(20)
    expected = run(Embedder(encoder, COLUMNS, 1000), sequences)
    found = run(Embedder(small_device, COLUMNS, 1000), sequences)
    assert "halved" in caplog.text
    for one, other in zip(found, expected, strict=True):
        for column in COLUMNS:
            np.testing.assert_allclose(one[column], other[column], rtol=0, atol=1e-5)
    failures = sum(size > small_device.limit for size in small_device.sizes)
    assert failures <= 5, "batches must stay small after memory ran out"


def test_out_of_memory_alone_names_the_sequence(small_device: SmallDevice) -> None:
    sequences = [*random_sequences(5), np.full(150, 5, np.uint8)]
    with pytest.raises(OutOfMemoryOnOne, match=r"sequence 's5' of 152 tokens does not fit"):
        run(Embedder(small_device, COLUMNS, 1000), sequences)


def test_values_that_are_no_numbers_name_the_sequence(model_folder: Path) -> None:
    model = Encoder.from_pretrained(model_folder)
    with torch.no_grad():
        model.embedding.weight[PROTEIN.ids["W"]] = torch.nan
    with pytest.raises(SequenceError, match=r"sequence 's1'.*not finite"):
        run(Embedder(model, COLUMNS, 1), [PROTEIN.encode("MKT"), PROTEIN.encode("MKTW")])


def test_values_beyond_float16_are_refused_not_made_infinite(model_folder: Path) -> None:
    model = Encoder.from_pretrained(model_folder)
    with torch.no_grad():
        model.embedding.weight[PROTEIN.ids["W"]] = 1e6
    with pytest.raises(SequenceError, match=r"beyond float16's 65504; use --store float32"):
        run(Embedder(model, [Column("per_tok", 0)], 1000, store="float16"), [PROTEIN.encode("MKTW")])


def test_a_causal_model_reads_a_long_sequence_in_parts_that_pass_the_state() -> None:
    settings = {"d_model": 16, "n_layers": 2, "head_dim": 8, "causal": True}
    torch.manual_seed(0)
    encoder = Encoder(ModelConfig.parse(settings), PROTEIN).double().eval()
    ids = PROTEIN.encode("LAGVSERTIDPKQNFYMHWC" * 20)
    columns = [Column("per_tok", 2), Column("mean", 2), Column("per_tok", 0)]
    found = []
    for toks_per_batch in (1000, 37):
        embedder = Embedder(encoder, columns, toks_per_batch)
        sizes: list[int] = []
        handle = encoder.register_forward_pre_hook(lambda module, args, sizes=sizes: sizes.append(len(args[0])))
        [(_, vectors)] = embedder.run([ids], ["long"])
        handle.remove()
        assert max(sizes) <= toks_per_batch
        found.append(vectors)
    for column in columns:
        np.testing.assert_allclose(found[1][column], found[0][column], rtol=1e-6, atol=1e-7)
