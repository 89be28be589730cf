"""`protlat predict`: labels and values from a fine-tuned model."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from protlat import __version__
from protlat.config import Config
from protlat.data.policies import SequencePolicy
from protlat.devices import resolve_device, resolve_dtype, set_threads
from protlat.errors import OutputError
from protlat.files import format_bytes
from protlat.inference.account import (
    SkippedTable,
    model_name,
    require_given,
    require_inputs,
    spooled_stdin,
    unknown_text,
)
from protlat.inference.batches import require_readable
from protlat.inference.inputs import InputAccount, InputSequence, SequenceInput, partition, survey
from protlat.inference.label_prediction import Answer, LabelPredictor, decide
from protlat.inference.label_rows import residue_columns, residue_rows, sequence_columns, sequence_row
from protlat.inference.tables import AddRow, open_table, require_table_ending
from protlat.models import model_hash, read_model_config
from protlat.models.head_file import HeadFile, read_head
from protlat.reporting import format_seconds, peak_memory_bytes, progress

log = logging.getLogger(__name__)
# Sequences wait for their batch: this bounds them, in batches.
_BATCHES_HELD = 8


class PredictLabelsConfig(Config):
    """Settings of `protlat predict`."""

    inputs: tuple[str, ...] = ()
    """FASTA files ('-' is standard input) and shard folders."""
    model: str = ""
    """Folder made by `protlat finetune`."""
    output: str = ""
    """Table with a row a sequence: .tsv, .json or .parquet; '-' writes tab-separated text to standard output."""
    per_class: bool = False
    """Add a column with the probability of every class."""
    residue_table: bool = True
    """Labels of residues: write NAME.residues.tsv too, with a row a residue; not with output '-'."""
    policy: SequencePolicy = SequencePolicy()
    """Letters that are not plain residues."""
    split: str | None = None
    """Split of shard folders; null: all splits."""
    toks_per_batch: int | None = Field(default=None, ge=1)
    """Tokens of one forward pass; null: 8,192 on a CPU, 65,536 on a GPU. A longer sequence goes alone."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Working precision of the encoder; auto: bfloat16 where the processor multiplies it natively."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null: all."""
    overwrite: bool = False
    """Replace outputs that are there."""


def run(config: PredictLabelsConfig) -> dict[str, Any]:
    """Predict and write the tables.

    Returns
    -------
    dict
        The closing account, row by row.

    Raises
    ------
    CheckpointError
        The model has no head, or one that predicts something else.
    SequenceError
        Unreadable input, or a sequence longer than the model reads.
    OutputError
        The output exists.
    """
    require_given({"inputs (INPUT)": config.inputs, "model (-m)": config.model, "output (-o)": config.output})
    require_inputs(config.inputs)
    require_table_ending(config.output)
    folder, head = read_head(config.model, "labels")
    residues = residue_path(config, head)
    for path in (config.output, residues):
        if path not in (None, "-") and Path(str(path)).exists() and not config.overwrite:
            raise OutputError(f"{path} exists; replace it with --overwrite, or choose another output")
    beside = Path("." if config.output == "-" else config.output).parent
    with spooled_stdin(config.inputs, beside) as paths, SkippedTable() as skipped:
        return _Run(config, folder, head, residues, paths, skipped).execute()


def residue_path(config: PredictLabelsConfig, head: HeadFile) -> str | None:
    """Where the rows of residues go; None where there are none."""
    if not head.type.startswith("residue") or not config.residue_table or config.output == "-":
        return None
    path = Path(config.output)
    return str(path.with_name(f"{path.stem}.residues{path.suffix}"))


class _Run:
    """One run: count, predict, write."""

    def __init__(
        self,
        config: PredictLabelsConfig,
        folder: Path,
        head: HeadFile,
        residues: str | None,
        paths: Sequence[str],
        skipped: SkippedTable,
    ) -> None:
        set_threads(config.threads)
        self.config, self.folder, self.head, self.residues, self.skipped = config, folder, head, residues, skipped
        self.device = resolve_device(config.device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        self.budget = config.toks_per_batch or (65_536 if self.device.type == "cuda" else 8_192)
        self.model_config, self.alphabet = read_model_config(folder)
        self.source = SequenceInput(paths, self.alphabet, config.policy, split=config.split)
        self.account = InputAccount()
        self.account.report.on_skip = skipped.add
        self.counts: dict[str, int] = {}

    def execute(self) -> dict[str, Any]:
        account, head = self.account, self.head
        with progress("read", None, "sequences") as line:
            survey(self.source, account, line.advance)
        for message in account.report.warnings:
            log.warning("%s", message)
        require_readable(self.model_config, account.longest, account.longest_name)
        predictor = LabelPredictor.load(self.folder, self.device, self.dtype, self.budget)
        started_s = time.monotonic()
        with contextlib.ExitStack() as files:
            columns = sequence_columns(head, self.config.per_class)
            add = files.enter_context(open_table(self.config.output, columns, self._metadata()))
            add_residue: AddRow | None = None
            if self.residues is not None:
                inner = residue_columns(head, self.config.per_class)
                add_residue = files.enter_context(open_table(self.residues, inner, self._metadata()))
            line = files.enter_context(progress("predict", account.n_residues, "residues"))
            for sequence, answer in self._answers(predictor):
                self._count(answer)
                add(sequence_row(head, sequence.row.name, sequence.row.length, answer, self.config.per_class))
                if add_residue is not None:
                    letters = [self.alphabet.tokens[int(code)] for code in sequence.ids]
                    for row in residue_rows(head, sequence.row.name, letters, answer, self.config.per_class):
                        add_residue(row)
                line.advance(sequence.row.length)
        return self._summary(max(time.monotonic() - started_s, 1e-9))

    def _answers(self, predictor: LabelPredictor) -> Iterator[tuple[InputSequence, Answer]]:
        """Every sequence with its answer, in the order of the input."""
        for _, part in partition(self.source.stream(InputAccount.silent()), _BATCHES_HELD * self.budget):
            ids, names = [sequence.ids for sequence in part], [sequence.row.name for sequence in part]
            found: list[np.ndarray | None] = [None] * len(part)
            for place, outputs in predictor.run(ids, names):
                found[place] = outputs
            for sequence, made in zip(part, found, strict=True):
                assert made is not None
                yield sequence, decide(self.head, np.atleast_2d(made))

    def _count(self, answer: Answer) -> None:
        if answer.chosen is None:
            return
        sums = (
            answer.chosen.sum(0)
            if answer.chosen.ndim == 2
            else np.bincount(answer.chosen, minlength=len(self.head.classes))
        )
        for name, n in zip(self.head.classes, sums.tolist(), strict=True):
            if n:
                self.counts[name] = self.counts.get(name, 0) + int(n)

    def _metadata(self) -> dict[str, Any]:
        head = self.head
        return {
            "model_name": model_name(self.folder),
            "model_hash": model_hash(self.folder),
            "task": head.task,
            "type": head.type,
            "classes": list(head.classes),
            "temperature": head.temperature,
            "threshold": head.threshold,
            "dtype": str(self.dtype).removeprefix("torch."),
            "protlat": __version__,
        }

    def _summary(self, elapsed_s: float) -> dict[str, Any]:
        account = self.account
        rows: dict[str, Any] = {
            "task": f"{self.head.task} ({self.head.type})",
            "sequences in": account.report.n_records,
            "sequences predicted": account.n_sequences,
            "skipped": account.n_skipped,
            "duplicate identifiers": account.n_duplicate_ids,
            "residues": account.n_residues,
            "unknown residues": unknown_text(account.report.unknown),
            "longest": f"{account.longest:,} residues ({account.longest_name})",
        }
        if self.counts:
            most = sorted(self.counts.items(), key=lambda item: -item[1])[:12]
            rows["predicted"] = ", ".join(f"{name} {n:,}" for name, n in most)
        rows["residues/s"] = round(account.n_residues / elapsed_s)
        rows["time computing"] = format_seconds(elapsed_s)
        rows["peak memory"] = format_bytes(peak_memory_bytes())
        if self.config.output != "-":
            path = Path(self.config.output)
            left_out = path.with_name(f"{path.stem}.skipped.tsv")
            self.skipped.keep(left_out)
            if self.skipped.n_rows:
                rows["left out, see"] = str(left_out)
        written = [path for path in (self.config.output, self.residues) if path is not None and path != "-"]
        rows["written"] = ", ".join(written) or "standard output"
        return rows


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["predict", *sys.argv[1:]])
