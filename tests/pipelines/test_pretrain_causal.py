"""Next-token pretraining on documents: pieces, carried state, resuming, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from protlat.data.masking import MaskingConfig
from protlat.errors import ConfigError, TrainingError
from protlat.models import CausalLM, MaskedLM
from protlat.pipelines.pretrain import PretrainConfig, load_config, run
from protlat.training import loop as loop_module
from protlat.training.describe import describe_run
from protlat.training.metrics import read_metrics
from tests.pipelines.test_pretrain_resume import KILLED, N_STEPS, assert_same_run, start_ranks
from tests.training.books import SMALL, texts, write_books

CAUSAL = {**SMALL, "causal": True, "dropout": {"residual": 0.1}}
SETTINGS = (
    "batching.tokens_per_batch=160", "batching.max_length=40", "evaluation.every_steps=4", "evaluation.max_tokens=300",
    "checkpoints.every_steps=3", "checkpoints.every_minutes=null", f"limits.max_steps={N_STEPS}",
)  # fmt: skip

# Each rank: a carry run to the end, one that breaks off in mid-step, and its continuation.
TWO_RANKS = """
import sys
import torch
from protlat.pipelines.pretrain import PretrainConfig, run
from protlat.training import loop

torch.set_num_threads(1)
real = torch.nn.functional.cross_entropy

class Crash(Exception):
    pass

config = PretrainConfig.load(sys.argv[1], ["engine.zero_stage=2"])
run(config, f"{sys.argv[2]}/whole")
calls = 0

def cross_entropy(*args, **kwargs):
    global calls
    calls += kwargs["reduction"] == "sum"
    if calls == 8:
        raise Crash
    return real(*args, **kwargs)

loop.F.cross_entropy = cross_entropy
try:
    run(config, f"{sys.argv[2]}/broken")
except Crash:
    pass
