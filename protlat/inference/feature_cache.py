"""Vectors of labelled sequences, computed once and kept on disk."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protlat.data.packing import batches_by_tokens
from protlat.devices import resolve_device, resolve_dtype
from protlat.errors import OutputError
from protlat.files import format_bytes, require_disk_space, sync_file, write_json
from protlat.inference.batches import require_readable
from protlat.inference.naming import Column
from protlat.inference.vectors import Embedder
from protlat.models import Encoder, model_hash, read_model_config, resolve_model_folder
from protlat.reporting import progress
from protlat.tasks.data import LabelledSplit

log = logging.getLogger(__name__)
_FORMAT = 1
_ROWS, _MEANS, _ENTRY, _JOURNAL = "rows.f16", "means.f32", "entry.json", "journal.json"
# A part is what a kill can cost.
_BATCHES_PER_PART = 16


@dataclass(frozen=True)
class Ragged:
    """Rows of many sequences end to end.

    Attributes
    ----------
    rows : numpy.ndarray, shape (T, E), float16
        Memory-mapped where it comes from a cache.
    offsets : numpy.ndarray, shape (N + 1,), int64
        Sequence i has the rows from offset i to offset i + 1.
    """

    rows: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Rows of one sequence, shape (L, E)."""
        return self.rows[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


def default_cache() -> Path:
    """Folder of the cache: the variable PROTLAT_CACHE, or ``protlat/features`` among the user's caches."""
    given = os.environ.get("PROTLAT_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "protlat" / "features"


class FeatureCache:
    """Vectors of one encoder for labelled splits.

    Entries are named by a hash of model, sequences, layer and precision, so that any number of tasks and models share
    a folder, and entries of a model that has changed are never read. A killed computation goes on where it stood;
    two processes that want one entry wait for each other.

    Parameters
    ----------
    folder : path
    model : path
        Model or run folder.
    dtype : str
        Precision of the encoder: auto, float32, bfloat16.
    device : str
    toks_per_batch : int or None
        Tokens of one forward pass; None: 8,192 on a CPU, 65,536 on a GPU.
    layer : int
        Layer to take; -1 is the last.
    """

    def __init__(
        self,
        folder: str | Path,
        model: str | Path,
        dtype: str = "auto",
        device: str = "auto",
        toks_per_batch: int | None = None,
        layer: int = -1,
    ) -> None:
        self.folder = Path(folder)
        self.model_folder = resolve_model_folder(model)
        self.config, self.alphabet = read_model_config(self.model_folder)
        self.device = resolve_device(device)
        self.dtype = resolve_dtype(dtype, self.device)
        self.toks_per_batch = toks_per_batch or (65_536 if self.device.type == "cuda" else 8_192)
        self.layer = layer
        self.dim = self.config.d_model
        self.n_computed = 0
        """Residues that this process has computed, and not found."""

    @cached_property
    def model_hash(self) -> str:
        return model_hash(self.model_folder)

    def residues(self, split: LabelledSplit) -> Ragged:
        """Vectors of every residue, as they lie on disk.

        Raises
        ------
        SequenceError
            A sequence longer than the model can read, or a vector that is not finite.
        OutputError
            The disk is too small, or the folder cannot be written.
        """
        folder = self._entry(split, "residues")
        offsets = _offsets(split)
        rows = np.memmap(folder / _ROWS, np.float16, "r", shape=(int(offsets[-1]), self.dim))
        return Ragged(rows, offsets)

    def means(self, split: LabelledSplit) -> np.ndarray:
        """Mean over the residues of each sequence, shape (N, E), float32; errors as in `residues`."""
        with_rows = self._path(split, "residues")
        folder = with_rows if (with_rows / _ENTRY).is_file() else self._entry(split, "means")
        return np.fromfile(folder / _MEANS, np.float32).reshape(len(split), self.dim)

    def _identity(self, split: LabelledSplit, kind: str) -> dict[str, Any]:
        layer = self.layer if self.layer >= 0 else self.config.n_layers + 1 + self.layer
        dtype = str(self.dtype).removeprefix("torch.")
        return {
            "format": _FORMAT, "kind": kind, "model_hash": self.model_hash, "input_sha256": split.fingerprint(),
            "layer": layer, "dtype": dtype,
        }  # fmt: skip

    def _path(self, split: LabelledSplit, kind: str) -> Path:
        text = json.dumps(self._identity(split, kind), sort_keys=True)
        return self.folder / hashlib.sha256(text.encode()).hexdigest()[:32]

    def _entry(self, split: LabelledSplit, kind: str) -> Path:
        """The folder of a complete entry, computed now unless it is there."""
        final = self._path(split, kind)
        if (final / _ENTRY).is_file():
            return final
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / f".lock-{final.name}"):
                if not (final / _ENTRY).is_file():
                    self._compute(split, kind, final)
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(
                f"{self.folder}: the features cannot be kept: {error}; name another folder with --cache"
            ) from None
        return final

    def _compute(self, split: LabelledSplit, kind: str, final: Path) -> None:
        longest = max(range(len(split)), key=lambda i: len(split.ids[i]))
        require_readable(self.config, len(split.ids[longest]), split.names[longest])
        with_rows = kind == "residues"
        sizes = {_MEANS: 4 * len(split) * self.dim, _ROWS: 2 * split.n_residues * self.dim if with_rows else 0}
        n_bytes = sum(sizes.values())
        require_disk_space(self.folder, n_bytes, "the feature cache (--cache)")
        parts = self._parts(split)
        work = self.folder / f"partial-{final.name}"
        identity = {**self._identity(split, kind), "toks_per_batch": self.toks_per_batch}
        n_done = _begin(work, identity, sizes)
        if n_done:
            log.info("features: going on after %d of %d parts", n_done, len(parts))
        encoder = Encoder.from_pretrained(self.model_folder, self.device, self.dtype)
        columns = {name: Column(name, encoder.resolve_layer(self.layer)) for name in ("mean", "per_tok")}
        wanted = [columns["mean"], *([columns["per_tok"]] if with_rows else [])]
        # float32, and narrowed here: means are kept wide.
        embedder = Embedder(encoder, wanted, self.toks_per_batch)
        offsets = _offsets(split)
        means = np.memmap(work / _MEANS, np.float32, "r+", shape=(len(split), self.dim))
        rows = np.memmap(work / _ROWS, np.float16, "r+", shape=(split.n_residues, self.dim)) if with_rows else None
        with progress("features", float(split.n_residues), "residues") as line:
            for number, part in enumerate(parts):
                n_residues = sum(len(split.ids[i]) for i in part)
                if number >= n_done:
                    for place, found in embedder.run([split.ids[i] for i in part], [split.names[i] for i in part]):
                        index = part[place]
                        means[index] = found[columns["mean"]]
                        if rows is not None:
                            rows[offsets[index] : offsets[index + 1]] = _narrow(
                                found[columns["per_tok"]], split.names[index]
                            )
                    self.n_computed += n_residues
                    means.flush()
                    if rows is not None:
                        rows.flush()
                    write_json(work / _JOURNAL, {**identity, "n_done": number + 1})
                line.advance(n_residues)
        del means, rows
        for name in (_MEANS, _ROWS):
            if (work / name).is_file():
                sync_file(work / name)
        write_json(
            work / _ENTRY, {**identity, "n_sequences": len(split), "n_residues": split.n_residues, "dim": self.dim}
        )
        (work / _JOURNAL).unlink()
        work.rename(final)
        log.info("features of %d sequences kept in %s (%s)", len(split), final, format_bytes(n_bytes))

    def _parts(self, split: LabelledSplit) -> list[list[int]]:
        """Sequences of like length together; depends on the lengths alone."""
        lengths = [len(ids) for ids in split.ids]
        order = sorted(range(len(split)), key=lambda i: (lengths[i], i))
        budget = _BATCHES_PER_PART * self.toks_per_batch
        return [[order[k] for k in part] for part in batches_by_tokens([lengths[i] + 2 for i in order], budget)]


def _offsets(split: LabelledSplit) -> np.ndarray:
    return np.cumsum([0, *(len(ids) for ids in split.ids)], dtype=np.int64)


def _narrow(vectors: np.ndarray, name: str) -> np.ndarray:
    largest = float(np.abs(vectors).max())
    if largest > float(np.finfo(np.float16).max):
        raise OutputError(
            f"sequence {name!r}: a vector holds {largest:.3g}, beyond the cache's float16; take another layer (--set layer=-1)"
        )
    return vectors.astype(np.float16)


def _begin(work: Path, identity: dict[str, Any], sizes: dict[str, int]) -> int:
    """Make the folder of an unfinished entry, or find how many parts of it are done."""
    try:
        journal = json.loads((work / _JOURNAL).read_text(encoding="utf-8"))
        n_done = int(journal.pop("n_done"))
        if journal == identity:
            return n_done
    except (OSError, ValueError, KeyError, AttributeError):
        pass  # nothing begun, or a kill in the first part
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name, n_bytes in sizes.items():
        if n_bytes:
            with open(work / name, "wb") as file:
                file.truncate(n_bytes)
    return 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for, and hold, a lock file; a killed process lets go of it by itself."""
    with open(path, "a", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            # Some network file systems have no locks; one process alone does not need one.
            log.warning("%s: cannot be locked (%s): let no other process compute the same features", path, error)
        yield


def statistics(
    features: Ragged | np.ndarray, max_rows: int = 100_000, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation (E,) of the channels, float32; over `max_rows` random rows where there are more."""
    rows = features.rows if isinstance(features, Ragged) else features
    if len(rows) > max_rows:
        rows = rows[np.sort(np.random.default_rng(seed).choice(len(rows), max_rows, replace=False))]
    wide = np.asarray(rows, dtype=np.float64)
    return torch.from_numpy(wide.mean(0).astype(np.float32)), torch.from_numpy(wide.std(0).astype(np.float32))


def gather(features: Ragged | np.ndarray, rows: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """Rows of some sequences end to end, and how many each has; a plain array has one a sequence."""
    if isinstance(features, Ragged):
        parts = [features[i] for i in rows]
        return np.concatenate(parts), [len(part) for part in parts]
    return features[np.asarray(rows)], [1] * len(rows)
