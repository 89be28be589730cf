"""Every setting of every part of a model acts: none is silently ignored.

`tests.models.setting_changes` names for each field a model where it is at its default and a value that must change
something there, or says that it must change nothing but how a result is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from pydantic import BaseModel

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError
from protlat.models import ModelConfig, language_model_class
from protlat.models.language_model import LanguageModel
from protlat.nn.attention.causal_linear import CausalEfficientAttention
from protlat.nn.attention.decay import DecayAttention
from protlat.nn.attention.delta import DeltaAttention
from protlat.nn.attention.linear import EfficientAttention
from protlat.nn.feed_forward import FeedForward
from protlat.ops.segments import Segments
from tests.models.setting_changes import (
    CAUSAL_EFFICIENT,
    CHANGES,
    DECAY,
    DELTA,
    EFFICIENT,
    LAYOUT,
    LINEAR,
    SMALL,
    Values,
    heads,
)
from tests.models.variants import CAUSAL, VARIANTS


def config_classes(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A config class and all that its fields may hold."""
    yield cls
    for field in cls.model_fields.values():
        for inner in _classes_in(field.annotation):
            yield from config_classes(inner)


def _classes_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _classes_in(part)


def changed(values: Values, name: str, value: Any) -> Values:
    """Settings with one of them changed, by its dotted name."""
    first, _, rest = name.partition(".")
    if first.isdigit():
        return [changed(item, rest, value) if i == int(first) else item for i, item in enumerate(values)]  # type: ignore[return-value]
    return {**values, first: changed(values.get(first) or {}, rest, value) if rest else value}


def build(values: Values) -> LanguageModel:
    config = ModelConfig.parse(values)
    torch.manual_seed(5)
    return language_model_class(config)(config, PROTEIN).double()


def shapes(model: LanguageModel) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def shaken(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Weights that are not near zero, so that every part has something to say."""
    generator = torch.Generator().manual_seed(7)
    return {
        name: value + 0.3 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in model.state_dict().items()
    }


def logits(model: LanguageModel, training: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(4, 24, (37,), generator=generator)
    context, context_segments = None, None
    if model.config.context is not None:
        width = model.config.context.width or model.config.d_model
        context = torch.randn(12, width, generator=generator, dtype=torch.float64)
        context_segments = Segments([5, 7])
    torch.manual_seed(13)
    with torch.no_grad():
        return model.train(training)(tokens, Segments([26, 11]), None, None, context, context_segments)


def test_every_setting_is_named_here() -> None:
    classes = set(config_classes(ModelConfig))
    fields = {(cls.__name__, name) for cls in classes for name in cls.model_fields if name != "kind"}
    assert fields == set(CHANGES) | LAYOUT
    assert not set(CHANGES) & LAYOUT


@pytest.mark.parametrize(("owner", "field"), CHANGES, ids=[".".join(key) for key in CHANGES])
def test_a_setting_acts(owner: str, field: str) -> None:
    values, name, value, how = CHANGES[owner, field]
    before, after = build(values), build(changed(values, name, value))
    assert before.config != after.config
    if how == "shapes":
        assert shapes(before) != shapes(after)
        return
    assert shapes(before) == shapes(after)
    if how == "start":
        pairs = zip(before.state_dict().values(), after.state_dict().values(), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs)
        return
    weights = shaken(before)
    before.load_state_dict(weights)
    after.load_state_dict(weights)
    differ = {
        training: not torch.allclose(logits(before, training), logits(after, training)) for training in (False, True)
    }
    assert differ == {False: how == "values", True: True}


@pytest.mark.parametrize(
    ("values", "name", "value"),
    [
        (SMALL, "checkpoint_activations", True),
        (SMALL, "feed_forward.chunks", 3),
        (EFFICIENT, "attention.0.chunk", 3),
        (EFFICIENT, "attention.0.implementation", "chunked"),
        (CAUSAL_EFFICIENT, "attention.0.chunk", 3),
        (heads("linear", causal=True), "attention.0.chunk", 3),
        (DECAY, "attention.0.chunk", 3),
        (DECAY, "attention.0.implementation", "reference"),
        (DELTA, "attention.0.chunk", 3),
        (DELTA, "attention.0.implementation", "reference"),
    ],
)
def test_a_layout_changes_no_result(values: Values, name: str, value: Any) -> None:
    before, after = build(values), build(changed(values, name, value))
    weights = shaken(before)
    before.load_state_dict(weights)
    after.load_state_dict(weights)
    torch.testing.assert_close(logits(after, True), logits(before, True), rtol=1e-9, atol=1e-10)


def test_layouts_reach_what_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of chunks and names of implementations arrive at the operations."""
    seen: list[tuple[str, object]] = []

    def spy(module: str, function: str, place: int | str) -> None:
        import importlib

        owner = importlib.import_module(module)
        original = getattr(owner, function)

        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append((function, args[place] if isinstance(place, int) else kwargs.get(place)))
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, function, call)

    spy("protlat.nn.attention.linear", "pooled_attention", 5)
    spy("protlat.nn.attention.linear", "pick_pooled", 0)
    spy("protlat.nn.attention.causal_linear", "causal_exp_attention", 4)
    spy("protlat.nn.attention.causal_linear", "causal_linear_attention", 4)
    spy("protlat.nn.attention.decay", "decay_attention", 8)
    spy("protlat.nn.attention.delta", "delta_rule", 7)
    wanted = {
        "pooled_attention": (EFFICIENT, "chunk", 3),
        "pick_pooled": (LINEAR, "implementation", "chunked"),
        "causal_exp_attention": (CAUSAL_EFFICIENT, "chunk", 3),
        "causal_linear_attention": (heads("linear", causal=True), "chunk", 3),
        "decay_attention": (DECAY, "chunk", 3),
        "delta_rule": (DELTA, "chunk", 3),
    }
    for function, (values, field, value) in wanted.items():
        seen.clear()
        logits(build(changed(values, f"attention.0.{field}", value)), False)
        assert (function, value) in seen


