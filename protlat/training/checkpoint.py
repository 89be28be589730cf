"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from protlat.config import Config
from protlat.errors import CheckpointError, OutputError
from protlat.files import sha256_file, sync_file, sync_folder, write_json, write_text
from protlat.training.engine import Process
from protlat.training.random_state import load_random_state, save_random_state
from protlat.training.state import gather_moments, gather_weights

log = logging.getLogger(__name__)
WEIGHTS, MOMENTS, STATE, MANIFEST = "weights.safetensors", "moments.safetensors", "state.json", "manifest.json"
_FORMAT = 1


class CheckpointConfig(Config):
    """When the whole state of a run is written."""

    every_steps: int | None = Field(None, ge=1)
    """Steps between two checkpoints; null: by time only."""
    every_minutes: float | None = Field(10.0, gt=0)
    """Minutes between two checkpoints; null: by steps only."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints that are kept."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    folder: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.state["step"])

    def weights(self) -> dict[str, torch.Tensor]:
        """Float32 master weights by name."""
        return _load_tensors(self.folder / WEIGHTS)

    def moments(self) -> dict[str, torch.Tensor]:
        """AdamW's running means by ``exp_avg.NAME`` and ``exp_avg_sq.NAME``."""
        return _load_tensors(self.folder / MOMENTS)

    @property
    def n_carried(self) -> int:
        """Sets of lanes whose states are here."""
        return len(list(self.folder.glob("carried-*.safetensors")))

    def carried(self, number: int) -> dict[str, torch.Tensor]:
        """Memories of a set of lanes by name (see `protlat.training.carry`)."""
        return _load_tensors(self.folder / _carried_file(number))

    def restore_random_state(self, rank: int) -> bool:
        """Set this rank's generators; False when the checkpoint was written by fewer ranks."""
        path = self.folder / _random_file(rank)
        if not path.is_file():
            return False
        load_random_state(path)
        return True


class CheckpointStore:
    """The checkpoints of a run.

    A checkpoint is written to a temporary folder, checksummed, flushed to the disk and renamed; then the file
    ``latest`` names it. A kill at any moment leaves the old ones untouched.

    Parameters
    ----------
    folder : path
        ``RUN/checkpoints``.
    keep : int
        Newest ones kept.
    """

    def __init__(self, folder: str | Path, keep: int) -> None:
        self.folder, self.keep = Path(folder), keep
        # Names of those that this process has written or found whole.
        self._whole: set[str] = set()

    def save(
        self,
        engine: Any,
        process: Process,
        state: dict[str, Any],
        prune: bool = True,
        carried: Mapping[int, dict[str, torch.Tensor]] | None = None,
    ) -> None:
        """Write a checkpoint for ``state["step"]``, unless a whole one is there; every rank must call.

        With `prune` unset, older ones stay however many they are. `carried` holds this rank's lane states by set.

        Raises
        ------
        OutputError
            It cannot be written; the older ones are still there.
        """
        final = self.folder / f"step-{state['step']:010d}"
        temporary = self.folder / f".tmp-{final.name}"
        if process.sum([float(process.is_first and final.is_dir() and final.name in self._whole)])[0]:
            return
        weights = gather_weights(engine, process.is_first)
        moments, n_steps = gather_moments(engine, process.is_first)
        if process.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        process.barrier()
        error: Exception | None = None
        try:
            save_random_state(temporary / _random_file(process.rank))
            sync_file(temporary / _random_file(process.rank))
            for number, memories in (carried or {}).items():
                _save_tensors(temporary / _carried_file(number), memories)
            if process.is_first:
                _save_tensors(temporary / WEIGHTS, weights)
                _save_tensors(temporary / MOMENTS, moments)
                write_json(temporary / STATE, {**state, "optimizer_steps": n_steps, "world_size": process.world_size})
        except Exception as problem:  # a full disk shows as several types, by library
            error = OutputError(f"{final}: the checkpoint cannot be written: {problem}; older ones are kept")
        process.raise_together(error)
        if process.is_first:
            files = {path.name: sha256_file(path) for path in sorted(temporary.iterdir())}
            write_json(temporary / MANIFEST, {"format": _FORMAT, "step": state["step"], "sha256": files})
            if final.is_dir():  # damaged, or of a time that the run has gone back behind
                shutil.rmtree(final)
            temporary.rename(final)
            self._whole.add(final.name)
            sync_folder(self.folder)
            write_text(self.folder / "latest", final.name + "\n")
            if prune:
                self._prune()
        process.barrier()

    def clear_unfinished(self) -> None:
        """Delete what a kill in the middle of writing has left; nothing refers to it."""
        for folder in self.folder.glob(".tmp-step-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _prune(self) -> None:
        for folder in self.all()[self.keep :]:
            shutil.rmtree(folder, ignore_errors=True)

    def all(self) -> list[Path]:
        """Folders of complete checkpoints, newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((f for f in self.folder.glob("step-*") if (f / MANIFEST).is_file()), reverse=True)

    def newest(self) -> Checkpoint:
        """The newest checkpoint whose files match their checksums.

        Raises
        ------
        CheckpointError
            There is none. One that is damaged is named in a warning and the one before it is taken.
        """
        faults = []
        for folder in self.all():
            try:
                checkpoint = read_checkpoint(folder)
            except CheckpointError as error:
                faults.append(str(error))
                log.warning("%s; trying the one before it", error)
            else:
                self._whole.add(folder.name)
                return checkpoint
        if faults:
            raise CheckpointError(f"{self.folder}: no checkpoint is whole: {'; '.join(faults)}")
        raise CheckpointError(f"{self.folder}: no checkpoint here, so there is nothing to resume")


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Check a checkpoint's files against its manifest and read its state.

    Raises
    ------
    CheckpointError
        A file is missing, damaged, or of a newer format.
    """
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] > _FORMAT:
            raise CheckpointError(
                f"{folder}: format {manifest['format']}, this protlat reads up to {_FORMAT}; update protlat"
            )
        for name, expected in manifest["sha256"].items():
            if sha256_file(folder / name) != expected:
                raise CheckpointError(f"{folder / name}: damaged: its checksum does not match {MANIFEST}")
        return Checkpoint(folder, json.loads((folder / STATE).read_text(encoding="utf-8")))
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder}: not a whole checkpoint: {type(error).__name__}: {error}") from None


def checkpoint_bytes(n_parameters: int) -> int:
    """About how large one checkpoint is: weights and two moments in float32."""
    return 12 * n_parameters + (1 << 20)


def _random_file(rank: int) -> str:
    return f"random-{rank:05d}.safetensors"


def _carried_file(number: int) -> str:
    return f"carried-{number:05d}.safetensors"


def _save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path)
    sync_file(path)


def _load_tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)
