"""Next-token batches: what is read, what is to be predicted, and the pieces of long sequences."""

from __future__ import annotations

import numpy as np
import pytest

from protlat.alphabet import PROTEIN
from protlat.data.dataset import MaskedDataset
from protlat.data.masking import Masker, MaskingConfig
from protlat.data.next_token import NextTokenDataset
from protlat.data.pieces import Spans, cut_into_pieces
from tests.data.test_dataset import MemorySource

CLS, EOS = PROTEIN.cls_id, PROTEIN.eos_id
LONG = "LAGVSERTIDPKQNFYMHWC" * 3


def make(sequences: list[str], max_length: int = 100, long: str = "crop") -> NextTokenDataset:
    return NextTokenDataset(MemorySource(sequences), PROTEIN, max_length, 0, long)  # type: ignore[arg-type]


def test_each_token_predicts_the_next_from_cls_to_eos() -> None:
    batch = make(["MKV", "AC"]).batch([0, 1], epoch=0)
    assert batch.tokens.tolist() == [CLS, *PROTEIN.encode("MKV"), CLS, *PROTEIN.encode("AC")]
    assert batch.targets.tolist() == [*PROTEIN.encode("MKV"), EOS, *PROTEIN.encode("AC"), EOS]
    assert batch.segments.lengths == (4, 3)
    assert batch.at is None
    assert batch.rows.tolist() == [0] * 4 + [1] * 3
    assert batch.n_predicted == batch.n_tokens == 7
    assert batch.carried is None
    assert batch.segments.offsets is None


def test_crops_are_windows_that_begin_with_the_true_token_before() -> None:
    dataset = make([LONG], max_length=20)
    whole = [CLS, *PROTEIN.encode(LONG), EOS]
    assert dataset.n_cropped == 1
    starts = set()
    for epoch in range(40):
        batch = dataset.batch([0], epoch)
        window = [*batch.tokens.tolist(), int(batch.targets[-1])]
        assert len(window) == 21
        places = [i for i in range(len(whole) - 20) if whole[i : i + 21] == window]
        assert places
        assert batch.targets.tolist() == window[1:]
        starts.add(tuple(window))
    assert len(starts) > 10


@pytest.mark.parametrize("size", [1, 7, 20, 61, 62, 100])
def test_pieces_predict_every_token_once(size: int) -> None:
    sequences = [LONG, "MKV", "A"]
    dataset = make(sequences, max_length=max(size, 1), long="pieces")
    assert dataset.n_cropped == 0
    batch = dataset.batch(np.arange(len(dataset)), epoch=3)
    assert batch.targets.tolist() == [x for s in sequences for x in [*PROTEIN.encode(s), EOS]]
    assert batch.tokens.tolist() == [x for s in sequences for x in [CLS, *PROTEIN.encode(s)]]
    assert max(batch.segments.lengths) <= size
    assert batch.indices.tolist() == [i for i, s in enumerate(sequences) for _ in range(-(-(len(s) + 1) // size))]


def test_spans_carry_their_offsets() -> None:
    dataset = make([LONG, "MKV"], max_length=20, long="pieces")
    picks = Spans(*(np.array(x) for x in ([0, 1], [20, 0], [20, 4], [2, -1], [0, 1])))
    batch = dataset.batch(picks, 0)
    assert batch.segments.offsets == (20, 0)
    assert batch.tokens[:20].tolist() == PROTEIN.encode(LONG)[19:39].tolist()
    assert batch.to("cpu") is batch
    assert batch.carried is not None
    assert batch.carried.tolist() == [2, -1]


@pytest.mark.parametrize("size", [3, 10, 31, 62, 63])
def test_masked_pieces_read_every_residue_once(size: int) -> None:
    sequences = [LONG, "MKV"]
    masker = Masker(MaskingConfig(fraction=0.3), PROTEIN)
    dataset = MaskedDataset(MemorySource(sequences), PROTEIN, masker, size, 0, "pieces")
    assert dataset.n_cropped == 0
    items = [dataset.sequence(i, 0) for i in range(len(dataset))]
    assert [len(x) for x in items] == dataset.lengths.tolist()
    assert max(map(len, items)) <= size
    assert all(x[0] == CLS for x in items)
    assert [int(x) for item in items for x in item[1:]] == [x for s in sequences for x in [*PROTEIN.encode(s), EOS]]
    owners = dataset.batch(np.arange(len(dataset)), 0).indices
    assert set(owners.tolist()) == {0, 1}


def test_cutting_into_pieces() -> None:
    pieces = cut_into_pieces(np.array([5, 4, 1]), 2)
    assert pieces.owners.tolist() == [0, 0, 0, 1, 1, 2]
    assert pieces.starts.tolist() == [0, 2, 4, 0, 2, 0]
    assert pieces.lengths.tolist() == [2, 2, 1, 2, 2, 1]
