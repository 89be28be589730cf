"""Validation documents are scored whole, whatever the batches; bits per byte leave the ends out."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from protlat.alphabet import BYTES
from protlat.data.masking import MaskingConfig
from protlat.data.shards import ShardReader
from protlat.models import CausalLM, MaskedLM, ModelConfig
from protlat.ops.segments import Segments
from protlat.training.evaluation import EvaluationConfig, Validator
from protlat.training.scores import Tally
from tests.training.books import SMALL, texts, write_books

TEXTS = [text.encode() for text in texts(5, seed=3)]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_books(
        tmp_path_factory.mktemp("books") / "shards", {"train": texts(8, seed=1), "valid": texts(5, seed=3)}
    )


def process(rank: int = 0, world_size: int = 1) -> Any:
    return SimpleNamespace(rank=rank, world_size=world_size, device=torch.device("cpu"), sum=lambda values: values)


def causal_model() -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(ModelConfig.parse({**SMALL, "causal": True}), BYTES).double()


def by_hand(model: CausalLM) -> tuple[float, float, int]:
    """Nats of all bytes and of all ends, and the number of bytes, each document in one pass."""
    nats = ends = 0.0
    for text in TEXTS:
        ids = torch.tensor([BYTES.cls_id, *text, BYTES.eos_id])
        with torch.no_grad():
            log_probs = torch.log_softmax(model(ids[:-1], Segments([len(ids) - 1])), 1)
        nll = -log_probs.gather(1, ids[1:, None]).squeeze(1)
        nats, ends = nats + float(nll[:-1].sum()), ends + float(nll[-1])
    return nats, ends, sum(map(len, TEXTS))


@pytest.mark.parametrize("tokens_per_batch", [17, 64, 5000])
def test_causal_documents_are_read_as_one(books: Path, tokens_per_batch: int) -> None:
    model = causal_model()
    validator = Validator(ShardReader(books, "valid"), None, EvaluationConfig(), tokens_per_batch, 3, carries=True)
    scores = validator.score(model, process(), whole=True)
    nats, ends, n_bytes = by_hand(model)
    assert scores["n"] == scores["n_tokens"] == n_bytes + len(TEXTS)
    assert scores["n_ends"] == len(TEXTS)
    # State passing in float64, so nothing but rounding is left.
    assert scores["bits_per_byte"] == pytest.approx(nats / n_bytes / math.log(2), rel=1e-10)
    assert scores["end_loss"] == pytest.approx(ends / len(TEXTS), rel=1e-10)
    assert scores["loss"] == pytest.approx((nats + ends) / scores["n"], rel=1e-10)


def test_without_a_state_long_documents_are_scored_in_pieces(books: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="protlat")
    validator = Validator(ShardReader(books, "valid"), None, EvaluationConfig(), 64, 50, carries=False)
    n_long = sum(len(text) + 1 > 50 for text in TEXTS)
    assert f"{n_long} sequences are longer than one pass of 50 tokens and are scored in pieces" in caplog.text
    model = causal_model()
    scores = validator.score(model, process(), whole=True)
    assert scores["n"] == sum(map(len, TEXTS)) + len(TEXTS)
    assert scores["loss"] != pytest.approx(sum(by_hand(model)[:2]) / scores["n"], rel=1e-6)


def test_masked_documents_are_read_in_one_pass(books: Path) -> None:
    torch.manual_seed(0)
    model = MaskedLM(ModelConfig.parse(SMALL), BYTES).double()
    scores = [
        Validator(ShardReader(books, "valid"), MaskingConfig(), EvaluationConfig(), size, 5000).score(
            model, process(), True
        )
        for size in (32, 5000)
    ]
    assert scores[0]["bits_per_masked_byte"] == pytest.approx(scores[1]["bits_per_masked_byte"], rel=1e-10)
    assert scores[0]["bits_per_masked_byte"] == pytest.approx(scores[0]["loss"] / math.log(2))
    assert "bits_per_byte" not in scores[0]
    assert "n_ends" not in scores[0]


def test_ranks_share_the_chains_and_make_as_many_passes(books: Path) -> None:
    model = causal_model()
    reader = ShardReader(books, "valid")
    alone = Validator(reader, None, EvaluationConfig(), 40, 40, carries=True).score(model, process(), True)
    calls, sums = [], []
    for rank in range(3):
        count = [0]

        class Counted:
            def __init__(self, count: list[int] = count) -> None:
                self.count = count

            def __call__(self, *args: Any) -> torch.Tensor:
                self.count[0] += 1
                return model(*args)

            def eval(self) -> None: ...
            def train(self) -> None: ...

        validator = Validator(reader, None, EvaluationConfig(), 40, 40, carries=True)
        scores = validator.score(Counted(), process(rank, 3), True)
        calls.append(count[0])
        sums.append((scores["n"], scores["loss"] * scores["n"]))
    assert len(set(calls)) == 1
    assert sum(n for n, _ in sums) == alone["n"]
    assert sum(x for _, x in sums) / alone["n"] == pytest.approx(alone["loss"], rel=1e-10)


def test_a_short_evaluation_reads_the_beginning(books: Path) -> None:
    reader = ShardReader(books, "valid")
    validator = Validator(reader, None, EvaluationConfig(max_tokens=100), 40, 40, carries=True)
    short = list(validator.batches(whole=False))
    long = list(validator.batches(whole=True))
    assert 40 <= sum(b.n_tokens for b in short) <= 100
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(short, long, strict=False))
    assert sum(b.n_tokens for b in long) == sum(map(len, TEXTS)) + len(TEXTS)


def test_floors_are_kept_and_scored_at_the_same_positions(books: Path, tmp_path: Path) -> None:
    validator = Validator(ShardReader(books, "valid"), None, EvaluationConfig(), 40, 40, carries=True)
    floors = validator.floors(ShardReader(books, "train"), tmp_path)
    assert floors is not None
    whole = floors["whole"]
    assert list(whole) == ["frequencies", "bigram", "trigram"]
    assert whole["trigram"]["n"] == sum(map(len, TEXTS)) + len(TEXTS)
    bits = [whole[name]["bits_per_byte"] for name in whole]
    assert bits == sorted(bits, reverse=True)
    before = (tmp_path / "floors.json").stat().st_mtime_ns
    assert validator.floors(ShardReader(books, "train"), tmp_path) == floors
    assert (tmp_path / "floors.json").stat().st_mtime_ns == before


def test_bits_per_byte_by_hand() -> None:
    tally = Tally(["a", "b"], "byte")
    nll = np.array([1.0, 2.0, 5.0, 3.0])
    tally.add(np.array([0, 0, 0, 1]), nll, np.array([True, False, False, True]), np.array([False, False, True, False]))
    found = tally.summary()
    assert found["bits_per_byte"] == pytest.approx(6 / 3 / math.log(2))
    assert (found["n"], found["n_ends"], found["end_loss"]) == (4, 1, 5.0)
    assert found["loss"] == pytest.approx(11 / 4)
    assert found["tags"]["b"]["bits_per_byte"] == pytest.approx(3 / math.log(2))
    assert "n_ends" not in found["tags"]["b"]
    assert Tally(["a"], "byte").summary()["bits_per_byte"] is None
