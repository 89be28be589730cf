"""`protlat predict contacts`: contact maps and top pairs of proteins."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from protlat.evaluation.contacts import CONTACT_METRICS, chain_precisions
from protlat.files import atomic_path, format_bytes
from protlat.inference.account import (
    SkippedTable,
    model_name,
    require_given,
    require_inputs,
    spooled_stdin,
    unknown_text,
)
from protlat.inference.batches import require_readable
from protlat.inference.contact_files import ContactArchive
from protlat.inference.contact_picture import draw_contact_map, require_map_drawable
from protlat.inference.contacts import TILE, ContactPredictor, Pairs, sigmoid
from protlat.inference.inputs import InputAccount, InputSequence, SequenceInput
from protlat.inference.naming import Column
from protlat.inference.tables import TABLE_ENDINGS, open_table
from protlat.inference.true_contacts import TrueChain, true_chain
from protlat.inference.vectors import Embedder
from protlat.models import Encoder, model_hash, read_model_config
from protlat.models.contact import load_contact_head
from protlat.reporting import format_seconds, peak_memory_bytes, progress
from protlat.tasks.pairs import MIN_SEPARATION, pair_labels
from protlat.training.pair_data import one_hot

log = logging.getLogger(__name__)
COLUMNS = {
    "identifier": str, "i_1based": int, "j_1based": int, "residue_i": str, "residue_j": str, "separation": int,
    "probability": float,
}  # fmt: skip
# Vectors wait for their maps: this bounds them, in batches.
_BATCHES_HELD = 4


class PredictContactsConfig(Config):
    """Settings of `protlat predict contacts`."""

    inputs: tuple[str, ...] = ()
    """FASTA files ('-' is standard input) and shard folders."""
    model: str = ""
    """Model folder with a contact head, made by protlat finetune contacts."""
    output: str = ""
    """.npz: maps; .tsv, .json or .parquet: a table of the most probable pairs; '-' writes that table to standard output."""
    top: float = Field(2.0, gt=0)
    """Pairs of a table, and of chains over `dense_max`: this times the number of residues."""
    min_probability: float = Field(0.0, ge=0, le=1)
    """Pairs below it are left out of tables."""
    min_separation: int = Field(MIN_SEPARATION, ge=1)
    """Pairs nearer along the chain are left out of tables; maps hold all."""
    dense_max: int = Field(1000, ge=0)
    """.npz: longest protein, in residues, whose whole map is written; of longer ones, the most probable pairs are."""
    plot: str | None = None
    """PNG of the map of a single protein."""
    structure: str | None = None
    """PDB or mmCIF file of a single protein: true contacts are drawn beside the predicted ones, and precisions told."""
    chain: str | None = None
    """Chain of the structure; null: the first that fits the sequence."""
    tile: int = Field(TILE, ge=16)
    """Residues to a side of what is computed at once in proteins longer than that; memory grows with its square."""
    policy: SequencePolicy = SequencePolicy()
    """Letters that are not plain residues."""
    split: str | None = None
    """Split of shard folders; null: all splits."""
    toks_per_batch: int | None = Field(default=None, ge=1)
    """Tokens of one forward pass of the encoder; null: 8,192 on a CPU, 65,536 on a GPU."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Working precision of the encoder; the head works in float32. auto: bfloat16 where the processor multiplies it natively."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null: all."""
    overwrite: bool = False
    """Replace outputs that are there."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.chain is not None and self.structure is None:
            raise ValueError("chain: names a chain of --structure, which is not given")
        return self


@dataclass(frozen=True)
class _Output:
    """Where results go: one of the two is set."""

    add_row: Callable[[Any], None] | None
    archive: ContactArchive | None


def run(config: PredictContactsConfig) -> dict[str, Any]:
    """Predict contacts and write them.

    Returns
    -------
    dict
        The closing account, row by row.

    Raises
    ------
    ConfigError
        Settings that do not fit.
    SequenceError
        Unreadable input, or a structure that does not fit the sequence.
    CheckpointError
        A model without a contact head.
    OutputError
        An output exists.
    """
    require_given({"inputs (INPUT)": config.inputs, "model (-m)": config.model, "output (-o)": config.output})
    require_inputs(config.inputs)
    suffix = Path(config.output).suffix.lower()
    if config.output != "-" and suffix not in (".npz", *TABLE_ENDINGS):
        raise ConfigError(
            f"-o {config.output}: use an ending of .npz, {', '.join(TABLE_ENDINGS)}, or '-' for standard output"
        )
    for path in (config.output, config.plot):
        if path not in (None, "-") and Path(path).exists() and not config.overwrite:
            raise OutputError(f"{path} exists; replace it with --overwrite, or choose another output")
    folder = Path("." if config.output == "-" else config.output).parent
    with spooled_stdin(config.inputs, folder) as paths, SkippedTable() as skipped:
        return _Run(config, paths, skipped).execute()


