"""Settings of `protlat prep structures`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from protlat.config import Config


class PrepStructuresConfig(Config):
    """Which files are read, and what becomes of their chains."""

    inputs: tuple[str, ...] = ()
    """Structure files (PDB or mmCIF, plain or compressed), folders of them, or quoted patterns."""
    output: str = ""
    """A name that ends in .jsonl or .jsonl.gz: one file; any other: a folder with one file per structure."""
    chains: tuple[str, ...] = ()
    """Chain identifiers to take, as the author names them; empty: every protein chain."""
    model: int | Literal["first", "all"] = "first"
    """Model of files with several (NMR): the first, the one of that number, or all as chains of their own."""
    min_length: int = Field(7, ge=1)
    """Chains with fewer residues are left out; 7 is the shortest with a pair that is scored."""
    max_length: int | None = Field(None, ge=1)
    """Chains with more residues are left out; null: no limit."""
    min_known: float = Field(0.5, ge=0, le=1)
    """Share of residues whose C-beta (C-alpha for glycine) must be known; chains below it, such as C-alpha traces, are left out."""
    duplicates: Literal["keep", "drop"] = "keep"
    """Chains of equal sequence: keep all, or the first only."""
    workers: int = Field(0, ge=0)
    """Processes; 0: one per core for many files. Does not change the result."""

    @field_validator("model", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    def deciding(self) -> dict[str, Any]:
        """The settings that decide what a file gives; output and workers do not."""
        values = self.to_plain()
        for name in ("inputs", "output", "workers", "duplicates"):
            del values[name]
        return values

    @property
    def one_file(self) -> bool:
        """Whether the output is one file, and not a folder."""
        return self.output.endswith((".jsonl", ".jsonl.gz"))
