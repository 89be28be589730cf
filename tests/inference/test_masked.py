from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from protlat.alphabet import PROTEIN, STANDARD_RESIDUES
from protlat.data.packing import pack_ids, with_specials
from protlat.errors import ConfigError
from protlat.inference.masked import MaskedPredictor, MaskedQuery, parse_positions, pseudo_perplexity, queries_for
from protlat.models import MaskedLM


@pytest.fixture(scope="module")
def model(model_folder: Path) -> MaskedLM:
    return MaskedLM.from_pretrained(model_folder)


def test_probabilities_are_the_models_over_the_twenty_residues(model: MaskedLM) -> None:
    ids = PROTEIN.encode("MKT<mask>AYI<mask>K")
    predictor = MaskedPredictor(model, 100)
    [(index, found)] = predictor.run([MaskedQuery(ids, np.array([3, 7]))], ["a"])
    batch = pack_ids([with_specials(ids, PROTEIN)])
    with torch.inference_mode():
        logits = model(batch.tokens, batch.segments)[[4, 8]]
    codes = [PROTEIN.ids[residue] for residue in STANDARD_RESIDUES]
    expected = logits.softmax(-1)[:, codes]
    expected = (expected / expected.sum(-1, keepdim=True)).numpy()
    assert index == 0
    assert predictor.residues == tuple(STANDARD_RESIDUES)
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-5)
    np.testing.assert_allclose(np.exp(found).sum(1), 1, rtol=1e-5)


def test_batch_mates_and_budget_change_nothing(model: MaskedLM) -> None:
    rng = np.random.default_rng(0)
    queries = []
    for length in rng.integers(1, 50, 20):
        ids = rng.integers(4, 24, int(length)).astype(np.uint8)
        queries += queries_for(ids, np.array([0, length - 1][: min(2, length)]), PROTEIN.mask_id, together=False)
    names = ["x"] * len(queries)
    one_by_one = [values for _, values in MaskedPredictor(model, 1).run(queries, names)]
    together = [values for _, values in MaskedPredictor(model, 10_000).run(queries, names)]
    for one, other in zip(one_by_one, together, strict=True):
        # float32 rounding of log-probabilities of order ten
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_queries_mask_one_at_a_time_or_all_and_keep_written_masks() -> None:
    ids = PROTEIN.encode("MK<mask>LV")
    positions = np.array([0, 4])
    apart = list(queries_for(ids, positions, PROTEIN.mask_id, together=False))
    assert [PROTEIN.decode(query.ids) for query in apart] == ["<mask>K<mask>LV", "MK<mask>L<mask>"]
    assert [query.positions.tolist() for query in apart] == [[0], [4]]
    [joint] = queries_for(ids, positions, PROTEIN.mask_id, together=True)
    assert PROTEIN.decode(joint.ids) == "<mask>K<mask>L<mask>"
    assert PROTEIN.decode(ids) == "MK<mask>LV", "the input must stay as it is"


@pytest.mark.parametrize(("text", "expected"), [("5", (5,)), ("10, 5,5", (5, 10)), ("3-5,1", (1, 3, 4, 5))])
def test_positions_are_read(text: str, expected: tuple[int, ...]) -> None:
    assert parse_positions(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-3", "a", "5-", "7-5", "1,,2", "1.5"])
def test_wrong_positions_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="use numbers from 1 and ranges"):
        parse_positions(text)


def test_pseudo_perplexity_of_known_likelihoods() -> None:
    assert pseudo_perplexity(np.log(np.full(7, 1 / 20))) == pytest.approx(20)
    assert np.isnan(pseudo_perplexity(np.array([])))
