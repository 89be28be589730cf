"""`protlat predict variants`: how well a model thinks of mutations, beside what a substitution matrix thinks."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protlat import __version__
from protlat.data.records import SkippedRecord
from protlat.devices import resolve_device, resolve_dtype, set_threads
from protlat.errors import OutputError, SequenceError
from protlat.evaluation.bootstrap import Score
from protlat.evaluation.scores import score
from protlat.evaluation.substitutions import BASELINES, substitution_scores
from protlat.files import format_bytes, write_json
from protlat.inference.account import SkippedTable, model_name, require_given, require_inputs
from protlat.inference.batches import require_readable
from protlat.inference.heatmap import EFFECTS, draw_heatmap, require_drawable
from protlat.inference.tables import open_table, require_table_ending
from protlat.inference.variant_files import VariantTable, read_variants
from protlat.inference.variant_scores import VariantScorer, apply_variant, changed_positions, n_tokens_needed
from protlat.inference.variants import Variant, fault_of, fitting_offset, sequence_of
from protlat.models import MaskedLM, model_hash, read_model_config, resolve_model_folder
from protlat.reporting import Progress, format_count, format_seconds, peak_memory_bytes, progress

from .predict_variants_config import PredictVariantsConfig

__all__ = ["PredictVariantsConfig", "run"]

log = logging.getLogger(__name__)
SCAN_COLUMNS = {
    "identifier": str, "position": int, "wild_type": str, "mutant": str, "variant": str, "score": float,
    "log_probability": float,
}  # fmt: skip


@dataclass(frozen=True)
class WildType:
    """The sequence that variants change, and the number of its first residue."""

    name: str
    sequence: str
    offset: int


def run(config: PredictVariantsConfig) -> dict[str, Any]:
    """Score variants and write the table.

    Returns
    -------
    dict
        The closing account, row by row.

    Raises
    ------
    ConfigError
        Settings that do not fit.
    SequenceError
        The sequence or the file of variants cannot be used, or a variant does not fit the sequence.
    OutputError
        The output exists.
    """
    wanted: dict[str, object] = {"model (-m)": config.model, "output (-o)": config.output}
    if not config.scan:
        wanted["variants (--mutants, or --scan)"] = config.mutants
    if not config.sequence_from_mutants:
        wanted["wild type (FASTA, or --sequence-from-mutants)"] = config.input
    require_given(wanted)
    require_inputs([path for path in (config.input, config.mutants) if path])
    require_table_ending(config.output)
    for path in (config.output, config.plot):
        if path not in (None, "-") and Path(path).exists() and not config.overwrite:
            raise OutputError(f"{path} exists; replace it with --overwrite, or choose another output")
    set_threads(config.threads)
    with SkippedTable() as skipped:
        return _Run(config, skipped).execute()


class _Run:
    """One run: read, check, score, write."""

    def __init__(self, config: PredictVariantsConfig, skipped: SkippedTable) -> None:
        self.config, self.skipped = config, skipped
        self.device = resolve_device(config.device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        self.folder = resolve_model_folder(config.model)
        self.model_config, self.alphabet = read_model_config(self.folder)
        if self.alphabet.name != "protein":
            raise SequenceError(f"{self.folder}: this model reads {self.alphabet.name}, not residues")
        self.n_tokens = 0

    def execute(self) -> dict[str, Any]:
        if self.config.scan:
            wild_type = self._from_fasta()
            return self._scan(wild_type)
        table, wild_type = self._read()
        return self._score(table, wild_type)

    def _from_fasta(self) -> WildType:
        from protlat.data.fasta import stream_sequences
        from protlat.data.records import SequenceReport

        config = self.config
        records = list(stream_sequences([config.input], config.policy, SequenceReport()))
        names = [record.identifier for record in records]
        if config.identifier:
            if config.identifier not in names:
                raise SequenceError(f"{config.input}: no sequence {config.identifier!r}; there are {_listed(names)}")
            record = records[names.index(config.identifier)]
        elif len(records) != 1:
            raise SequenceError(
                f"{config.input}: {len(records):,} sequences ({_listed(names)}); choose the wild type with --identifier"
            )
        else:
            record = records[0]
        sequence = record.residues.decode() if isinstance(record.residues, bytes) else record.residues
        require_readable(self.model_config, len(sequence), record.identifier)
        return WildType(record.identifier, sequence, 1 if config.offset is None else config.offset)

    def _read(self) -> tuple[VariantTable, WildType]:
        """Variants that fit their wild type."""
        config = self.config
        columns = [name for name in (config.score_column, *config.compare_columns) if name]
        wild_type = None if config.sequence_from_mutants else self._from_fasta()
        table = read_variants(
            config.mutants,
            config.mutant_column,
            columns,
            config.sequence_column,
            wild_type.sequence if wild_type else "",
            wild_type.offset if wild_type else 1,
            keep_going=config.bad == "skip",
        )
        for place, text in table.faults:
            self._skip(place, "", text)
        if wild_type is None:
            sequence, offset = sequence_of(table.variants, config.mutants)
            wild_type = WildType(f"wild type of {Path(config.mutants).name}", sequence, offset)
            require_readable(self.model_config, len(sequence), wild_type.name)
        return self._fitting(table, wild_type), wild_type

    def _fitting(self, table: VariantTable, wild_type: WildType) -> VariantTable:
        faults = [fault_of(v, wild_type.sequence, wild_type.name, wild_type.offset) for v in table.variants]
        if not any(faults):
            return table
        if self.config.bad == "error":
            first = next(fault for fault in faults if fault)
            fitting = fitting_offset(table.variants, wild_type.sequence)
            hint = f"; all variants fit with --offset {fitting}" if fitting not in (None, wild_type.offset) else ""
            raise SequenceError(first + hint)
        for variant, fault in zip(table.variants, faults, strict=True):
            if fault:
                self._skip(variant.place, variant.name, fault)
        kept = [index for index, fault in enumerate(faults) if not fault]
        if not kept:
            raise SequenceError(f"{table.path}: none of {len(faults):,} variants fits {wild_type.name!r}: {faults[0]}")
        values = {name: [column[index] for index in kept] for name, column in table.values.items()}
        return VariantTable(table.path, [table.variants[index] for index in kept], values, table.faults)

    def _skip(self, place: str, name: str, text: str) -> None:
        file, _, line = place.rpartition(":")
        self.skipped.add(SkippedRecord(file, int(line), name, text.removeprefix(f"{place}: ")))

    def _scorer(self) -> VariantScorer:
        model = MaskedLM.from_pretrained(self.folder, self.device, self.dtype)
        return VariantScorer(model, self.config.toks_per_batch or (65_536 if self.device.type == "cuda" else 8_192))

    def _tell(self, wild_type: WildType, n_positions: int, n_variants: int) -> None:
        self.n_tokens = n_tokens_needed(len(wild_type.sequence), n_positions, n_variants, self.config.scoring)
        log.info("%s tokens to compute", format_count(self.n_tokens))

    def _scan(self, wild_type: WildType) -> dict[str, Any]:
        config, sequence = self.config, wild_type.sequence
        standard = set(self.alphabet.tokens[code] for code in self.alphabet.replacement_ids)
        positions = [index for index, letter in enumerate(sequence) if letter in standard]
        if not positions:
            raise SequenceError(f"{config.input}: sequence {wild_type.name!r} has no standard residue to change")
        if config.plot is not None:
            require_drawable(len(positions))
        scorer = self._scorer()
        self._tell(wild_type, len(positions), 0)
        started_s = time.monotonic()
        with progress("scan", len(positions), "positions") as line:
            table = scorer.table(sequence, positions, config.scoring, wild_type.name, lambda n: line.advance(n))
        elapsed_s = time.monotonic() - started_s
        letters = "".join(sequence[position] for position in positions)
        effects = scorer.effects(table, letters)
        with open_table(config.output, SCAN_COLUMNS, self._metadata(wild_type)) as add:
            for row, position in enumerate(positions):
                number, own = position + wild_type.offset, letters[row]
                for column, new in enumerate(scorer.residues):
                    name = f"{own}{number}{new}"
                    add((wild_type.name, number, own, new, name, effects[row, column], float(table[row, column])))
        if config.plot is not None:
            title = f"{wild_type.name}: {config.scoring} of every single mutant by {model_name(self.folder)}"
            numbers = [position + wild_type.offset for position in positions]
            draw_heatmap(config.plot, title, numbers, list(letters), effects, scorer.residues, EFFECTS)
        left_out = len(sequence) - len(positions)
        facts = {"positions scored": len(positions), "positions left out (not of the 20)": left_out}
        return self._summary(wild_type, facts, {}, elapsed_s)

    def _score(self, table: VariantTable, wild_type: WildType) -> dict[str, Any]:
        config, variants = self.config, table.variants
        scorer = self._scorer()
        positions = changed_positions(variants, wild_type.offset)
        self._tell(wild_type, len(positions), len(variants))
        started_s = time.monotonic()
        perplexities: np.ndarray | None = None
        with progress("variants", *self._work(wild_type, positions, variants)) as line:
            if config.scoring == "pseudo-perplexity":
                scores, perplexities = self._likelihoods(scorer, variants, wild_type, line)
            else:
                args = (wild_type.sequence, wild_type.offset, variants, config.scoring, wild_type.name)
                scores = scorer.marginals(*args, lambda n: line.advance(n))
        elapsed_s = time.monotonic() - started_s
        columns = {"score": scores} | ({} if perplexities is None else {"pseudo_perplexity": perplexities})
        columns |= {name: substitution_scores(variants, name) for name in BASELINES}
        columns |= {name: np.array(values) for name, values in table.values.items()}
        self._write(variants, wild_type, columns)
        facts = {
            "variants scored": len(variants),
            "with several mutations": sum(len(v.mutations) > 1 for v in variants),
        }
        return self._summary(wild_type, facts, self._correlations(columns), elapsed_s)

    def _work(self, wild_type: WildType, positions: list[int], variants: Sequence[Variant]) -> tuple[int, str]:
        if self.config.scoring == "pseudo-perplexity":
            return (len(variants) + 1) * len(wild_type.sequence), "residues"
        return len(positions), "positions"

    def _likelihoods(
        self, scorer: VariantScorer, variants: Sequence[Variant], wild_type: WildType, line: Progress
    ) -> tuple[np.ndarray, np.ndarray]:
        """Differences of pseudo-log-likelihood, and pseudo-perplexities."""
        sequences = [wild_type.sequence, *(apply_variant(wild_type.sequence, v, wild_type.offset) for v in variants)]
        names = [wild_type.name, *(variant.name for variant in variants)]
        values = np.array(list(scorer.pseudo_log_likelihoods(sequences, names, lambda n: line.advance(n))))
        standard = {self.alphabet.tokens[code] for code in self.alphabet.replacement_ids}
        counts = np.array([sum(letter in standard for letter in sequence) for sequence in sequences])
        return values[1:] - values[0], np.exp(-values[1:] / counts[1:])

    def _write(self, variants: Sequence[Variant], wild_type: WildType, columns: dict[str, np.ndarray]) -> None:
        kinds = {"identifier": str, "variant": str, "n_mutations": int, **dict.fromkeys(columns, float)}
        with open_table(self.config.output, kinds, self._metadata(wild_type)) as add:
            for row, variant in enumerate(variants):
                values = (float(column[row]) for column in columns.values())
                add((wild_type.name, variant.name, len(variant.mutations), *values))

    def _correlations(self, columns: dict[str, np.ndarray]) -> dict[str, Score]:
        """Spearman of every column with the measured one, over the variants that were measured."""
        config = self.config
        if not config.score_column:
            return {}
        measured = columns[config.score_column]
        found = {}
        for name in ("score", *BASELINES, *config.compare_columns):
            known = np.isfinite(measured) & np.isfinite(columns[name])
            found[name] = score(
                "spearman", measured[known], columns[name][known], n_bootstrap=config.n_bootstrap, seed=config.seed
            )
        return found

    def _metadata(self, wild_type: WildType) -> dict[str, Any]:
        return {
            "model_name": model_name(self.folder),
            "model_hash": model_hash(self.folder),
            "versions": {"protlat": __version__, "torch": torch.__version__},
            "dtype": str(self.dtype).removeprefix("torch."),
            "scoring": self.config.scoring,
            "wild_type": {"name": wild_type.name, "sequence": wild_type.sequence, "offset": wild_type.offset},
            "score": "log-odds of the variant beside the wild type in nats; higher is milder, 0 is the wild type",
        }

    def _summary(
        self, wild_type: WildType, facts: dict[str, Any], correlations: dict[str, Score], elapsed_s: float
    ) -> dict[str, Any]:
        config = self.config
        last = wild_type.offset + len(wild_type.sequence) - 1
        rows: dict[str, Any] = {"wild type": f"{wild_type.name}, residues {wild_type.offset} to {last}", **facts}
        rows["left out"] = self.skipped.n_rows
        for name, found in correlations.items():
            who = f"the model ({config.scoring})" if name == "score" else name
            n = f"{found.n_examples:,} variants"
            rows[f"Spearman with {config.score_column}: {who}"] = (
                f"{found}, {n}" if not math.isnan(found.value) else "-"
            )
        rows["tokens/s"] = round(self.n_tokens / max(elapsed_s, 1e-9))
        rows["time computing"] = format_seconds(elapsed_s)
        rows["peak memory"] = format_bytes(peak_memory_bytes())
        written = [path for path in (config.output, config.plot) if path and path != "-"]
        if config.output != "-":
            path = Path(config.output)
            left_out, scores = path.with_name(f"{path.stem}.skipped.tsv"), path.with_name(f"{path.stem}.scores.json")
            self.skipped.keep(left_out)
            if self.skipped.n_rows:
                rows["left out, see"] = str(left_out)
            if correlations:
                plain = {name: found.to_plain() for name, found in correlations.items()}
                write_json(scores, {"spearman": plain, "measured": config.score_column, **self._metadata(wild_type)})
                written.append(str(scores))
        rows["written"] = ", ".join(written) or "standard output"
        return rows


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "") if names else "none"


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["predict", *sys.argv[1:]])
