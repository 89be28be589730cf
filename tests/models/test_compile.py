"""torch.compile takes every preset and kind of head in one graph, and gives the same numbers and gradients.

The tables of a batch are made before, by an ordinary call: they are part of the data, as packing is. The backend that
runs the traced graph unchanged shows what is asked here, that nothing breaks the graph; machine code is compiled once,
for the smallest preset, where a compiler is at hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from protlat.alphabet import PROTEIN
from protlat.models import ModelConfig, language_model_class, load_preset, preset_names
from protlat.models.language_model import LanguageModel
from protlat.ops.segments import Segments
from tests.models.variants import VARIANTS

LENGTHS = (40, 1, 87)
# Kinds of heads and options that stand in the hot path, one of each.
TRACED = (
    "default",
    "efficient-rotary",
    "linear-elu",
    "softmax",
    "both-gates",
    "conv-qkv-7",
    "token-shift",
    "decay-data",
)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def small(name: str) -> ModelConfig:
    """A preset with one layer: what is traced does not depend on depth."""
    values = load_preset(name).to_plain()
    values["n_layers"] = 1
    values["attention_by_layer"] = {}
    return ModelConfig.parse(values)


def results(model: LanguageModel, run: object, tokens: torch.Tensor, segments: Segments) -> list[torch.Tensor]:
    logits = run(tokens, segments)  # type: ignore[operator]
    loss = F.cross_entropy(logits, tokens)
    gradients = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    return [logits.detach(), *(g for g in gradients if g is not None)]


def check(config: ModelConfig, backend: str, rng: torch.Generator) -> None:
    torch.manual_seed(0)
    model = language_model_class(config)(config, PROTEIN).train()
    tokens = torch.randint(4, 24, (sum(LENGTHS),), generator=rng)
    segments = Segments(LENGTHS)
    plain = results(model, model, tokens, segments)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for ours, theirs in zip(results(model, compiled, tokens, segments), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", preset_names())
def test_presets_make_one_graph(rng: torch.Generator, name: str) -> None:
    check(small(name), "eager", rng)


@pytest.mark.parametrize("name", TRACED)
def test_options_make_one_graph(rng: torch.Generator, name: str) -> None:
    check(VARIANTS[name], "eager", rng)


# inductor leaves complex products (rotary angles) to torch and says so.
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_machine_code_gives_the_same_numbers(rng: torch.Generator) -> None:
    check(VARIANTS["default"], "inductor", rng)