loop.F.cross_entropy = real
run(config, f"{sys.argv[2]}/broken", resume=True)
"""


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_books(
        tmp_path_factory.mktemp("books") / "shards", {"train": texts(8, seed=1), "valid": texts(3, seed=2)}
    )


def toy(books: Path, *overrides: str, **values: Any) -> PretrainConfig:
    options = {"shards": str(books), "engine__dtype": "float32", **values}
    config = {f"model__{key}": value for key, value in CAUSAL.items()}
    return load_config(None, (*SETTINGS, "evaluation.floors=false", *overrides), **config, **options)


@pytest.mark.parametrize("long", ["crop", "pieces", "carry"])
def test_a_causal_run_reads_documents(books: Path, long: str, tmp_path: Path) -> None:
    settings = toy(books, f"batching.long={long}", "limits.max_steps=12", "optim.lr=1e-2")
    result = run(settings, tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    train = [row["loss"] for row in rows if row["kind"] == "train"]
    assert train[-1] < train[0] - 0.5
    final = rows[-1]
    assert final["whole"]
    assert final["n_ends"] == 3
    assert final["n"] == sum(len(text) + 1 for text in texts(3, seed=2))
    assert result.summary["tokens predicted"] == result.summary["tokens"]
    assert (result.summary["of them cropped"] > 0) == (long == "crop")
    carried = list((tmp_path / "run" / "checkpoints" / "step-0000000012").glob("carried-*"))
    assert len(carried) == (long == "carry")
    assert load_config(tmp_path / "run" / "config.yaml") == settings


def test_a_causal_run_tells_bits_per_byte_beside_the_floors(books: Path, tmp_path: Path) -> None:
    settings = toy(books, "batching.long=pieces", "evaluation.floors=true", "optim.lr=1e-2", "limits.max_steps=150",
                   "evaluation.every_steps=150", "checkpoints.every_steps=150")  # fmt: skip
    result = run(settings, tmp_path / "run")
    final = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    # Words are drawn at random, so what can be known is how they are spelt.
    assert final["bits_per_byte"] < final["floor_bigram_bits_per_byte"] < final["floor_frequencies_bits_per_byte"]
    assert "bits per byte" in result.summary["floors: trigram"]
    assert float(result.summary["validation bits per byte"]) == pytest.approx(final["bits_per_byte"], abs=1e-4)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    for part in (
        "causal-language-model",
        "predict the next token",
        "bits per byte |",
        "| bigram |",
        "ends of sequences",
    ):
        assert part in card
    facts = describe_run(tmp_path / "run")["validation"]
    assert facts["bits per byte"] == final["bits_per_byte"]
    assert "perplexity of a bigram model" in facts
    assert CausalLM.from_pretrained(tmp_path / "run").config == settings.model


def test_a_masked_run_on_documents_tells_bits_per_masked_byte(books: Path, tmp_path: Path) -> None:
    settings = toy(books, "model.causal=false", "batching.long=pieces", "evaluation.floors=true")
    assert settings.masking == MaskingConfig()
    result = run(settings, tmp_path / "run")
    assert "validation bits per masked byte" in result.summary
    assert "validation bits per byte" not in result.summary
    assert result.summary["masked residues"] > 0
    MaskedLM.from_pretrained(tmp_path / "run")


def test_a_killed_carry_run_goes_on_bit_for_bit(books: Path, tmp_path: Path) -> None:
    # In bfloat16; two ranks in float32 follow below.
    config = toy(books, "batching.long=carry", "engine.accumulate=2", engine__dtype="bfloat16")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(config, whole)
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    command = [sys.executable, "-c", KILLED, str(path), str(killed), "16"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (killed / "checkpoints/latest").read_text() == "step-0000000006\n"
    run(config, killed, resume=True)
    assert_same_run(whole, killed)
    last = f"checkpoints/step-{N_STEPS:010d}"
    for number in range(2):
        one, other = (load_file(folder / last / f"carried-{number:05d}.safetensors") for folder in (whole, killed))
        assert one.keys() == other.keys()
        assert len(one) > 0
        assert all(torch.equal(one[name], other[name]) for name in one)
    # The states matter: without them the continuation is another run.
    for file in (killed / "checkpoints/step-0000000006").glob("carried-*"):
        assert any(bool(x.any()) for x in load_file(file).values())


def test_state_that_is_forgotten_makes_another_run(
    books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy(books, "batching.long=carry", "model.dropout.residual=0")
    run(config, tmp_path / "whole")
    monkeypatch.setattr("protlat.training.carry.CarriedStates.commit", lambda self: None)
    run(config, tmp_path / "forgetful")
    losses = [
        [row["loss"] for row in read_metrics(tmp_path / name / "metrics.jsonl")] for name in ("whole", "forgetful")
    ]
    assert losses[0][0] == losses[1][0]
    assert losses[0] != losses[1]


def test_two_ranks_carry_their_own_lanes(books: Path, tmp_path: Path) -> None:
    config = toy(books, "batching.long=carry", "model.dropout.residual=0")
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    for rank, process in enumerate(
        start_ranks([sys.executable, "-c", TWO_RANKS, str(path), str(tmp_path)], 2, tmp_path)
    ):
        assert process.wait(timeout=200) == 0, (tmp_path / f"rank{rank}.log").read_text()[-3000:]
    assert_same_run(tmp_path / "whole", tmp_path / "broken")
    # One rank that sums two batches has the same lanes, so it learns the same, to the order of the sums.
    alone = tmp_path / "alone"
    run(toy(books, "batching.long=carry", "model.dropout.residual=0", "engine.accumulate=2"), alone)
    losses = [
        [row["loss"] for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "train"]
        for folder in (alone, tmp_path / "whole")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    with pytest.raises(ConfigError, match=r"its lanes form 2 batches a step, now there would be 1.*only with as many"):
        run(toy(books, "batching.long=carry", "model.dropout.residual=0"), tmp_path / "whole", resume=True)
    more = toy(books, "batching.long=carry", "model.dropout.residual=0", "engine.accumulate=2", "limits.max_steps=12")
    assert run(more, tmp_path / "whole", resume=True).step == 12


def test_a_loss_that_is_no_number_keeps_the_states_from_before(
    books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = torch.nn.functional.cross_entropy, [0]

    def cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = real(*args, **kwargs)
        calls[0] += kwargs["reduction"] == "sum"
        return loss * float("nan") if calls[0] == 6 and kwargs["reduction"] == "sum" else loss

    config = toy(books, "batching.long=carry")
    run(config, tmp_path / "whole")
    monkeypatch.setattr(loop_module.F, "cross_entropy", cross_entropy)
    with pytest.raises(TrainingError, match=r"step 6: the loss is nan .*book.*before this step"):
        run(config, tmp_path / "run")
    monkeypatch.undo()
    run(config, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_causal_run_is_no_masked_model(books: Path, tmp_path: Path) -> None:
    run(toy(books, "limits.max_steps=1"), tmp_path / "run")
    with pytest.raises(ConfigError, match="use CausalLM"):
        MaskedLM.from_pretrained(tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["masking.fraction=0.3"], "masking: a causal model predicts the next token and hides none; leave masking out"),
        (["model.causal=false", "batching.long=carry"], "carry passes the state of a causal model.*use pieces or crop"),
        (["batching.long=carry", "model.positions={kind: learned, max_length: 40}"], "learned positions end at 40; use pieces"),
        (
            ["batching.long=carry", "model.attention=[{kind: softmax, n_heads: 1}]"],
            r"softmax heads \(layer 0\) keep every token; use pieces",
        ),
        (["batching.max_length=200"], "max_length 200 does not fit a batch of 160 tokens"),
    ],
)  # fmt: skip
def test_what_cannot_act_is_refused(books: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        toy(books, *overrides)
