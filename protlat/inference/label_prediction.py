"""Labels with probabilities from a fine-tuned model folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from protlat.data.packing import batches_by_tokens
from protlat.errors import CheckpointError
from protlat.evaluation.calibration import probabilities
from protlat.evaluation.probes import PROBE_KINDS, Probe
from protlat.inference.feature_cache import Ragged, gather
from protlat.inference.naming import Column
from protlat.inference.vectors import Embedder
from protlat.models import Encoder
from protlat.models.head_file import HeadFile, read_head, read_head_weights
from protlat.nn.heads import AnyHead, LabelHead, needs_residues
from protlat.ops.segments import Segments


class Readout:
    """A head or probe as a function from vectors to outputs, in float32.

    Parameters
    ----------
    head : HeadFile
    function : LabelHead or Probe
    device : torch.device
        Of a `LabelHead`.
    """

    def __init__(self, head: HeadFile, function: LabelHead | Probe, device: torch.device | str = "cpu") -> None:
        self.head, self.function, self.device = head, function, torch.device(device)
        self.per_residue = head.type.startswith("residue")
        if isinstance(function, LabelHead):
            function.float().to(self.device).eval()
            self.takes_residues = needs_residues(function.config, self.per_residue)
        else:
            self.takes_residues = self.per_residue

    @classmethod
    def load(cls, folder: Path, head: HeadFile, d_model: int, device: torch.device | str = "cpu") -> Readout:
        """The readout of a model folder.

        Raises
        ------
        CheckpointError
            Its files do not fit each other.
        """
        weights = read_head_weights(folder)
        n_outputs = max(len(head.classes), 1)
        if head.mode == "probe":
            if head.head.get("kind") not in PROBE_KINDS:
                raise CheckpointError(f"{folder}/head.json: probe of kind {head.head.get('kind')!r} is unknown")
            return cls(head, Probe.from_tensors(str(head.head["kind"]), head.type, n_outputs, weights), device)
        try:
            config: Any = TypeAdapter(AnyHead).validate_python(head.head)
            module = LabelHead(config, d_model, n_outputs, head.type.startswith("residue"))
            module.load_state_dict(weights)
        except (ValidationError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{folder}: head.safetensors and head.json do not fit: {' '.join(str(error).split())}"
            ) from None
        return cls(head, module, device)

    def outputs(self, rows: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """Logits or values, float32: (T, C) of residues, or (S, C) of sequences.

        Parameters
        ----------
        rows : numpy.ndarray, shape (T, E)
            Vectors of residues, or one a sequence where `takes_residues` is False.
        lengths : sequence of int
            Rows of each sequence.
        """
        if isinstance(self.function, Probe):
            found = self.function.outputs(rows)
        else:
            with torch.inference_mode():
                x = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32)).to(self.device)
                found = self.function(x, Segments(lengths, self.device)).cpu().numpy()
        return self._in_units(found)

    def of_features(self, features: Ragged | np.ndarray, tokens_at_once: int = 65_536) -> list[np.ndarray]:
        """Outputs (L, C) or (C,) of every sequence, from vectors that were computed before."""
        lengths = features.lengths.tolist() if isinstance(features, Ragged) else [1] * len(features)
        found: list[np.ndarray] = []
        for group in batches_by_tokens(lengths, tokens_at_once):
            rows, n_rows = gather(features, group)
            found += self.split(self.outputs(rows, n_rows), n_rows)
        return found

    def split(self, outputs: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Outputs by sequence."""
        return np.split(outputs, np.cumsum(lengths)[:-1]) if self.per_residue else list(outputs)

    def _in_units(self, outputs: np.ndarray) -> np.ndarray:
        # A probe of values is fitted in their own units, a network in standardised ones.
        if self.head.type.endswith("value") and isinstance(self.function, LabelHead):
            return outputs * np.float32(self.head.value_scale) + np.float32(self.head.value_mean)
        return outputs


class LabelPredictor:
    """An encoder and a readout.

    Parameters
    ----------
    encoder : Encoder
        In evaluation mode, on its device; the readout computes in float32 whatever its precision.
    readout : Readout
    toks_per_batch : int
    """

    def __init__(self, encoder: Encoder, readout: Readout, toks_per_batch: int) -> None:
        self.readout, self.toks_per_batch = readout, toks_per_batch
        kind = "per_tok" if readout.takes_residues else "mean"
        self._column = Column(kind, encoder.resolve_layer(readout.head.layer))
        self._embedder = Embedder(encoder, [self._column], toks_per_batch)

    @classmethod
    def load(cls, path: str | Path, device: torch.device, dtype: torch.dtype, toks_per_batch: int) -> LabelPredictor:
        """The result of ``protlat finetune``.

        Raises
        ------
        CheckpointError
            No model, no head, or one that predicts something else than labels.
        """
        folder, head = read_head(path, "labels")
        encoder = Encoder.from_pretrained(folder, device, dtype)
        return cls(encoder, Readout.load(folder, head, encoder.config.d_model, device), toks_per_batch)

    def run(self, sequences: Sequence[np.ndarray], names: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
        """Outputs of every sequence, in the order in which they are finished.

        Yields
        ------
        index : int
            Place in `sequences`.
        outputs : numpy.ndarray, shape (L, C) or (C,), float32
        """
        held: list[tuple[int, np.ndarray]] = []
        n_held = 0
        for index, vectors in self._embedder.run(sequences, names):
            rows = np.atleast_2d(vectors[self._column])
            held.append((index, rows))
            n_held += len(rows)
            if n_held >= self.toks_per_batch:
                yield from self._read(held)
                held, n_held = [], 0
        yield from self._read(held)

    def _read(self, held: list[tuple[int, np.ndarray]]) -> Iterator[tuple[int, np.ndarray]]:
        if held:
            lengths = [len(rows) for _, rows in held]
            outputs = self.readout.outputs(np.concatenate([rows for _, rows in held]), lengths)
            yield from zip([index for index, _ in held], self.readout.split(outputs, lengths), strict=True)


@dataclass(frozen=True)
class Answer:
    """Decisions for N residues or sequences.

    Attributes
    ----------
    values : numpy.ndarray, shape (N,), or None
        Tasks of values.
    probability : numpy.ndarray, shape (N, C), or None
        Tasks of classes.
    chosen : numpy.ndarray or None
        Class codes int64 (N,), or bool (N, C) of multi-label tasks.
    """

    values: np.ndarray | None = None
    probability: np.ndarray | None = None
    chosen: np.ndarray | None = None


def decide(head: HeadFile, outputs: np.ndarray) -> Answer:
    """Calibrated probabilities and decisions, or values, of outputs (N, C)."""
    if head.type.endswith("value"):
        return Answer(values=outputs[:, 0])
    probability = probabilities(outputs, head.type, head.temperature)
    if head.type == "sequence_multilabel":
        return Answer(probability=probability, chosen=probability >= head.threshold)
    if len(head.classes) == 2:
        return Answer(probability=probability, chosen=(probability[:, 1] >= head.threshold).astype(np.int64))
    return Answer(probability=probability, chosen=probability.argmax(1))
