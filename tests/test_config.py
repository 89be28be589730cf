"""Settings: strict, overridable, saved and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from protlat.config import Config, parse_scalar
from protlat.errors import ConfigError
from protlat.models import ModelConfig


class Circle(Config):
    """A part by kind."""

    kind: Literal["circle"] = "circle"
    radius: float = Field(1.0, gt=0)
    """Radius in metres."""


class Square(Config):
    """Another part."""

    kind: Literal["square"] = "square"
    side: float = 1.0
    """Side in metres."""


class Drawing(Config):
    """The whole."""

    title: str = "none"
    """What it is called."""
    shape: Annotated[Circle | Square, Field(discriminator="kind")] = Circle()
    """What is drawn."""
    shapes: tuple[Annotated[Circle | Square, Field(discriminator="kind")], ...] = ()
    """More of them."""
    scale: float | None = None
    """Null: as it is."""


def test_defaults_file_values_overrides_in_that_order(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("title: file\nshape: {kind: square, side: 2}\n")
    config = Drawing.load(path, ("shape.side=5", "scale=1e-3"), title="option")
    assert config == Drawing(title="option", shape=Square(side=5), scale=0.001)
    assert Drawing.load(path, title=None).title == "file"


def test_round_trips(tmp_path: Path) -> None:
    config = Drawing(shape=Square(side=3), shapes=(Circle(radius=2), Square()), scale=2.5)
    for number, text in enumerate((config.to_yaml(), config.to_commented_yaml())):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        assert Drawing.load(path) == config
    assert "# Side in metres." in config.to_commented_yaml()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"titel": "x"}, "titel: unknown key; did you mean 'title'"),
        ({"shape": {"kind": "circle", "radios": 1}}, "shape.circle.radios: unknown key; did you mean 'radius'"),
        ({"shape": {"kind": "hexagon"}}, "'circle', 'square'"),
        ({"shape": {"kind": "circle", "radius": -1}}, r"shape.circle.radius: .*greater than 0 \(got -1\)"),
        ({"shapes": [{"kind": "square"}, {"kind": "square", "zzz": 1}]}, "shapes.1.square.zzz: unknown key; known: kind, side"),
        ({True: "x"}, "Keys should be strings"),
    ],
)  # fmt: skip
def test_faults_name_key_and_remedy(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Drawing.parse(values, "drawing.yaml")


def test_overrides_that_cannot_be_set() -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        Drawing.load(None, ("title",))
    with pytest.raises(ConfigError, match="holds a single value"):
        Drawing.load(None, ("title.x=1",), title="y")
    with pytest.raises(ConfigError, match="not an index below 1"):
        Drawing.load(None, ("shapes.3.side=1",), shapes=[{"kind": "square"}])


def test_configs_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Drawing().title = "other"


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("3", 3), ("true", True), ("[1, 2]", [1, 2]), ("word", "word"), ("null", None)]
)
def test_scalars(text: str, value: object) -> None:
    assert parse_scalar(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "expected keys and values, found list"),
        ("a: [", "not valid YAML"),
        ("a: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_unreadable_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Drawing.load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Drawing.load(tmp_path / "absent.yaml")


def test_a_fault_inside_a_list_is_one_line() -> None:
    """Pydantic calls a list too short as well when its only element is faulty."""
    with pytest.raises(ConfigError) as refusal:
        ModelConfig.parse({"attention": [{"kind": "window", "n_heads": 1, "radius": 0}]})
    assert (
        str(refusal.value) == "settings: attention.0.window.radius: Input should be greater than or equal to 1 (got 0)"
    )


def test_a_part_of_an_unnamed_kind() -> None:
    with pytest.raises(ConfigError, match=r"feed_forward: which kind is meant\? set feed_forward.kind too"):
        ModelConfig.load(overrides=["feed_forward.expansion=2"])
