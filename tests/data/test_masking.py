"""Masked-residue corruption."""

from __future__ import annotations

import numpy as np
import pytest

from protlat.alphabet import BYTES, PROTEIN
from protlat.data.masking import Masker, MaskingConfig
from protlat.data.random_streams import Purpose, stream
from protlat.errors import ConfigError

RESIDUES = PROTEIN.encode("LAGVSERTIDPKQNFYMHWC" * 3000)


def test_shares_are_those_of_the_config() -> None:
    config = MaskingConfig(fraction=0.2, mask=0.6, random=0.3, keep=0.1)
    masked = Masker(config, PROTEIN)(RESIDUES, stream(1, Purpose.MASK))
    n_chosen = len(masked.positions)
    assert n_chosen / len(RESIDUES) == pytest.approx(0.2, abs=0.01)
    after, before = masked.tokens[masked.positions], RESIDUES[masked.positions]
    assert (after == PROTEIN.mask_id).mean() == pytest.approx(0.6, abs=0.02)
    # A random residue is the old one once in twenty.
    assert (after == before).mean() == pytest.approx(0.1 + 0.3 / 20, abs=0.02)
    others = np.setdiff1d(np.arange(len(RESIDUES)), masked.positions)
    assert np.array_equal(masked.tokens[others], RESIDUES[others])
    assert np.array_equal(masked.positions, np.sort(masked.positions))


def test_replacements_come_from_the_standard_residues() -> None:
    config = MaskingConfig(fraction=1, mask=0, random=1, keep=0)
    drawn = Masker(config, PROTEIN)(RESIDUES, stream(0, Purpose.MASK)).tokens
    assert set(drawn.tolist()) == set(PROTEIN.replacement_ids)
    ids = BYTES.encode("any text" * 500)
    assert Masker(config, BYTES)(ids, stream(0, Purpose.MASK)).tokens.max() < 256


def test_specials_are_never_chosen() -> None:
    specials = np.array(PROTEIN.special_ids * 50, dtype=np.uint8)
    masker = Masker(MaskingConfig(fraction=1.0), PROTEIN)
    masked = masker(specials, stream(0, Purpose.MASK), at_least=1)
    assert len(masked.positions) == 0
    assert np.array_equal(masked.tokens, specials)
    mixed = np.concatenate([specials, PROTEIN.encode("M"), specials])
    assert masker(mixed, stream(0, Purpose.MASK)).positions.tolist() == [len(specials)]


def test_at_least_one_where_asked() -> None:
    masker = Masker(MaskingConfig(fraction=1e-9), PROTEIN)
    ids = PROTEIN.encode("ACDEF")
    assert len(masker(ids, stream(0, Purpose.MASK)).positions) == 0
    assert len(masker(ids, stream(0, Purpose.MASK), at_least=1).positions) == 1
    assert len(masker(ids, stream(0, Purpose.MASK), at_least=9).positions) == 5


def test_the_input_is_not_changed() -> None:
    ids = RESIDUES.copy()
    Masker(MaskingConfig(), PROTEIN)(ids, stream(0, Purpose.MASK))
    assert np.array_equal(ids, RESIDUES)


def test_streams_depend_on_every_argument_and_on_nothing_else() -> None:
    def draw(*arguments: int) -> list[float]:
        seed, purpose, epoch, index = arguments
        return stream(seed, Purpose(purpose), epoch, index).random(4).tolist()

    base = draw(3, 2, 1, 7)
    assert draw(3, 2, 1, 7) == base
    for other in ((4, 2, 1, 7), (3, 1, 1, 7), (3, 2, 2, 7), (3, 2, 1, 8), (3, 2, 7, 1)):
        assert draw(*other) != base


def test_shares_must_sum_to_one() -> None:
    with pytest.raises(ConfigError, match=r"mask \+ random \+ keep must be 1, but are 1\.1"):
        MaskingConfig.parse({"mask": 0.9})