def test_layers_are_computed_again_where_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """`checkpoint_activations` and `chunks` run the feed-forward more often, or on fewer rows."""
    rows: list[int] = []
    original = FeedForward.rows

    def call(self: FeedForward, x: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return original(self, x)

    monkeypatch.setattr(FeedForward, "rows", call)
    found = []
    for name, value in (("causal", False), ("checkpoint_activations", True), ("feed_forward.chunks", 3)):
        rows.clear()
        model = build(changed(SMALL, name, value)).train()
        model(torch.full((36,), 7), Segments([36])).sum().backward()
        found.append(list(rows))
    assert found == [[36] * 2, [36] * 4, [12] * 12]


@pytest.mark.parametrize(
    ("core", "values"),
    [
        (EfficientAttention, EFFICIENT),
        (CausalEfficientAttention, CAUSAL_EFFICIENT),
        (DecayAttention, DECAY),
        (DeltaAttention, DELTA),
    ],
)
def test_kinds_build_their_cores(core: type, values: Values) -> None:
    assert isinstance(build(values).encoder.blocks[0].attention.cores[0], core)


@pytest.mark.parametrize(
    "config", [*VARIANTS.values(), *CAUSAL.values()], ids=[*VARIANTS, *(f"causal-{n}" for n in CAUSAL)]
)
def test_settings_of_a_folder_are_accepted_again(config: ModelConfig) -> None:
    """A folder holds every setting, those that do not act at their defaults."""
    assert ModelConfig.parse(config.to_plain()) == config


_LINFORMER_OF_ONE = {"kind": "linformer", "n_heads": 1, "max_length": 9, "k": 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gate": {"norm": False}}, "set output to channel or head"),
        ({"gate": {"write_bias": 0.0}}, "set write to channel or head"),
        ({"d_model": 2, "token_shift": True}, "use d_model of at least 3"),
        ({"embedding_dim": 1}, "use 2, or head plain"),
        ({"attention": [_LINFORMER_OF_ONE]}, "use k of at least 2"),
        ({"context": _LINFORMER_OF_ONE}, "use k of at least 2"),
        ({"feed_forward": {"kind": "product_key", "top_k": 1}}, "use at least 2"),
        ({"feed_forward": {"kind": "product_key", "key_dim": 2}}, "use at least 3"),
        ({"feed_forward": {"kind": "product_key", "n_keys": 8}}, "use fewer, or more keys"),
        ({"d_model": 4, "feed_forward": {"expansion": 0.1, "kind": "glu"}}, "use at least 0.25"),
        (
            {"attention": [{"kind": "banded", "n_heads": 1, "scale": False, "normalise": "rmsnorm"}]},
            "leave scale at true",
        ),
        (
            {"attention": [{"kind": "decay", "n_heads": 2, "implementation": "reference", "chunk": 8}]},
            "use auto or chunked",
        ),
        (
            {"causal": True, "attention": [{"kind": "delta", "n_heads": 2, "gated": False, "shortest": 2}]},
            "set gated: true",
        ),
    ],
)
def test_what_cannot_act_is_refused(values: Values, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        build(values)
    assert len(str(refusal.value).splitlines()) == 1
