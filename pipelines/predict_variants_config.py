"""Every setting of `protlat predict variants`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config
from protlat.data.policies import SequencePolicy
from protlat.inference.variant_scores import Scoring


class PredictVariantsConfig(Config):
    """Settings of `protlat predict variants`."""

    input: str = ""
    """FASTA with the wild type; may be left out with `sequence_from_mutants`."""
    identifier: str = ""
    """Which sequence of the FASTA; empty: the only one."""
    model: str = ""
    """Model folder with a masked-token head, or the run folder of a pretraining."""
    output: str = ""
    """Table to write: .tsv, .json or .parquet; '-' writes tab-separated text to standard output."""
    mutants: str = ""
    """File of variants: .csv, .tsv or .parquet with a column of them, anything else one per line."""
    mutant_column: str = ""
    """Column of the variants; empty: mutant, mutation, variant or hgvs_pro."""
    sequence_column: str = ""
    """Column of whole variant sequences, in place of mutant_column."""
    sequence_from_mutants: bool = False
    """Take the wild type from the variants' own letters; every position between the first and last must occur."""
    score_column: str = ""
    """Column of measured values: their Spearman correlation with the scores is told, beside that of the baselines."""
    compare_columns: tuple[str, ...] = ()
    """Columns of other predictions, correlated with the measured values too."""
    offset: int | None = None
    """Number of the first residue of the sequence; null: 1, or what `sequence_from_mutants` finds."""
    scoring: Scoring = "masked-marginal"
    """wt-marginal (one pass), masked-marginal (one pass per changed position) or pseudo-perplexity (one per residue and variant)."""
    scan: bool = False
    """Every residue at every position, in place of a file."""
    plot: str | None = None
    """PNG heat map of a scan."""
    bad: Literal["error", "skip"] = "error"
    """Variants that cannot be read or do not fit the sequence: stop, or leave them out and list them."""
    n_bootstrap: int = Field(default=1000, ge=0)
    """Resampled sets for the intervals of the correlations."""
    seed: int = 0
    """Of the resampling."""
    policy: SequencePolicy = SequencePolicy()
    """Letters of the FASTA that are not plain residues."""
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
    def _fits_together(self) -> Self:
        if self.scan and (self.mutants or self.score_column):
            raise ValueError("--scan makes every single mutant itself: leave --mutants and --score-column out")
        if self.scan and self.scoring == "pseudo-perplexity":
            raise ValueError("--scan needs --scoring wt-marginal or masked-marginal")
        if self.plot is not None and not self.scan:
            raise ValueError("--plot draws a --scan")
        if self.mutant_column and self.sequence_column:
            raise ValueError("--mutant-column and --sequence-column exclude each other")
        if self.sequence_from_mutants and (self.input or self.sequence_column or self.offset is not None or self.scan):
            raise ValueError(
                "--sequence-from-mutants takes sequence and numbering from the names of the variants: leave the FASTA, "
                "--sequence-column, --offset and --scan out"
            )
        if self.compare_columns and not self.score_column:
            raise ValueError("--compare-columns needs --score-column")
        return self
