"""`protlat embed`: sequences and a model in, vectors out; resumable, over one process or several."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from protlat import __version__
from protlat.config import Config
from protlat.data.policies import SequencePolicy
from protlat.devices import resolve_device, resolve_dtype, set_threads
from protlat.errors import ConfigError, OutputError
from protlat.files import format_bytes, require_disk_space
from protlat.inference.account import (
    SkippedTable,
    histogram,
    model_name,
    require_given,
    require_inputs,
    spooled_stdin,
    unknown_text,
)
from protlat.inference.assemble import Output, assemble, plan_outputs
from protlat.inference.batches import require_readable
from protlat.inference.inputs import InputAccount, SequenceInput, partition, survey
from protlat.inference.naming import Column, columns_of
from protlat.inference.parts import WorkFolder, compare_identities
from protlat.inference.ranks import Ranks
from protlat.inference.reader import read_metadata
from protlat.inference.settings import KINDS, LongConfig, VectorConfig
from protlat.inference.vectors import Embedder
from protlat.models import Encoder, model_hash, read_model_config, resolve_model_folder
from protlat.reporting import format_seconds, peak_memory_bytes, progress

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
# A part is what a kill can cost; several batches make one, so that no forward pass is wasted on a nearly empty batch.
_BUDGETS_PER_PART = 16


class EmbedConfig(Config):
    """Settings of `protlat embed`."""

    inputs: tuple[str, ...] = ()
    """FASTA files (plain, .gz, .bz2, .xz, .zst; '-' is standard input) and shard folders."""
    model: str = ""
    """Model folder, or the run folder of a pretraining."""
    outputs: tuple[str, ...] = ()
    """Files to write; their endings choose the format: .h5, .npz, .parquet, .h5ad."""
    format: Literal["h5", "npz", "parquet", "h5ad"] | None = None
    """Format of every output, whatever its ending; null: by ending."""
    separate: bool = False
    """One file per vector kind and layer: STEM.mean.h5, STEM.per_tok.h5 ..."""
    vectors: VectorConfig = VectorConfig()
    """What is taken out of the model."""
    long: LongConfig = LongConfig()
    """Long sequences; whole by default."""
    policy: SequencePolicy = SequencePolicy()
    """Letters that are not plain residues."""
    split: str | None = None
    """Split of shard folders; null: all splits."""
    toks_per_batch: int | None = Field(default=None, ge=1)
    """Tokens of one forward pass; null: 8,192 on a CPU, 65,536 on a GPU. A longer sequence goes alone."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Working precision; auto: bfloat16 where the processor multiplies it natively."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null: all."""
    resume: bool = False
    """Go on with an unfinished run of the same model, settings and input."""
    overwrite: bool = False
    """Replace outputs and unfinished runs that are there."""


def run(config: EmbedConfig) -> dict[str, Any]:
    """Compute the vectors and write the files.

    Returns
    -------
    dict
        The closing account, row by row; empty for every process but the first.

    Raises
    ------
    ConfigError
        Settings that do not fit the model, the machine or each other.
    SequenceError, ShardError, CheckpointError
        Input or model cannot be read.
    OutputError
        An output exists, belongs to another run, or cannot be written.
    """
    require_given({"inputs (INPUT)": config.inputs, "model (-m)": config.model, "outputs (-o)": config.outputs})
    require_inputs(config.inputs, KINDS)
    ranks = Ranks.from_environment()
    ranks.join()
    try:
        with spooled_stdin(config.inputs, Path(config.outputs[0]).parent) as paths, SkippedTable() as skipped:
            return _Run(config, ranks, paths, skipped).execute()
    except KeyboardInterrupt:
        log.warning("stopped; finished parts are kept: the same command with --resume goes on")
        raise
    finally:
        ranks.leave()


class _Run:
    """One run: survey the input, compute parts, assemble the files."""

    def __init__(self, config: EmbedConfig, ranks: Ranks, paths: Sequence[str], skipped: SkippedTable) -> None:
        if ranks.world_size > 1 and "-" in config.inputs:
            raise ConfigError(
                "standard input reaches one process only; give files when several processes work together"
            )
        set_threads(config.threads)
        device = "cuda" if config.device == "auto" and torch.cuda.is_available() else config.device
        if device == "cuda" and ranks.world_size > 1:
            device = f"cuda:{ranks.local_rank}"
        self.config, self.ranks = config, ranks
        self.device = resolve_device(device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        self.toks_per_batch = config.toks_per_batch or (65_536 if self.device.type == "cuda" else 8_192)
        self.model_folder = resolve_model_folder(config.model)
        model_config, alphabet = read_model_config(self.model_folder)
        self.model_config = model_config
        self.columns = columns_of(config.vectors, model_config.n_layers)
        self.outputs = plan_outputs(config.outputs, config.format, self.columns, config.separate)
        self.source = SequenceInput(paths, alphabet, config.policy, config.long, config.split)
        first = self.outputs[0].path
        store = np.dtype(config.vectors.store)
        self.work = WorkFolder(first.with_name(first.name + ".partial"), self.columns, model_config.d_model, store)
        self.skipped_path = first.with_name(f"{first.stem}.skipped.tsv")
        self.account, self.skipped = InputAccount(), skipped
        self.account.report.on_skip = self.account.on_cut = skipped.add

    def execute(self) -> dict[str, Any]:
        """All steps; the first process alone reads ahead and writes the files."""
        if not self.ranks.is_first:
            return self._help()
        try:
            metadata, pending = self._prepare()
        except BaseException:
            self.ranks.wait(failed=True)
            raise
        self.ranks.wait()
        rates: dict[str, Any] = {}
        if pending:
            n_parts, rates = self._compute()
            self._assemble(n_parts, pending, metadata)
        else:
            self.ranks.wait()
            log.info("%s: complete already, nothing to do", ", ".join(str(o.path) for o in self.outputs))
        self.skipped.keep(self.skipped_path)
        self.work.remove()
        return self._summary(rates)

    def _help(self) -> dict[str, Any]:
        if not self.ranks.wait():
            raise OutputError(f"process {self.ranks.rank}: the first process could not start; see its message")
        if self.work.journal.exists():
            self._compute()
        else:
            self.ranks.wait()
        return {}

    def _prepare(self) -> tuple[dict[str, Any], list[Output]]:
        config, account = self.config, self.account
        with progress("read", None, "sequences") as line:
            fingerprint = survey(self.source, account, line.advance)
        for message in account.report.warnings:
            log.warning("%s", message)
        in_windows = max(config.long.window, config.long.threshold or 0)
        computed = min(in_windows, account.longest) if account.n_windowed else account.longest
        require_readable(self.model_config, computed, account.longest_name)
        identity = {
            "protlat": __version__,
            "torch": torch.__version__,
            "model_hash": model_hash(self.model_folder),
            "columns": [column.stem for column in self.columns],
            "store": config.vectors.store,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "toks_per_batch": self.toks_per_batch,
            "long": config.long.to_plain(),
            "policy": config.policy.to_plain(),
            "split": config.split,
            "input_sha256": fingerprint,
        }
        pending = [output for output in self.outputs if not self._is_complete(output, identity)]
        if pending:
            self._require_space(pending)
            n_done = self.work.begin(identity, config.resume, config.overwrite)
            if n_done:
                log.info("%s: going on after %d finished parts", self.work.folder, n_done)
        metadata = {
            "format_version": FORMAT_VERSION,
            "model_name": model_name(self.model_folder),
            "model_hash": identity["model_hash"],
            "inputs": [Path(path).name if path != "-" else path for path in config.inputs],
            "n_sequences": account.n_sequences,
            "n_residues": account.n_residues,
            "longest": account.longest,
            "dim": self.work.dim,
            "settings": identity,
            "length_histogram": histogram(account.length_counts),
        }
        return metadata, pending

    def _is_complete(self, output: Output, identity: dict[str, Any]) -> bool:
        if not output.path.exists() or (self.config.overwrite and not self.config.resume):
            return False
        if not self.config.resume:
            raise OutputError(f"{output.path} exists; replace it with --overwrite, or choose another output")
        compare_identities(output.path, read_metadata(output.path).get("settings", {}), identity)
        return True

    def _require_space(self, pending: Sequence[Output]) -> None:
        """Parts and files stand beside each other until the files are complete."""

        def size(columns: Sequence[Column]) -> int:
            n_vectors = sum(self.account.n_residues if c.per_residue else self.account.n_sequences for c in columns)
            return n_vectors * self.work.dim * self.work.dtype.itemsize

        needed = size(self.columns) + sum(size(o.columns) + 1000 * self.account.n_sequences for o in pending)
        present = sum(f.stat().st_size for f in self.work.folder.glob("part-*")) if self.config.resume else 0
        require_disk_space(self.work.folder.parent, max(needed - present, 0), "embedding")

    def _compute(self) -> tuple[int, dict[str, Any]]:
        """Compute this process's parts; returns the number of all parts, and rates."""
        encoder = Encoder.from_pretrained(self.model_folder, self.device, self.dtype)
        embedder = Embedder(encoder, self.columns, self.toks_per_batch, self.config.long, self.config.vectors.store)
        stream = self.source.stream(InputAccount.silent())
        # Looked up once: parts that other processes finish meanwhile are work of this run.
        done = self.work.done_parts()
        n_parts = n_residues = 0
        started_s = time.monotonic()
        with progress("embed", self.account.n_residues or None, "residues") as line:
            for index, part in partition(stream, _BUDGETS_PER_PART * self.toks_per_batch):
                n_parts = index + 1
                rows = [sequence.row for sequence in part]
                if index in done:
                    line.advance(sum(row.length for row in rows), "from before")
                    continue
                n_residues += sum(row.length for row in rows)
                if index % self.ranks.world_size != self.ranks.rank:
                    continue
                finished = embedder.run([sequence.ids for sequence in part], [row.name for row in rows])
                for place in self.work.write(index, rows, finished):
                    line.advance(rows[place].length, f"part {index + 1}")
        self.ranks.wait()
        elapsed_s = max(time.monotonic() - started_s, 1e-9)
        rates = {"residues/s": round(n_residues / elapsed_s), "time computing": format_seconds(elapsed_s)}
        return n_parts, rates if n_residues else {}

    def _assemble(self, n_parts: int, pending: Sequence[Output], metadata: dict[str, Any]) -> None:
        with progress("write", self.account.n_sequences, "sequences") as line:
            for n_written in assemble(self.work, n_parts, self.account.n_sequences, pending, metadata):
                line.advance(n_written)

    def _summary(self, rates: dict[str, Any]) -> dict[str, Any]:
        account = self.account
        rows: dict[str, Any] = {
            "sequences in": account.report.n_records,
            "sequences out": account.n_sequences,
            "cut": f"{account.n_cut:,} ({account.n_residues_cut:,} residues)" if account.n_cut else 0,
            "skipped": account.n_skipped,
            "duplicate identifiers": account.n_duplicate_ids,
            "residues out": account.n_residues,
            "unknown residues": unknown_text(account.report.unknown),
        }
        if account.n_windowed:
            rows["embedded in windows"] = account.n_windowed
        rows |= {change: count for change, count in account.report.changes.items() if count}
        rows["longest"] = f"{account.longest:,} residues ({account.longest_name})"
        rows |= rates
        rows["peak memory"] = format_bytes(peak_memory_bytes())
        if self.skipped_path.exists():
            rows["left out, see"] = str(self.skipped_path)
        rows["written"] = ", ".join(f"{o.path} ({format_bytes(o.path.stat().st_size)})" for o in self.outputs)
        return rows


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["embed", *sys.argv[1:]])
