"""The held-out masked-language score against the validator of pretraining."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.data.masking import MaskingConfig
from protlat.data.shards import ShardReader
from protlat.evaluation.heldout import ALL, score_heldout
from protlat.models import MaskedLM, ModelConfig
from protlat.training.engine import Process
from protlat.training.evaluation import EvaluationConfig, Validator
from tests.pipelines.conftest import patterned_records, write_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = {"train": patterned_records(120, 0), "valid": patterned_records(40, 1)}
    return write_shards(tmp_path_factory.mktemp("heldout") / "shards", splits)


def test_scores_are_those_of_the_validator(shards: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).eval()
    valid, train = ShardReader(shards, "valid"), ShardReader(shards, "train")
    masking = MaskingConfig()
    found = score_heldout(model, valid, train, masking, 10**6, 10**6, 500, n_bootstrap=50, seed=0)
    settings = EvaluationConfig(max_tokens=10**6)
    validator = Validator(valid, masking, settings, 500, settings.longest_pass)
    process = Process(0, 1, torch.device("cpu"), torch.float32)
    expected = validator.score(model, process, whole=True)
    floors = validator.floors(train, tmp_path)
    assert floors is not None
    for who, values in (("model", expected), *floors["whole"].items()):
        mine = found.scores[who]
        assert mine[ALL]["accuracy"].value == pytest.approx(values["accuracy"])
        assert mine[ALL]["perplexity"].value == pytest.approx(values["perplexity"], rel=1e-5)
        for tag, by_tag in values["tags"].items():
            assert mine[tag]["accuracy"].value == pytest.approx(by_tag["accuracy"])
            assert mine[tag]["accuracy"].n_labels == by_tag["n"]
    assert found.n_positions == expected["n"]
    # Each residue mostly follows from the one before: the trigram knows, frequencies do not.
    trigram, frequencies = found.scores["trigram"][ALL]["accuracy"], found.scores["frequencies"][ALL]["accuracy"]
    assert trigram.low > frequencies.high


def test_without_a_training_split_there_are_no_floors(shards: Path) -> None:
    torch.manual_seed(0)
    model = MaskedLM(ModelConfig(d_model=16, n_layers=1, head_dim=8), PROTEIN).eval()
    found = score_heldout(model, ShardReader(shards, "valid"), None, MaskingConfig(), 1000, 1000, 500, 0, 0)
    assert set(found.scores) == {"model"}
    assert found.n_counted == 0
