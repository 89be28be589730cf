"""Model folders: safetensors weights, a JSON config, a model card. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from typing_extensions import Self

from protlat import __version__
from protlat.alphabet import Alphabet
from protlat.errors import CheckpointError, ConfigError
from protlat.files import atomic_path, sha256_file, write_json, write_text
from protlat.models.config import ModelConfig

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
_FORMAT = 1


class PretrainedModel(nn.Module):
    """A module that is built from (config, alphabet) and lives in a model folder."""

    weight_prefix: ClassVar[str]
    """What stands before this module's weight names in a folder of the whole model."""
    config: ModelConfig
    alphabet: Alphabet

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Self:
        """Load a model folder, or the model of a run folder, in evaluation mode.

        Parameters
        ----------
        folder : path
        device : torch.device or str
        dtype : torch.dtype
            Precision of the weights in memory.

        Raises
        ------
        CheckpointError
            The folder is not a model, is damaged, or lacks weights that this class needs.
        """
        folder = resolve_model_folder(folder)
        config, alphabet = read_model_config(folder)
        weights = read_weights(folder)
        prefix = cls.weight_prefix if any(name.startswith("encoder.") for name in weights) else ""
        # At once: weights wider than float32 would be cut to it on the way.
        model = cls(config, alphabet).to(dtype)
        mine = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        expected = model.state_dict()
        for name, value in expected.items():
            if name not in mine:
                raise CheckpointError(f"{folder / WEIGHTS_FILE}: weight {name!r} is missing; a {cls.__name__} needs it")
            check_shape(folder, name, mine[name], value)
        unknown = sorted(set(mine) - set(expected)) if prefix == "" and cls.weight_prefix == "" else []
        if unknown:
            raise CheckpointError(f"{folder / WEIGHTS_FILE}: unknown weights {', '.join(unknown[:5])}")
        model.load_state_dict({name: mine[name] for name in expected})
        return model.to(device).eval()

    def save_pretrained(self, folder: str | Path, card: str | None = None) -> None:
        """Write weights, config and, when given, a model card (Markdown) to a folder, each file atomically."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        with atomic_path(folder / WEIGHTS_FILE) as temporary:
            save_file(weights, temporary, metadata={"format": "pt"})
        write_json(
            folder / CONFIG_FILE,
            {
                "format": _FORMAT,
                "class": type(self).__name__,
                "protlat": __version__,
                "alphabet": self.alphabet.to_plain(),
                "model": self.config.to_plain(),
            },
        )
        if card is not None:
            write_text(folder / CARD_FILE, card)

    def n_parameters(self) -> int:
        """Number of trained values."""
        return sum(p.numel() for p in self.parameters())


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of a model folder by name, on the CPU, as they are stored.

    Raises
    ------
    CheckpointError
        The file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights: dict[str, torch.Tensor] = load_file(folder / WEIGHTS_FILE)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / WEIGHTS_FILE}: cannot be read as safetensors: {error}") from None
    return weights


def check_shape(folder: Path, name: str, stored: torch.Tensor, built: torch.Tensor) -> None:
    """Compare a stored weight with the one that the settings of its folder build.

    Raises
    ------
    CheckpointError
        Their shapes differ.
    """
    if stored.shape != built.shape:
        raise CheckpointError(
            f"{folder / WEIGHTS_FILE}: weight {name!r} has shape {tuple(stored.shape)}, but {CONFIG_FILE} "
            f"says {tuple(built.shape)}"
        )


def resolve_model_folder(path: str | Path) -> Path:
    """The model folder of `path`: itself, or its `model/` when it is a run folder.

    Raises
    ------
    CheckpointError
        Neither holds a model.
    """
    path = Path(path)
    for folder in (path, path / "model"):
        if (folder / CONFIG_FILE).is_file() and (folder / WEIGHTS_FILE).is_file():
            return folder
    raise CheckpointError(
        f"{path}: no model here; expected {CONFIG_FILE} and {WEIGHTS_FILE} in it or in its model/ folder"
    )


def read_model_config(folder: str | Path) -> tuple[ModelConfig, Alphabet]:
    """Settings and alphabet of a model folder.

    Raises
    ------
    CheckpointError
        The config cannot be read or does not fit this version.
    """
    path = Path(folder) / CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] > _FORMAT:
            raise CheckpointError(
                f"{path}: format {values['format']}, this protlat reads up to {_FORMAT}; update protlat"
            )
        if values.get("class") == "EncoderDecoder":
            raise CheckpointError(
                f"{path}: an encoder with a decoder, not one model; load it with protlat.models.EncoderDecoder"
            )
        return ModelConfig.parse(values["model"], str(path)), Alphabet.from_plain(values["alphabet"])
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a model config: {type(error).__name__} at {error}") from None
    except ConfigError as error:
        raise CheckpointError(str(error)) from None


def model_hash(folder: str | Path) -> str:
    """SHA-256 over the weights and the settings of a model folder, in hexadecimal."""
    folder = resolve_model_folder(folder)
    config, alphabet = read_model_config(folder)
    facts = json.dumps([config.to_plain(), alphabet.to_plain(), sha256_file(folder / WEIGHTS_FILE)], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()


def describe_model(folder: str | Path) -> dict[str, Any]:
    """What a model folder holds, as plain nested values."""
    from safetensors import safe_open

    folder = resolve_model_folder(folder)
    config, alphabet = read_model_config(folder)
    with safe_open(folder / WEIGHTS_FILE, framework="numpy") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118 - not a dict
        kinds = sorted({weights.get_slice(name).get_dtype() for name in shapes})
    n_parameters = 0
    for shape in shapes.values():
        size = 1
        for n in shape:
            size *= n
        n_parameters += size
    return {
        "kind": "model",
        "folder": str(folder),
        "parameters": n_parameters,
        "stored as": ", ".join(kinds),
        "alphabet": f"{alphabet.name}, {len(alphabet)} tokens",
        "hash": model_hash(folder),
        "settings": config.to_plain(),
    }
