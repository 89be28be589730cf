"""Reading, cropping and packing of training sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.data.dataset import MaskedDataset
from protlat.data.masking import Masker, MaskingConfig


class MemorySource:
    """Sequences in memory; padding after each, as in the fixed-length form."""

    def __init__(self, sequences: list[str]) -> None:
        self._ids = [np.append(PROTEIN.encode(s), [PROTEIN.pad_id] * 3).astype(np.uint8) for s in sequences]
        self.lengths = np.array([len(s) for s in sequences])

    def __len__(self) -> int:
        return len(self._ids)

    def tokens(self, index: int) -> np.ndarray:
        return self._ids[index]

    def id(self, index: int) -> str:
        return f"s{index}"


def make(sequences: list[str], max_length: int = 50, seed: int = 0, **masking: float) -> MaskedDataset:
    masker = Masker(MaskingConfig.parse(masking), PROTEIN)
    return MaskedDataset(MemorySource(sequences), PROTEIN, masker, max_length, seed)


def test_whole_sequences_carry_both_specials() -> None:
    dataset = make(["MKV", "A" * 48])
    assert dataset.sequence(0, epoch=0).tolist() == [PROTEIN.cls_id, *PROTEIN.encode("MKV"), PROTEIN.eos_id]
    assert len(dataset.sequence(1, epoch=0)) == 50
    assert dataset.lengths.tolist() == [5, 50]
    assert dataset.n_cropped == 0


def test_crops_differ_by_epoch_and_end_with_eos_only_at_the_true_end() -> None:
    text = "LAGVSERTIDPKQNFYMHWC" * 3
    dataset = make([text], max_length=50)
    assert dataset.n_cropped == 1
    starts = set()
    for epoch in range(60):
        ids = dataset.sequence(0, epoch)
        assert len(ids) == dataset.lengths[0] == 50
        assert ids[0] == PROTEIN.cls_id
        assert np.array_equal(ids, dataset.sequence(0, epoch))
        start = int(np.flatnonzero(ids[1] == PROTEIN.encode(text))[0])
        body = PROTEIN.decode(ids[1:])
        reaches_end = body.endswith("<eos>")
        residues = body.removesuffix("<eos>")
        places = [i for i in range(len(text)) if text.startswith(residues, i)]
        assert places
        assert reaches_end == (len(residues) == 48)
        starts.add((start, reaches_end))
    assert len(starts) > 8
    assert {True, False} == {reaches_end for _, reaches_end in starts}


def test_batches_are_the_same_whatever_else_was_read() -> None:
    dataset = make(["MKVLAGT" * 4, "ACDEFGH" * 20, "WWYY" * 5])
    batch = dataset.batch([1, 2], epoch=3)
    dataset.batch([0, 2, 1], epoch=4)
    again = make(["MKVLAGT" * 4, "ACDEFGH" * 20, "WWYY" * 5]).batch([2, 1], epoch=3)
    n_first = batch.segments.lengths[0]
    assert torch.equal(batch.tokens[:n_first], again.tokens[again.segments.lengths[0] :])
    assert torch.equal(batch.tokens[n_first:], again.tokens[: again.segments.lengths[0]])
    assert not torch.equal(batch.tokens, dataset.batch([1, 2], epoch=5).tokens)


def test_targets_are_what_stood_there() -> None:
    dataset = make(["MKVLAGT" * 4, "ACDEFGH" * 3], fraction=0.5, mask=1, random=0, keep=0)
    batch = dataset.batch([0, 1], epoch=0)
    originals = torch.from_numpy(np.concatenate([dataset.sequence(i, 0) for i in (0, 1)]).astype(np.int64))
    assert torch.equal(batch.targets, originals[batch.at])
    assert bool((batch.tokens[batch.at] == PROTEIN.mask_id).all())
    untouched = torch.ones(batch.n_tokens, dtype=torch.bool)
    untouched[batch.at] = False
    assert torch.equal(batch.tokens[untouched], originals[untouched])
    assert batch.rows.tolist() == [int(p >= 30) for p in batch.at]
    assert batch.n_predicted == len(batch.at) > 5
    assert PROTEIN.pad_id not in batch.tokens.tolist()


def test_every_batch_has_something_to_predict() -> None:
    dataset = make(["<", "MKV", "ACD"], fraction=1e-9)
    assert dataset.batch([0, 1, 2], epoch=0).n_predicted == 1
    assert dataset.batch([0, 1, 2], epoch=0).rows.tolist() == [1]
    # "<" is unknown to the alphabet, and <unk> is never predicted.
    assert dataset.batch([0], epoch=0).n_predicted == 0


def test_shortest_crop() -> None:
    assert len(make(["MKVLA"], max_length=3).sequence(0, 0)) == 3
    with pytest.raises(ValueError, match="at least 3"):
        make(["MKV"], max_length=2)
