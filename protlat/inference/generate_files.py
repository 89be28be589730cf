"""Prompt files, and the files that generated sequences go to."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TextIO

from protlat.alphabet import Alphabet
from protlat.data.compression import ByteSource
from protlat.data.fasta import stream_sequences
from protlat.data.policies import SequencePolicy
from protlat.errors import ConfigError, SequenceError
from protlat.inference.generate import Generated

OutputFormat = Literal["fasta", "text", "jsonl"]
_ENDINGS: dict[str, OutputFormat] = {
    ".fasta": "fasta", ".fa": "fasta", ".faa": "fasta", ".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl",
}  # fmt: skip
_FASTA_COLUMNS = 80


def format_of(output: str, wanted: OutputFormat | None, alphabet: Alphabet) -> OutputFormat:
    """Format of an output.

    Raises
    ------
    ConfigError
        The ending says nothing, or FASTA is asked for what is no protein.
    """
    found = wanted or _ENDINGS.get(Path(output).suffix.lower())
    if found is None and output == "-":
        found = "fasta" if alphabet.name == "protein" else "text"
    if found is None:
        raise ConfigError(f"{output}: its ending is none of {', '.join(_ENDINGS)}; use one, or give --format")
    if found == "fasta" and alphabet.name != "protein":
        raise ConfigError(f"--format fasta holds proteins, but the model writes {alphabet.name}; use text or jsonl")
    return found


def read_prompt_file(path: str, alphabet: Alphabet, whole: bool) -> list[tuple[str, str | bytes]]:
    """Names and texts of the prompts in a file.

    A file that begins with ``>`` is FASTA when the model reads proteins. Of any other, each line that is not blank is a
    prompt, or with `whole` the file itself.

    Raises
    ------
    SequenceError
        It cannot be read, or holds no prompt.
    """
    data = b"".join(bytes(chunk) for chunk in ByteSource(path).chunks())
    name = "stdin" if path == "-" else Path(path).name
    prompts: list[tuple[str, str | bytes]]
    if alphabet.name == "protein" and data.lstrip()[:1] == b">":
        if path == "-":
            raise SequenceError("standard input: FASTA prompts are read from a file; save them, or give one a line")
        policy = SequencePolicy(unknown="keep")
        prompts = [(record.identifier, record.residues) for record in stream_sequences([path], policy)]
    elif whole:
        prompts = [(name, data)]
    else:
        lines = enumerate(data.split(b"\n"), start=1)
        kept = ((f"{name}:{number}", line.removesuffix(b"\r")) for number, line in lines)
        prompts = [(label, line) for label, line in kept if line.strip()]
    if not prompts:
        raise SequenceError(f"{path}: no prompt in it")
    return prompts


class Writer:
    """Writes generated sequences one by one.

    FASTA and text hold prompt and continuation together, JSON lines hold them apart.

    Parameters
    ----------
    handle : text file
    out_format : "fasta", "text" or "jsonl"
    alphabet : Alphabet
    names : sequence of str
        Of the prompts.
    num_samples : int
    total : int
        Sequences to come: in text, one alone stands without a heading.
    """

    def __init__(
        self,
        handle: TextIO,
        out_format: OutputFormat,
        alphabet: Alphabet,
        names: Sequence[str],
        num_samples: int,
        total: int,
    ) -> None:
        self.handle, self.format, self.alphabet, self.names = handle, out_format, alphabet, names
        self.num_samples, self.total = num_samples, total

    def write(self, one: Generated) -> None:
        """Append one sequence."""
        name = self.names[one.prompt_index]
        if self.num_samples > 1:
            name = f"{name}_{one.sample + 1}"
        if self.format == "jsonl":
            row = {
                "id": name,
                "prompt": self.alphabet.decode(one.prompt),
                "text": one.text(self.alphabet, with_prompt=False),
                "n_tokens": len(one.tokens),
                "stopped_by": one.stopped_by,
                "log_likelihood": one.log_likelihood,
            }
            self.handle.write(json.dumps(row, ensure_ascii=False) + "\n")
            return
        text = one.text(self.alphabet)
        facts = f"n_tokens={len(one.tokens)} stopped_by={one.stopped_by} log_likelihood={one.log_likelihood:.4f}"
        if self.format == "fasta":
            self.handle.write(f">{name} prompt={len(one.prompt)} {facts}\n")
            self.handle.write("".join(f"{part}\n" for part in textwrap.wrap(text, _FASTA_COLUMNS)))
        elif self.total == 1:
            self.handle.write(text + "\n")
        else:
            self.handle.write(f"==> {name} {facts}\n{text}\n\n")
