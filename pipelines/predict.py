"""`protlat predict masked`: which residues a model expects where."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from typing_extensions import Self

from protlat import __version__
from protlat.config import Config
from protlat.data.policies import SequencePolicy
from protlat.devices import resolve_device, resolve_dtype, set_threads
from protlat.errors import ConfigError, OutputError, SequenceError
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
from protlat.inference.heatmap import draw_heatmap, require_drawable
from protlat.inference.inputs import InputAccount, InputSequence, SequenceInput
from protlat.inference.masked import MaskedPredictor, MaskedQuery, pseudo_perplexity, queries_for
from protlat.inference.tables import AddRow, open_table, require_table_ending
from protlat.inference.targets import TargetChoice, Targets, TargetSurvey, survey_targets
from protlat.models import MaskedLM, model_hash, read_model_config, resolve_model_folder
from protlat.reporting import Progress, format_count, format_seconds, peak_memory_bytes, progress

log = logging.getLogger(__name__)

MASKED_COLUMNS = {
    "identifier": str, "position_1based": int, "wild_type": str, "rank": int, "residue": str, "probability": float,
}  # fmt: skip
PERPLEXITY_COLUMNS = {
    "identifier": str, "length": int, "n_scored": int, "pseudo_perplexity": float, "mean_negative_log_likelihood": float,
}  # fmt: skip
# Copies of a sequence wait for their batch: this bounds them, in batches.
_BATCHES_HELD = 8


class PredictMaskedConfig(Config):
    """Settings of `protlat predict masked`."""

    inputs: tuple[str, ...] = ()
    """FASTA files ('-' is standard input) and shard folders."""
    model: str = ""
    """Model folder with a masked-token head, or the run folder of a pretraining."""
    output: str = ""
    """Table to write: .tsv, .json or .parquet; '-' writes tab-separated text to standard output."""
    positions: tuple[int, ...] = ()
    """1-based positions to mask in every sequence; none: the <mask> tokens of the sequences."""
    all_positions: bool = False
    """Mask every position in turn."""
    together: bool = False
    """Mask all of `positions` in one pass, not one at a time."""
    top_k: int = Field(default=5, ge=1)
    """Residues listed per position, the likeliest first."""
    pseudo_perplexity: bool = False
    """Write one row per sequence: exp of the mean negative log-likelihood, one mask at a time."""
    plot: str | None = None
    """PNG heat map, positions x residues, of a single protein."""
    policy: SequencePolicy = SequencePolicy()
    """Letters that are not plain residues."""
    split: str | None = None
    """Split of shard folders; null: all splits."""
    toks_per_batch: int | None = Field(default=None, ge=1)
    """Tokens of one forward pass; null: 8,192 on a CPU, 65,536 on a GPU."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Working precision; auto: bfloat16 where the processor multiplies it natively."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null: all."""
    overwrite: bool = False
    """Replace outputs that are there."""

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        chosen = [
            name
            for name, on in (
                ("--positions", bool(self.positions)),
                ("--all-positions", self.all_positions),
                ("--pseudo-perplexity", self.pseudo_perplexity),
            )
            if on
        ]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} exclude each other")
        if self.together and not self.positions:
            raise ValueError("--together needs --positions")
        if self.plot is not None and self.pseudo_perplexity:
            raise ValueError("--plot draws residues; --pseudo-perplexity has none")
        if any(position < 1 for position in self.positions):
            raise ValueError("positions count from 1")
        return self


@dataclass(frozen=True)
class Prediction:
    """One pass over one sequence.

    Attributes
    ----------
    sequence : InputSequence
    positions : numpy.ndarray, shape (P,)
        0-based residues that were masked.
    log_probabilities : numpy.ndarray, shape (P, R)
    """

    sequence: InputSequence
    positions: np.ndarray
    log_probabilities: np.ndarray


@dataclass
class _Tally:
    """What is gathered while predictions pass by."""

    wild_type_first: int = 0
    wild_type_known: int = 0
    log_likelihood: float = 0.0
    drawn: list[Prediction] = field(default_factory=list)


def run(config: PredictMaskedConfig) -> dict[str, Any]:
    """Predict and write the table.

    Returns
    -------
    dict
        The closing account, row by row.

    Raises
    ------
    ConfigError
        Settings that do not fit.
    SequenceError
        Nothing to predict, a position beyond the only sequence, or unreadable input.
    OutputError
        The output exists.
    """
    require_given({"inputs (INPUT)": config.inputs, "model (-m)": config.model, "output (-o)": config.output})
    require_inputs(config.inputs)
    require_table_ending(config.output)
    for path in (config.output, config.plot):
        if path not in (None, "-") and Path(path).exists() and not config.overwrite:
            raise OutputError(f"{path} exists; replace it with --overwrite, or choose another output")
    folder = Path("." if config.output == "-" else config.output).parent
    with spooled_stdin(config.inputs, folder) as paths, SkippedTable() as skipped:
        return _Run(config, paths, skipped).execute()


class _Run:
    """One run: count, predict, write."""

    def __init__(self, config: PredictMaskedConfig, paths: Sequence[str], skipped: SkippedTable) -> None:
        set_threads(config.threads)
        self.config, self.skipped = config, skipped
        self.device = resolve_device(config.device)
        self.model_folder = resolve_model_folder(config.model)
        self.model_config, self.alphabet = read_model_config(self.model_folder)
        self.source = SequenceInput(paths, self.alphabet, config.policy, split=config.split)
        self.targets = Targets(self.alphabet, _choice(config), config.positions, config.together)
        self.account, self.tally = InputAccount(), _Tally()
        self.account.report.on_skip = skipped.add

    def execute(self) -> dict[str, Any]:
        config, targets = self.config, self.targets
        survey = survey_targets(self.source, targets, self.account, self.skipped.add)
        total, n_tokens = survey.n_positions, survey.n_tokens
        self._refuse_impossible(survey)
        dtype = resolve_dtype(config.dtype, self.device)
        model = MaskedLM.from_pretrained(self.model_folder, self.device, dtype)
        budget = config.toks_per_batch or (65_536 if self.device.type == "cuda" else 8_192)
        predictor = MaskedPredictor(model, budget)
        log.info("%s positions, %s tokens to compute", format_count(total), format_count(n_tokens))
        started_s = time.monotonic()
        columns = PERPLEXITY_COLUMNS if config.pseudo_perplexity else MASKED_COLUMNS
        with (
            open_table(config.output, columns, self._metadata(dtype)) as add,
            progress("predict", total, "positions") as line,
        ):
            predictions = self._counted(predictor, line)
            if config.pseudo_perplexity:
                self._write_perplexities(add, predictor, predictions)
            else:
                self._write_ranks(add, predictor, predictions)
        elapsed_s = max(time.monotonic() - started_s, 1e-9)
        if config.plot is not None:
            self._draw(config.plot, predictor)
        return self._summary(survey, elapsed_s)

    def _refuse_impossible(self, survey: TargetSurvey) -> None:
        """Stop before any computing when there is nothing to predict, or too much to draw."""
        where = ", ".join(self.config.inputs)
        if self.account.n_sequences == 0:
            raise SequenceError(f"{where}: no sequence to predict")
        if survey.first_beyond and (self.account.n_sequences == 1 or survey.n_positions == 0):
            raise SequenceError(survey.first_beyond)
        if survey.n_positions == 0 and self.config.pseudo_perplexity:
            raise SequenceError(f"{where}: no standard residue to score")
        if survey.n_positions == 0:
            raise SequenceError(
                f"{where}: no <mask> in any of {self.account.n_sequences:,} sequences; write <mask> into them, or use "
                "--positions 5,10 or --all-positions"
            )
        require_readable(self.model_config, self.account.longest, self.account.longest_name)
        for message in self.account.report.warnings:
            log.warning("%s", message)
        if self.config.plot is None:
            return
        if survey.n_predicted != 1:
            raise ConfigError(
                f"--plot draws one protein, but {survey.n_predicted:,} sequences are predicted; give a file with one"
            )
        require_drawable(survey.n_positions)

    def _predictions(self, predictor: MaskedPredictor) -> Iterator[Prediction]:
        """Every pass over every sequence, in order."""
        held: list[tuple[InputSequence, MaskedQuery]] = []
        used = 0
        for sequence in self.source.stream(InputAccount.silent()):
            positions = self.targets.positions(sequence.ids)
            for query in queries_for(sequence.ids, positions, self.alphabet.mask_id, self.targets.in_one_pass):
                held.append((sequence, query))
                used += len(query.ids) + 2
                if used >= _BATCHES_HELD * predictor.toks_per_batch:
                    yield from self._flush(predictor, held)
                    held, used = [], 0
        yield from self._flush(predictor, held)

    @staticmethod
    def _flush(predictor: MaskedPredictor, held: list[tuple[InputSequence, MaskedQuery]]) -> Iterator[Prediction]:
        names = [sequence.row.name for sequence, _ in held]
        for index, values in predictor.run([query for _, query in held], names):
            sequence, query = held[index]
            yield Prediction(sequence, query.positions, values)

    def _counted(self, predictor: MaskedPredictor, line: Progress) -> Iterator[Prediction]:
        """The predictions, with the closing account's counts taken on the way."""
        tally = self.tally
        for found in self._predictions(predictor):
            line.advance(len(found.positions))
            codes = found.sequence.ids[found.positions]
            columns = [predictor.column_of.get(int(code)) for code in codes]
            for column, values in zip(columns, found.log_probabilities, strict=True):
                if column is not None:
                    tally.wild_type_known += 1
                    tally.wild_type_first += int(values.argmax()) == column
                    tally.log_likelihood += float(values[column])
            yield found

    def _letters(self, found: Prediction) -> list[str]:
        return [self.alphabet.tokens[int(code)] for code in found.sequence.ids[found.positions]]

    def _write_ranks(self, add: AddRow, predictor: MaskedPredictor, predictions: Iterator[Prediction]) -> None:
        top_k = min(self.config.top_k, len(predictor.residues))
        for found in predictions:
            probabilities = np.exp(found.log_probabilities)
            # Stable: residues of equal probability stand alphabetically.
            order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
            rows = zip(found.positions, self._letters(found), order, probabilities, strict=True)
            for position, letter, ranked, values in rows:
                for rank, column in enumerate(ranked, start=1):
                    name, residue = found.sequence.row.name, predictor.residues[column]
                    add((name, int(position) + 1, letter, rank, residue, float(values[column])))
            if self.config.plot is not None:
                self.tally.drawn.append(found)

    def _write_perplexities(self, add: AddRow, predictor: MaskedPredictor, predictions: Iterator[Prediction]) -> None:
        for name, group in groupby(predictions, key=lambda found: found.sequence.row.name):
            scores = []
            for found in group:
                sequence = found.sequence
                column = predictor.column_of[int(sequence.ids[found.positions[0]])]
                scores.append(found.log_probabilities[0, column])
            likelihoods = np.array(scores, dtype=np.float64)
            add((name, sequence.row.length, len(scores), pseudo_perplexity(likelihoods), float(-likelihoods.mean())))

    def _draw(self, path: str, predictor: MaskedPredictor) -> None:
        drawn = self.tally.drawn
        positions = np.concatenate([found.positions for found in drawn])
        letters = [letter for found in drawn for letter in self._letters(found)]
        probabilities = np.exp(np.concatenate([found.log_probabilities for found in drawn]))
        title = f"{drawn[0].sequence.row.name}: residues expected by {self._model_name}"
        draw_heatmap(path, title, [int(p) + 1 for p in positions], letters, probabilities, predictor.residues)

    @property
    def _model_name(self) -> str:
        return model_name(self.model_folder)

    def _metadata(self, dtype: torch.dtype) -> dict[str, Any]:
        config = self.config
        return {
            "model_name": self._model_name,
            "model_hash": model_hash(self.model_folder),
            "versions": {"protlat": __version__, "torch": torch.__version__},
            "dtype": str(dtype).removeprefix("torch."),
            "positions": list(config.positions) or ("all" if config.all_positions else "<mask>"),
            "together": self.targets.in_one_pass,
            "probabilities": "over the residues that can be predicted, summing to 1",
        }

    def _summary(self, survey: TargetSurvey, elapsed_s: float) -> dict[str, Any]:
        account, tally = self.account, self.tally
        rows: dict[str, Any] = {
            "sequences in": account.report.n_records,
            "sequences predicted": survey.n_predicted,
            "positions predicted": survey.n_positions,
            "skipped": account.n_skipped,
            "without anything to predict": survey.n_without,
            "with positions beyond their end": survey.n_beyond,
            "duplicate identifiers": account.n_duplicate_ids,
            "unknown residues": unknown_text(account.report.unknown),
        }
        rows |= {change: count for change, count in account.report.changes.items() if count}
        if tally.wild_type_known:
            rows["own residue ranked first"] = f"{tally.wild_type_first / tally.wild_type_known:.1%}"
            rows["perplexity of own residues"] = f"{np.exp(-tally.log_likelihood / tally.wild_type_known):.3f}"
        rows["tokens/s"] = round(survey.n_tokens / elapsed_s)
        rows["time computing"] = format_seconds(elapsed_s)
        rows["peak memory"] = format_bytes(peak_memory_bytes())
        if self.config.output != "-":
            path = Path(self.config.output)
            left_out = path.with_name(f"{path.stem}.skipped.tsv")
            self.skipped.keep(left_out)
            if self.skipped.n_rows:
                rows["left out, see"] = str(left_out)
        rows["written"] = (
            ", ".join(p for p in (self.config.output, self.config.plot) if p and p != "-") or "standard output"
        )
        return rows


def _choice(config: PredictMaskedConfig) -> TargetChoice:
    if config.positions:
        return "given"
    if config.pseudo_perplexity:
        return "standard"
    return "all" if config.all_positions else "masks"


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["predict", *sys.argv[1:]])
