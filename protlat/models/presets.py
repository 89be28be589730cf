"""Named sizes: the YAML files of configs/model."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

from protlat.errors import ConfigError
from protlat.models.config import ModelConfig


def preset_names() -> list[str]:
    """Names of the model presets."""
    files = resources.files("protlat.configs").joinpath("model").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_preset(name: str | Path, overrides: tuple[str, ...] = ()) -> ModelConfig:
    """A named preset, or a YAML file of model settings, with ``key=value`` overrides.

    Raises
    ------
    ConfigError
        Neither a preset nor a file, or the settings do not fit.
    """
    text = str(name)
    if text.endswith((".yaml", ".yml")):
        return ModelConfig.load(text, overrides)
    names = preset_names()
    if text not in names:
        near = difflib.get_close_matches(text, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}, or a .yaml file"
        raise ConfigError(f"model preset {text!r} is unknown; {hint}")
    with resources.as_file(resources.files("protlat.configs").joinpath("model", f"{text}.yaml")) as path:
        return ModelConfig.load(path, overrides)
