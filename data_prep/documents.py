"""Documents: text files, one document each or one a line, and JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from protlat.data.compression import ByteSource
from protlat.data.policies import from_sequences
from protlat.data.records import RecordBlock
from protlat.errors import ConfigError, SequenceError

from .config import PrepConfig
from .sources import Source

# A document is held whole in memory, as text and as tokens.
MAX_DOCUMENT_BYTES = 1 << 26
_BOM = b"\xef\xbb\xbf"


def read_documents(source: Source, stream: ByteSource, config: PrepConfig) -> Iterator[RecordBlock]:
    """Blocks of documents, in order; the identifier is the file's name, with the line where a file holds many.

    Raises
    ------
    ConfigError
        JSON lines without a named field.
    SequenceError
        A line is not a JSON object with that field, or a document is too large.
    """
    if source.format == "jsonl":
        if config.field is None:
            raise ConfigError(f"{source.path}: name the key that holds the text with --field")
        rows = _json_rows(source.path, lines_of(stream.chunks(), source.path), config.field, config.id_field)
        yield from _grouped(source.path, rows, config.block_bytes)
    elif config.document == "line":
        name = Path(source.path).name
        lines = lines_of(stream.chunks(), source.path)
        rows = ((f"{name}:{line}", text, line) for line, text in lines if text.strip())
        yield from _grouped(source.path, rows, config.block_bytes)
    else:
        text = bytearray()
        for chunk in stream.chunks():
            text += chunk
            _check_size(len(text), f"{source.path}:1", "; --document line reads each line as one")
        name = Path(source.path).name
        yield from _grouped(source.path, [(name, bytes(text).removeprefix(_BOM), 1)], config.block_bytes)


def lines_of(chunks: Iterable[bytes], path: str) -> Iterator[tuple[int, bytes]]:
    """Lines with their 1-based numbers, without line ends and byte order mark."""
    held = bytearray()
    number = 0
    for chunk in chunks:
        held += chunk
        if b"\n" in chunk:
            *whole, rest = held.split(b"\n")
            for line in whole:
                number += 1
                yield number, _plain_line(line, number)
            held = bytearray(rest)
        _check_size(len(held), f"{path}:{number + 1}", "")
    if held:
        yield number + 1, _plain_line(held, number + 1)


def _plain_line(line: bytes | bytearray, number: int) -> bytes:
    plain = bytes(line).removesuffix(b"\r")
    return plain.removeprefix(_BOM) if number == 1 else plain


def _check_size(n_bytes: int, where: str, advice: str) -> None:
    if n_bytes > MAX_DOCUMENT_BYTES:
        raise SequenceError(f"{where}: a document of over {MAX_DOCUMENT_BYTES:,} bytes{advice or '; split it'}")


def _json_rows(
    path: str, lines: Iterable[tuple[int, bytes]], field: str, id_field: str | None
) -> Iterator[tuple[str, bytes, int]]:
    name = Path(path).name
    for number, line in lines:
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            raise SequenceError(f"{path}:{number}: not JSON: {error}") from None
        except RecursionError:
            raise SequenceError(f"{path}:{number}: JSON nested too deep to read") from None
        if not isinstance(values, dict):
            raise SequenceError(f"{path}:{number}: expected a JSON object, found {type(values).__name__}")
        for key in (field, id_field):
            if key is not None and key not in values:
                raise SequenceError(f"{path}:{number}: no key {key!r}; it has {', '.join(map(repr, values))}")
        text = values[field]
        if not isinstance(text, str):
            raise SequenceError(f"{path}:{number}: key {field!r} holds {type(text).__name__}, expected text")
        # JSON can hold half of a surrogate pair, which UTF-8 cannot.
        identifier = _plain_text(str(values[id_field])) if id_field else f"{name}:{number}"
        yield identifier, text.encode("utf-8", errors="replace"), number


def _plain_text(text: str) -> str:
    return text.encode("utf-8", errors="replace").decode()


def _grouped(path: str, rows: Iterable[tuple[str, bytes, int]], block_bytes: int) -> Iterator[RecordBlock]:
    """Rows in blocks of about `block_bytes`; at least one block, so that an empty file is accounted for."""
    names: list[str] = []
    texts: list[bytes] = []
    lines: list[int] = []
    size, n_blocks = 0, 0
    for name, text, line in rows:
        names.append(name)
        texts.append(text)
        lines.append(line)
        size += len(text) + len(name)
        if size >= block_bytes:
            yield from_sequences(path, names, names, texts, lines)
            names, texts, lines, size = [], [], [], 0
            n_blocks += 1
    if names or not n_blocks:
        yield from_sequences(path, names, names, texts, lines)
