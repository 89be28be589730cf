"""DeepSpeed's dictionary and the user's own JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from protlat.errors import ConfigError
from protlat.training.engine import EngineConfig, deepspeed_dict, launch_variables


def with_json(path: Path, values: Any, **settings: Any) -> dict[str, Any]:
    path.write_text(json.dumps(values))
    return deepspeed_dict(EngineConfig(deepspeed_config=str(path), **settings), torch.bfloat16, 2)


def test_dictionary_follows_the_settings() -> None:
    config = EngineConfig(zero_stage=2, accumulate=4, clip=0.5)
    values = deepspeed_dict(config, torch.bfloat16, world_size=2)
    assert values["zero_optimization"]["stage"] == 2
    assert values["gradient_accumulation_steps"] == 4
    assert values["train_batch_size"] == 8
    assert values["gradient_clipping"] == 0.5
    assert values["bf16"] == {"enabled": True}
    assert values["data_types"] == {"grad_accum_dtype": "fp32"}
    assert "bf16" not in deepspeed_dict(config, torch.float32, 1)


def test_stage_0_is_refused_in_bfloat16() -> None:
    with pytest.raises(ConfigError, match="use zero_stage=1, or"):
        deepspeed_dict(EngineConfig(zero_stage=0), torch.bfloat16, 1)
    assert deepspeed_dict(EngineConfig(zero_stage=0), torch.float32, 1)["zero_optimization"]["stage"] == 0


def test_other_keys_are_passed_on_and_auto_is_ours(tmp_path: Path) -> None:
    theirs = {
        "wall_clock_breakdown": True,
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000},
    }
    values = with_json(tmp_path / "ds.json", theirs, zero_stage=2)
    assert values["wall_clock_breakdown"] is True
    assert values["gradient_clipping"] == 1.0
    assert values["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000}
    assert values["bf16"] == {"enabled": True}


def test_every_conflict_is_named_with_the_setting_to_change(tmp_path: Path) -> None:
    theirs = {
        "zero_optimization": {"stage": 3},
        "gradient_accumulation_steps": 7,
        "optimizer": {"type": "Adam"},
        "fp16": {"enabled": True},
    }
    with pytest.raises(ConfigError) as caught:
        with_json(tmp_path / "ds.json", theirs)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    for line, setting in zip(lines, ("engine.zero_stage", "engine.accumulate", "optim", "engine.dtype"), strict=True):
        assert line.endswith(f"set {setting} instead")


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_file_that_is_no_json_object(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        deepspeed_dict(EngineConfig(deepspeed_config=str(path)), torch.float32, 1)


def test_launch_variables_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("MASTER_PORT", "123")
    with launch_variables():
        assert os.environ["RANK"] == "0"
        assert os.environ["MASTER_PORT"] != "123"
    assert "RANK" not in os.environ
    assert os.environ["MASTER_PORT"] == "123"
    monkeypatch.setenv("RANK", "3")
    with launch_variables():
        assert os.environ["RANK"] == "3"
