from __future__ import annotations

import pytest

from protlat.errors import ConfigError
from protlat.inference.naming import NameRegistry, columns_of, escape_name, labelled, unescape_name
from protlat.inference.settings import LongConfig, VectorConfig

NASTY = ["sp|P1|A/B", "..", ".", "a%2Fb", "a/b", "100%", "tab\there", "back\\slash", "ünïcode", "v1.2", "a#2", "%2E"]


@pytest.mark.parametrize("identifier", NASTY)
def test_escaped_names_are_safe_and_come_back(identifier: str) -> None:
    name = escape_name(identifier)
    assert not set(name) & set("/\\\t")
    assert name not in (".", "..")
    assert unescape_name(name) == identifier


def test_different_identifiers_never_share_a_name() -> None:
    assert len({escape_name(identifier) for identifier in NASTY}) == len(NASTY)


def test_repeated_identifiers_get_numbers_in_order() -> None:
    names = NameRegistry()
    assert [names.unique(i) for i in ("a", "b", "a", "a#2", "a", "b")] == ["a", "b", "a#2", "a#2#2", "a#3", "b#2"]
    assert names.n_duplicates == 4


def test_columns_resolve_layers_and_keep_one_of_each() -> None:
    columns = columns_of(VectorConfig(include=("per_tok", "mean"), repr_layers=(0, -1, 3)), n_layers=3)
    assert [(c.kind, c.layer) for c in columns] == [("mean", 0), ("mean", 3), ("per_tok", 0), ("per_tok", 3)]
    assert [c.label for c in labelled(columns)] == [
        "mean_layer_0",
        "mean_layer_3",
        "per_tok_layer_0",
        "per_tok_layer_3",
    ]
    assert [c.label for c in labelled(columns[1:2])] == [""]
    assert [c.label for c in labelled([columns[1], columns[3]])] == ["mean", "per_tok"]


@pytest.mark.parametrize("layer", [4, -5])
def test_a_layer_beyond_the_model_is_named(layer: int) -> None:
    with pytest.raises(ConfigError, match=rf"--repr-layers {layer}: the model has layers 0"):
        columns_of(VectorConfig(repr_layers=(layer,)), n_layers=3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": "cut"}, "needs --max-length"),
        ({"policy": "skip"}, "needs --max-length"),
        ({"max_length": 10}, "no meaning with --long whole"),
        ({"policy": "window", "window": 10, "overlap": 6}, "at most half"),
    ],
)
def test_impossible_long_settings_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LongConfig.parse(values)