class _Run:
    """One run: read, embed, predict, write."""

    def __init__(self, config: PredictContactsConfig, paths: list[str], skipped: SkippedTable) -> None:
        set_threads(config.threads)
        self.config, self.skipped = config, skipped
        self.device = resolve_device(config.device)
        self.dtype = resolve_dtype(config.dtype, self.device)
        self.folder, self.head_file, head, self.reads = load_contact_head(config.model, self.device)
        self.predictor = ContactPredictor(head, config.tile)
        self.model_config, self.alphabet = read_model_config(self.folder)
        self.source = SequenceInput(paths, self.alphabet, config.policy, split=config.split)
        self.account = InputAccount()
        self.account.report.on_skip = skipped.add
        self.truth: TrueChain | None = None
        self.precisions: dict[str, float] = {}
        self.n_pairs = self.n_maps = self.n_listed = 0

    def execute(self) -> dict[str, Any]:
        config = self.config
        single = self._survey()
        embedder = self._embedder()
        started_s = time.monotonic()
        with self._opened() as output, progress("contacts", float(self.account.n_residues), "residues") as line:
            for sequence, vectors in self._vectors(embedder):
                logits = self._write(output, sequence, vectors)
                if single is not None and (config.plot is not None or self.truth is not None):
                    self._show(sequence, self.predictor.logits(vectors) if logits is None else logits)
                line.advance(sequence.row.length)
        return self._summary(time.monotonic() - started_s)

    def _survey(self) -> InputSequence | None:
        """Count the input, refuse what cannot work before anything is computed; the sequence where there is one only."""
        config, first = self.config, None
        for sequence in self.source.stream(self.account):
            first = first or sequence
        if first is None:
            raise SequenceError(f"{', '.join(config.inputs)}: no sequence to predict")
        require_readable(self.model_config, self.account.longest, self.account.longest_name)
        for message in self.account.report.warnings:
            log.warning("%s", message)
        if config.plot is None and config.structure is None:
            return None
        if self.account.n_sequences != 1:
            wanted = "--plot" if config.plot is not None else "--structure"
            raise ConfigError(
                f"{wanted} is for one protein, but there are {self.account.n_sequences:,}; give a file with one"
            )
        if config.plot is not None:
            require_map_drawable(first.row.length)
        if config.structure is not None:
            self.truth = true_chain(config.structure, self.alphabet.decode(first.ids), first.row.name, config.chain)
        return first

    def _embedder(self) -> Embedder | None:
        if self.reads == "one_hot":
            return None
        encoder = Encoder.from_pretrained(self.folder, self.device, self.dtype)
        budget = self.config.toks_per_batch or (65_536 if self.device.type == "cuda" else 8_192)
        return Embedder(encoder, [Column("per_tok", encoder.resolve_layer(self.head_file.layer))], budget)

    def _vectors(self, embedder: Embedder | None) -> Iterator[tuple[InputSequence, np.ndarray]]:
        """Every sequence in order with the vectors of its residues."""
        held: list[InputSequence] = []
        used = 0
        for sequence in self.source.stream(InputAccount.silent()):
            if embedder is None:
                yield sequence, one_hot(sequence.ids)
                continue
            held.append(sequence)
            used += sequence.row.length + 2
            if used >= _BATCHES_HELD * embedder.toks_per_batch:
                yield from _embedded(embedder, held)
                held, used = [], 0
        if held:
            assert embedder is not None
            yield from _embedded(embedder, held)

    def _write(self, output: _Output, sequence: InputSequence, vectors: np.ndarray) -> np.ndarray | None:
        """Write one protein; its map where the whole of it was computed."""
        config, row = self.config, sequence.row
        if output.archive is not None and row.length <= config.dense_max:
            logits = self.predictor.logits(vectors)
            output.archive.add_map(row, sigmoid(logits))
            self.n_maps += 1
            return logits
        n_top = max(int(config.top * row.length), 1)
        pairs = self.predictor.top(vectors, n_top, min_separation=config.min_separation)
        likely = pairs.probability >= config.min_probability
        pairs = Pairs(pairs.first[likely], pairs.second[likely], pairs.logit[likely])
        self.n_pairs += len(pairs.first)
        self.n_listed += 1
        if output.archive is not None:
            output.archive.add_pairs(row, pairs)
        if output.add_row is not None:
            self._add_rows(output.add_row, sequence, pairs)
        return None

    def _add_rows(self, add_row: Callable[[Any], None], sequence: InputSequence, pairs: Pairs) -> None:
        letters = self.alphabet.tokens
        distance = None if self.truth is None else pair_labels(self.truth.target).distance
        for i, j, probability in zip(
            pairs.first.tolist(), pairs.second.tolist(), pairs.probability.tolist(), strict=True
        ):
            residues = letters[int(sequence.ids[i])], letters[int(sequence.ids[j])]
            more = () if distance is None else (float(distance[i, j]),)
            add_row((sequence.row.name, i + 1, j + 1, *residues, j - i, probability, *more))

    def _show(self, sequence: InputSequence, logits: np.ndarray) -> None:
        """Draw the map of the only protein, and compare it with the truth."""
        title = f"{sequence.row.name}: contacts by {model_name(self.folder)}"
        if self.truth is not None:
            self.precisions = chain_precisions(logits, self.truth.target)
            long = self.precisions["precision_long_l"]
            title += "" if np.isnan(long) else f"\nprecision at L, long range: {long:.3f}"
        if self.config.plot is not None:
            draw_contact_map(
                self.config.plot, title, sigmoid(logits), None if self.truth is None else self.truth.target
            )

    @contextmanager
    def _opened(self) -> Iterator[_Output]:
        if Path(self.config.output).suffix.lower() == ".npz":
            with atomic_path(self.config.output) as temporary:
                archive = ContactArchive(temporary)
                yield _Output(None, archive)
                archive.close(self._metadata())
            return
        columns = COLUMNS if self.truth is None else {**COLUMNS, "distance_angstrom": float}
        with open_table(self.config.output, columns, self._metadata()) as add_row:
            yield _Output(add_row, None)

    def _metadata(self) -> dict[str, Any]:
        return {
            "model_name": model_name(self.folder),
            "model_hash": model_hash(self.folder),
            "versions": {"protlat": __version__, "torch": torch.__version__},
            "dtype": str(self.dtype).removeprefix("torch."),
            "contact": "C-beta (C-alpha for glycine) closer than 8 angstrom",
        }

    def _summary(self, elapsed_s: float) -> dict[str, Any]:
        account, config = self.account, self.config
        rows: dict[str, Any] = {
            "sequences in": account.report.n_records,
            "sequences predicted": account.n_sequences,
            "residues": account.n_residues,
            "skipped": account.n_skipped,
            "duplicate identifiers (kept apart)": account.n_duplicate_ids,
            "unknown residues": unknown_text(account.report.unknown),
            **{f"changed: {what}": count for what, count in account.report.changes.items()},
            "maps written": self.n_maps,
            "proteins with top pairs": self.n_listed,
            "pairs written": self.n_pairs,
        }
        if self.truth is not None:
            rows["structure"] = (
                f"chain {self.truth.chain}, {self.truth.n_observed:,} of {account.n_residues:,} residues known"
            )
            for name, value in self.precisions.items():
                rows[CONTACT_METRICS[name].title] = "no known pair" if np.isnan(value) else f"{value:.3f}"
        rows["residues/s"] = round(account.n_residues / max(elapsed_s, 1e-9))
        rows["time computing"] = format_seconds(elapsed_s)
        rows["peak memory"] = format_bytes(peak_memory_bytes())
        if config.output != "-":
            left_out = Path(config.output).with_name(f"{Path(config.output).stem}.skipped.tsv")
            self.skipped.keep(left_out)
            if self.skipped.n_rows:
                rows["skipped, see"] = str(left_out)
        written = [path for path in (config.output, config.plot) if path and path != "-"]
        rows["written"] = ", ".join(written) or "standard output"
        return rows


def _embedded(embedder: Embedder, held: list[InputSequence]) -> Iterator[tuple[InputSequence, np.ndarray]]:
    column = embedder.columns[0]
    found = dict(embedder.run([sequence.ids for sequence in held], [sequence.row.name for sequence in held]))
    for number, sequence in enumerate(held):
        yield sequence, found.pop(number)[column]


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["predict", *sys.argv[1:]])
