"""Settings of `protlat prep`."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config
from protlat.data.policies import SequencePolicy

InputFormat = Literal["auto", "fasta", "swissprot", "genbank", "embl", "text", "jsonl"]


class SplitConfig(Config):
    """How records are dealt to train, valid and test."""

    valid: tuple[str, ...] = ()
    """Files whose records are the validation split."""
    test: tuple[str, ...] = ()
    """Files whose records are the test split."""
    valid_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of clusters that go to valid, by a stable hash; 0 to 1."""
    test_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of clusters that go to test, by a stable hash; 0 to 1."""
    seed: int = 0
    """Salt of the hash: another seed gives another split."""
    clusters: str | None = None
    """Table of clusters: columns id and cluster by name, or MMseqs2's two columns (cluster, member) without a header."""
    cluster_method: Literal["auto", "table", "mmseqs", "minhash", "none"] = "auto"
    """Where clusters come from when fractions are asked for; auto: the table, else MMseqs2 when installed, else MinHash."""
    identity: float = Field(default=0.5, gt=0, le=1)
    """Least sequence identity within an MMseqs2 cluster."""
    coverage: float = Field(default=0.8, gt=0, le=1)
    """Least share of both sequences that an MMseqs2 alignment covers."""
    similarity: float = Field(default=0.15, gt=0, lt=1)
    """Least Jaccard similarity of 4-mers that links two sequences by MinHash; 0.15 is about 70 % identity."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.valid_fraction + self.test_fraction >= 1:
            raise ValueError("valid_fraction + test_fraction must leave something for train: their sum must be below 1")
        if (self.valid and self.valid_fraction) or (self.test and self.test_fraction):
            raise ValueError("a split comes either from files or from a fraction, not both")
        if self.cluster_method == "table" and not self.clusters:
            raise ValueError("cluster_method table needs --clusters FILE")
        if self.clusters and self.cluster_method not in ("auto", "table"):
            raise ValueError(f"cluster_method {self.cluster_method} contradicts --clusters {self.clusters}")
        return self


class PrepConfig(Config):
    """Everything that decides what `protlat prep` writes, and the number of workers, which does not."""

    inputs: tuple[str, ...] = ()
    """Files, glob patterns, or '-' for standard input."""
    output: str = ""
    """Shard folder to make."""
    format: InputFormat = "auto"
    """Input format; auto: by content, and by name for documents (.txt .md .jsonl)."""
    alphabet: str = "auto"
    """protein, bytes, or the path of a tokenizer.json; auto: protein, but bytes for documents."""
    document: Literal["file", "line"] = "file"
    """What one document is in text files: the whole file or each line."""
    field: str | None = None
    """Key that holds the text in .jsonl files."""
    id_field: str | None = None
    """Key that holds the identifier in .jsonl files; file name and line without it."""
    policy: SequencePolicy = SequencePolicy()
    """Letters that are no plain residues."""
    min_length: int = Field(default=1, ge=1)
    """Shorter records are left out; tokens."""
    max_length: int | None = Field(default=None, ge=1)
    """What is longer is treated as `long` says; tokens."""
    long: Literal["skip", "window", "cut", "error"] = "skip"
    """Records over max_length: skip (leave out, reported), window (pieces that overlap), cut (keep the start), error (stop)."""
    fixed_length: int | None = Field(default=None, ge=2)
    """Make every row this many tokens: long records become windows, short ones are padded."""
    overlap: int = Field(default=0, ge=0)
    """Tokens that neighbouring windows share."""
    duplicates: Literal["drop", "keep"] = "drop"
    """Equal sequences: drop (the first stays; test before valid before train) or keep."""
    duplicate_ids: Literal["keep", "skip", "error"] = "keep"
    """Equal identifiers on different sequences: keep (apart, counted), skip (the first stays) or error."""
    tag_pattern: str | None = None
    """Regular expression on identifiers whose first group is the source tag."""
    exclude_tags: tuple[str, ...] = ()
    """Tags to leave out."""
    split: SplitConfig = SplitConfig()
    """Train, valid and test."""
    leak_sample: int = Field(default=2000, ge=0)
    """Sequences of valid and of test that are compared with train for the leak report; 0 leaves the report out."""
    shard_tokens: int = Field(default=1 << 26, ge=1)
    """Tokens of one shard file, about."""
    block_bytes: int = Field(default=1 << 22, ge=16)
    """Bytes read at once; memory grows with it and with the workers."""
    bucket_rows: int = Field(default=2_000_000, ge=1)
    """Records compared at once when looking for duplicates; above this they are spilled to disk by hash prefix."""
    workers: int = Field(default=0, ge=0)
    """Processes; 0: one per core for large inputs. Does not change the result."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        limit = self.fixed_length or self.max_length
        if self.overlap and limit is None:
            raise ValueError("overlap needs fixed_length, or max_length with long window")
        if limit is not None and self.overlap >= limit:
            raise ValueError(f"overlap must be below the window of {limit} tokens")
        if self.fixed_length and self.max_length:
            raise ValueError("fixed_length windows long records already; leave out max_length")
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError("max_length is below min_length")
        if self.exclude_tags and not self.tag_pattern:
            raise ValueError("exclude_tags needs tag_pattern")
        if self.tag_pattern is not None:
            try:
                groups = re.compile(self.tag_pattern).groups
            except re.error as error:
                raise ValueError(f"tag_pattern is not a regular expression: {error}") from None
            if groups < 1:
                raise ValueError("tag_pattern needs a group in parentheses: the tag")
        return self

    def deciding(self) -> dict[str, Any]:
        """The settings that decide the result: all but the number of workers and the folder's own name."""
        values = self.to_plain()
        del values["workers"], values["output"]
        return values
