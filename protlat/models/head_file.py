"""``head.json`` and ``head.safetensors``: what a fine-tuned model folder holds beside its encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from protlat import __version__
from protlat.config import Config
from protlat.errors import CheckpointError, ConfigError
from protlat.files import atomic_path, write_json
from protlat.models.hub import resolve_model_folder
from protlat.tasks.data import TaskType

HEAD_FILE, HEAD_WEIGHTS_FILE = "head.json", "head.safetensors"
FORMAT = 1


class HeadFile(Config):
    """What ``head.json`` says."""

    format: int = FORMAT
    """Version of this file."""
    protlat: str = __version__
    """Version of protlat that wrote it."""
    task: str
    """Name of the task."""
    title: str = ""
    """The task in a few words."""
    type: TaskType
    """What is predicted."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of the outputs."""
    mode: Literal["probe", "head", "lora", "full"]
    """How it was trained."""
    head: dict[str, Any]
    """Settings of the head or probe, `kind` among them."""
    layer: int = -1
    """Layer of the encoder that the head reads."""
    temperature: float = 1.0
    """Logits are divided by it."""
    threshold: float = 0.5
    """Multi-label: classes at least this probable are predicted."""
    value_mean: float = 0.0
    """Values are predicted in units of `value_scale` around this."""
    value_scale: float = 1.0
    """See `value_mean`."""
    report: dict[str, Any] = Field(default_factory=dict)
    """Training report: settings, course, scores with intervals, baselines."""


def write_head(folder: str | Path, head: HeadFile, weights: Mapping[str, torch.Tensor]) -> None:
    """Write both files; ``head.json``, by which a folder counts as fine-tuned, last."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / HEAD_WEIGHTS_FILE) as temporary:
        # Copies: safetensors takes no tensors that share memory.
        save_file({name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}, temporary)
    write_json(folder / HEAD_FILE, head.to_plain())


def has_head(path: str | Path) -> bool:
    """Whether a folder, or its ``model/``, was made by ``protlat finetune``."""
    return any((folder / HEAD_FILE).is_file() for folder in (Path(path), Path(path) / "model"))


def read_head(path: str | Path, wanted: str | None = None) -> tuple[Path, HeadFile]:
    """The model folder at `path` and its head.

    Parameters
    ----------
    path : path
    wanted : "labels", "pair" or None
        What the caller can use; None: any head.

    Raises
    ------
    CheckpointError
        No model, a model without a head, one of another kind, or a file that cannot be read.
    """
    folder = resolve_model_folder(path)
    file = folder / HEAD_FILE
    if not file.is_file():
        raise CheckpointError(
            f"{path}: a model without a head ({HEAD_FILE}); make one with: protlat finetune TASK -m {path}"
        )
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values["format"] > FORMAT:
            raise CheckpointError(
                f"{file}: format {values['format']}, this protlat reads up to {FORMAT}; update protlat"
            )
        head = HeadFile.parse(values, str(file))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: cannot be read as a head: {type(error).__name__}: {error}") from None
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
    is_pair = head.type == "pair"
    if wanted == "labels" and is_pair:
        raise CheckpointError(
            f"{path}: its head predicts contacts, not labels; use: protlat predict contacts -m {path}"
        )
    if wanted == "pair" and not is_pair:
        raise CheckpointError(f"{path}: its head predicts {head.type}, not contacts; use: protlat predict -m {path}")
    return folder, head


def read_head_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of the head in a model folder.

    Raises
    ------
    CheckpointError
        The file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / HEAD_WEIGHTS_FILE)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / HEAD_WEIGHTS_FILE}: cannot be read as safetensors: {error}") from None


def describe_fine_tuned(path: str | Path) -> dict[str, Any]:
    """What a fine-tuned model folder holds, for ``protlat info``."""
    from protlat.models.hub import describe_model

    folder, head = read_head(path)
    facts: dict[str, Any] = {
        "kind": "fine-tuned model",
        "folder": str(folder),
        "task": f"{head.task}{f' ({head.title})' if head.title else ''}",
        "predicts": head.type,
    }
    if head.classes:
        shown = ", ".join(head.classes[:40])
        facts["classes"] = f"{len(head.classes)}: {shown}" + (" ..." if len(head.classes) > 40 else "")
    facts |= {"trained": head.mode, "layer": head.layer, "temperature": head.temperature}
    if head.type == "sequence_multilabel":
        facts["threshold"] = head.threshold
    if head.type.endswith("value"):
        facts |= {"values around": head.value_mean, "in units of": head.value_scale}
    facts["head"] = head.head
    facts |= head.report
    facts["encoder"] = {key: value for key, value in describe_model(folder).items() if key not in ("kind", "folder")}
    return facts
