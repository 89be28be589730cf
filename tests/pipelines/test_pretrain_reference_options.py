"""Reversible layers, product keys, chunks and axial blocks under the training engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protlat.errors import ConfigError
from protlat.models import MaskedLM
from protlat.pipelines.pretrain import load_config, run
from protlat.training.metrics import read_metrics

OPTIONS = (
    "model.reversible=true",
    "model.axial_block.width=8",
    "model.feed_forward.chunks=2",
    "model.feed_forward_by_layer={1: {kind: product_key, n_heads: 2, n_keys: 8, top_k: 4, key_dim: 4}}",
    "optim.product_key_lr=1e-2",
)


@pytest.mark.parametrize(("stage", "dtype"), [(1, "float32"), (3, "bfloat16")])
def test_the_engine_trains_them(
    toy_shards: Path, toy_overrides: tuple[str, ...], tmp_path: Path, stage: int, dtype: str
) -> None:
    options = [option for option in OPTIONS if stage != 3 or "chunks" not in option]
    config = load_config(
        None, (*toy_overrides, *options, "optim.lr=1e-3", "seed=3"), shards=str(toy_shards), limits__max_steps=6,
        engine__dtype=dtype, engine__zero_stage=stage,
    )  # fmt: skip
    result = run(config, tmp_path / "run")
    assert result.step == 6
    losses = [row["loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"]
    assert losses[-1] < losses[0]
    trained = MaskedLM.from_pretrained(tmp_path / "run")
    values = trained.encoder.blocks[1].feed_forward.values.weight
    assert values.isfinite().all()
    # Six steps of Adam move a value by up to six rates. The warm-up included, one that is often read has moved by more
    # than the other weights' rate allows.
    assert config.optim.product_key_lr == 10 * config.optim.lr
    torch.manual_seed(config.seed)
    start = MaskedLM(config.model, trained.alphabet).encoder.blocks[1].feed_forward.values.weight
    assert 6 * config.optim.lr < float((values - start).detach().abs().max()) < 7 * config.optim.product_key_lr


def test_chunks_inside_reversible_layers_are_refused_at_stage_3(toy_overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="use zero_stage 1 or 2, or chunks 1"):
        load_config(None, (*toy_overrides, *OPTIONS, "engine.zero_stage=3"))


def test_a_rate_for_memories_that_the_model_lacks_is_refused(toy_overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="the model has no product_key feed-forward"):
        load_config(None, (*toy_overrides, "optim.product_key_lr=1e-2"))


def test_a_model_with_a_context_is_refused_when_settings_are_read(toy_overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"model\.context: shards hold one sequence each"):
        load_config(None, (*toy_overrides, "model.context={kind: efficient, n_heads: 2}"))
