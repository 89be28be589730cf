"""A model folder whose head predicts contacts: reading and writing the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from protlat.errors import CheckpointError, ConfigError
from protlat.models.contact_head import ContactHead, ContactHeadConfig
from protlat.models.head_file import HEAD_FILE, HEAD_WEIGHTS_FILE, HeadFile, read_head, read_head_weights

PairInput = Literal["vectors", "one_hot"]
_KIND = "contact"


def head_settings(head: ContactHead, reads: PairInput) -> dict[str, Any]:
    """What ``head.json`` says under ``head``."""
    return {"kind": _KIND, "reads": reads, "d_input": head.d_input, **head.config.to_plain()}


def load_contact_head(
    path: str | Path, device: torch.device | str = "cpu"
) -> tuple[Path, HeadFile, ContactHead, PairInput]:
    """The contact head of a model folder, float32, in evaluation mode.

    Returns
    -------
    folder : Path
        Of the model.
    file : HeadFile
    head : ContactHead
    reads : str
        "vectors" of the encoder, or "one_hot" residues.

    Raises
    ------
    CheckpointError
        No model, no head, a head of another kind, or weights that do not fit it.
    """
    folder, file = read_head(path, "pair")
    settings = dict(file.head)
    kind, reads, d_input = (settings.pop(key, None) for key in ("kind", "reads", "d_input"))
    where = folder / HEAD_FILE
    if kind != _KIND or reads not in ("vectors", "one_hot") or not isinstance(d_input, int):
        raise CheckpointError(f"{where}: not a contact head that this protlat knows (kind {kind!r}, reads {reads!r})")
    try:
        head = ContactHead(ContactHeadConfig.parse(settings, str(where)), d_input)
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
    weights, expected = read_head_weights(folder), head.state_dict()
    for name in sorted(set(weights) ^ set(expected)):
        state = "is missing" if name in expected else "is unknown"
        raise CheckpointError(f"{folder / HEAD_WEIGHTS_FILE}: weight {name!r} {state}")
    for name, value in expected.items():
        if weights[name].shape != value.shape:
            raise CheckpointError(
                f"{folder / HEAD_WEIGHTS_FILE}: weight {name!r} has shape {tuple(weights[name].shape)}, but {HEAD_FILE} says "
                f"{tuple(value.shape)}"
            )
    head.load_state_dict(weights)
    return folder, file, head.to(device).eval(), reads
