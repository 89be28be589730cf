"""Adapters: nothing at the start, merged into plain weights at the end, and only they learn."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError
from protlat.models import Encoder, ModelConfig
from protlat.nn.lora import LoraConfig, LoraLinear, add_lora, merge_lora
from protlat.ops.segments import Segments

SEGMENTS = Segments((7, 4))


def encoder() -> Encoder:
    torch.manual_seed(3)
    return Encoder(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).eval()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_merged_layers_do_what_adapted_ones_do(dropout: float, rng: torch.Generator) -> None:
    model = encoder()
    names = list(model.state_dict())
    tokens = torch.randint(4, 24, (11,), generator=rng)
    before = model(tokens, SEGMENTS)[2]
    assert add_lora(model, LoraConfig(rank=3, dropout=dropout)) == 8
    model.eval()
    assert torch.equal(model(tokens, SEGMENTS)[2], before)
    for module in model.modules():
        if isinstance(module, LoraLinear):
            torch.nn.init.normal_(module.lora_b, std=0.2)
    adapted = model(tokens, SEGMENTS)[2]
    assert (adapted - before).abs().max() > 0.1
    merge_lora(model)
    assert list(model.state_dict()) == names
    assert_close(model(tokens, SEGMENTS)[2], adapted, rtol=1e-4, atol=1e-5)


def test_gradients_reach_adapters_only(rng: torch.Generator) -> None:
    model = encoder()
    add_lora(model, LoraConfig())
    model(torch.randint(4, 24, (11,), generator=rng), SEGMENTS)[2].square().sum().backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == {name for name, _ in model.named_parameters() if name.endswith(("lora_a", "lora_b"))}
    assert all(p.grad.abs().sum() > 0 for name, p in model.named_parameters() if name.endswith("lora_b"))  # type: ignore[union-attr]


def test_unknown_targets_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no linear layer is called 'query'; this model has down, mix, project"):
        add_lora(encoder(), LoraConfig(targets=("query",)))
