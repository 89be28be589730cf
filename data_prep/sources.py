"""Which files go in, of what format, to which split."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

from protlat.alphabet import BYTES, PROTEIN, Alphabet, load_tokenizer
from protlat.data.compression import ByteSource
from protlat.errors import ConfigError, SequenceError

from .config import PrepConfig

DOCUMENT_FORMATS = ("text", "jsonl")
_COMPRESSED_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".bgz")
_TEXT_ENDINGS = (".txt", ".md", ".text", ".markdown")
_JSONL_ENDINGS = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Source:
    """One input file.

    Attributes
    ----------
    path : str
    format : str
        "fasta", "swissprot", "genbank", "embl", "text", "jsonl", or "auto" for standard input until it is read.
    split : str
        "valid" or "test" for files given as such, else "".
    """

    path: str
    format: str
    split: str


def find_sources(config: PrepConfig) -> list[Source]:
    """All inputs in the order given, patterns expanded in name order.

    Raises
    ------
    ConfigError
        No input, or standard input named twice.
    SequenceError
        A file is missing, unreadable or a pipe, its name is not UTF-8, or a pattern matches nothing.
    """
    sources = []
    for split, patterns in (("", config.inputs), ("valid", config.split.valid), ("test", config.split.test)):
        for pattern in patterns:
            sources += [Source(path, _format_of(path, config.format), split) for path in _expand(pattern)]
    if not config.inputs:
        raise ConfigError("no input: name one or more FASTA files or documents, or '-' for standard input")
    if sum(source.path == "-" for source in sources) > 1:
        raise ConfigError("standard input ('-') can be read only once")
    seen: dict[str, Source] = {}
    for source in sources:
        if not _is_utf8(source.path):
            raise SequenceError(f"{source.path!a}: the file's name is not UTF-8, so no table can name it; rename it")
        real = os.path.realpath(source.path) if source.path != "-" else "-"
        if real in seen:
            raise ConfigError(f"{source.path}: given twice (also as {seen[real].path})")
        seen[real] = source
    return sources


def _expand(pattern: str) -> list[str]:
    if pattern == "-":
        return ["-"]
    if not os.path.exists(pattern) and glob.has_magic(pattern):
        found = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
        if not found:
            raise SequenceError(f"{pattern}: no file matches")
        return found
    if os.path.isdir(pattern):
        raise SequenceError(f"{pattern}: a folder; name its files, for example '{pattern.rstrip('/')}/*.fasta'")
    if not os.path.exists(pattern):
        raise SequenceError(f"{pattern}: no such file")
    if not os.path.isfile(pattern):
        # Its format is told by a first look, which a pipe does not survive.
        raise SequenceError(f"{pattern}: a pipe or device, which can be read only once; give it as standard input, '-'")
    return [pattern]


def _is_utf8(path: str) -> bool:
    # The system hands on other bytes as half surrogates, which UTF-8 cannot hold.
    return not any("\ud800" <= letter <= "\udfff" for letter in path)


def _format_of(path: str, wanted: str) -> str:
    if wanted != "auto" or path == "-":
        return "fasta" if wanted == "auto" else wanted
    name = Path(path).name.lower()
    for ending in _COMPRESSED_ENDINGS:
        name = name.removesuffix(ending)
    if name.endswith(_JSONL_ENDINGS):
        return "jsonl"
    start = next(ByteSource(path).chunks(), b"")[:100_000].lstrip(b"\xef\xbb\xbf \t\r\n")
    # Sequences are often kept in .txt files, so a text file that starts like FASTA is taken as FASTA.
    if start.startswith((b">", b";")):
        return "fasta"
    if name.endswith(_TEXT_ENDINGS):
        return "text"
    if start.startswith(b"LOCUS "):
        return "genbank"
    if start.startswith(b"ID   "):
        return "swissprot" if b"AA." in start.split(b"\n", 1)[0] else "embl"
    return "fasta"


def choose_alphabet(config: PrepConfig, sources: list[Source]) -> Alphabet:
    """The alphabet asked for, or the one that fits the formats.

    Raises
    ------
    ConfigError
        Sequences and documents are mixed without a named alphabet, or a tokenizer cannot be read.
    """
    if config.alphabet == "protein":
        return PROTEIN
    if config.alphabet == "bytes":
        return BYTES
    if config.alphabet != "auto":
        if not os.path.isfile(config.alphabet):
            raise ConfigError(f"alphabet {config.alphabet}: expected protein, bytes or the path of a tokenizer.json")
        return load_tokenizer(config.alphabet)
    documents = [source for source in sources if source.format in DOCUMENT_FORMATS]
    if documents and len(documents) < len(sources):
        other = next(source for source in sources if source.format not in DOCUMENT_FORMATS)
        raise ConfigError(
            f"{documents[0].path} is a document and {other.path} holds sequences: name one --alphabet (protein, bytes or a tokenizer.json)"
        )
    return BYTES if documents else PROTEIN
