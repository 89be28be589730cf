"""Settings of an evaluation that a model may or may not have."""

import pytest

from protlat.errors import ConfigError
from protlat.pipelines.pretrain_config import PretrainConfig

MODEL = {"d_model": 16, "n_layers": 1, "head_dim": 8, "attention": [{"kind": "linear", "n_heads": 2}]}


@pytest.mark.parametrize("carry", [True, False])
def test_a_causal_model_is_scored_with_its_state_or_in_pieces(carry: bool) -> None:
    config = PretrainConfig.parse(
        {"model": {**MODEL, "causal": True}, "evaluation": {"carry": carry, "longest_pass": 64}}
    )
    assert config.passes_state is carry
    assert config.longest_pass == 64


def test_a_model_of_both_sides_has_no_state_to_leave_out() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.carry: .* set evaluation\.longest_pass"):
        PretrainConfig.parse({"model": MODEL, "evaluation": {"carry": False}})
