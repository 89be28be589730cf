"""Sequences to compute on: FASTA files or shard folders, read as a stream, as often as needed, always alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.policies import SequencePolicy
from protlat.data.records import SequenceReport, SkippedRecord
from protlat.errors import ConfigError, SequenceError, ShardError
from protlat.inference.naming import NameRegistry
from protlat.inference.parts import Row
from protlat.inference.settings import LongConfig

_REPORT_EVERY = 1000
# Identifier, name to prefer in the output, header, token ids, source.
_Raw = tuple[str, str, str, np.ndarray, str]


@dataclass(frozen=True)
class InputSequence:
    """One sequence, ready for the model.

    Attributes
    ----------
    row : Row
        Names, length and hash.
    ids : numpy.ndarray, shape (L,), unsigned integers
        Tokens without specials.
    source : str
        ``FILE:LINE``, or ``FOLDER/SPLIT:INDEX`` for shards.
    """

    row: Row
    ids: np.ndarray
    source: str


@dataclass
class InputAccount:
    """Mutable counts of one pass over the input.

    Attributes
    ----------
    report : SequenceReport
        What the reader changed or left out.
    n_sequences, n_residues : int
        Handed on.
    n_cut, n_residues_cut : int
        Sequences shortened by ``--long cut``, and the residues they lost.
    n_windowed : int
        Sequences that ``--long window`` takes apart.
    n_too_long : int
        Sequences left out by ``--long skip``.
    n_duplicate_ids : int
        Sequences whose identifier had come before; they are kept under a name of their own.
    longest, longest_name : int, str
        The longest sequence handed on.
    length_counts : dict of int to int
        Sequences by the power of two that their length lies below.
    on_cut : callable or None
        Receives a record for each sequence that lost residues.
    """

    report: SequenceReport = field(default_factory=SequenceReport)
    n_sequences: int = 0
    n_residues: int = 0
    n_cut: int = 0
    n_residues_cut: int = 0
    n_windowed: int = 0
    n_too_long: int = 0
    n_duplicate_ids: int = 0
    longest: int = 0
    longest_name: str = ""
    length_counts: dict[int, int] = field(default_factory=dict)
    on_cut: Callable[[SkippedRecord], None] | None = None

    @classmethod
    def silent(cls) -> InputAccount:
        """For a further pass, whose findings are known already."""
        return cls(SequenceReport(on_skip=lambda record: None))

    @property
    def n_unknown(self) -> int:
        return sum(self.report.unknown.values())

    @property
    def n_skipped(self) -> int:
        return sum(self.report.reasons.values())


@dataclass(frozen=True)
class SequenceInput:
    """FASTA files and shard folders in a fixed order.

    Parameters
    ----------
    paths : sequence of str
    alphabet : Alphabet
        Of the model; shards must have been made with it.
    policy : SequencePolicy
        How FASTA residues are cleaned.
    long : LongConfig
        What is cut or left out for its length.
    split : str or None
        Split of shard folders; None takes all.
    """

    paths: Sequence[str]
    alphabet: Alphabet
    policy: SequencePolicy
    long: LongConfig = field(default_factory=LongConfig)
    split: str | None = None

    def stream(self, account: InputAccount) -> Iterator[InputSequence]:
        """Every sequence in order; counts go to `account`.

        Raises
        ------
        SequenceError, ShardError
            The input cannot be read or breaks a policy.
        ConfigError
            FASTA for a model of documents.
        """
        names = NameRegistry()
        threshold = self.long.threshold
        for identifier, wanted_name, header, ids, source in self._raw(account.report):
            if threshold is not None and len(ids) > threshold:
                if self.long.policy == "skip":
                    account.n_too_long += 1
                    _skip(account, source, identifier, f"{len(ids)} residues, --max-length {threshold}")
                    continue
                if self.long.policy == "cut":
                    account.n_cut += 1
                    if account.on_cut is not None:
                        file, _, line = source.rpartition(":")
                        detail = f"cut: the first {threshold} of {len(ids)} residues kept"
                        account.on_cut(SkippedRecord(file, int(line), identifier, detail))
                    account.n_residues_cut += len(ids) - threshold
                    ids = ids[:threshold]
                else:
                    account.n_windowed += 1
            name = names.unique(wanted_name)
            account.n_duplicate_ids = names.n_duplicates
            self._count(account, name, len(ids))
            digest = hashlib.sha256(self._text(ids)).hexdigest()
            yield InputSequence(Row(name, identifier, header, len(ids), digest), ids, source)

    @cached_property
    def _letters(self) -> np.ndarray:
        """ASCII code of each id; 0 for tokens that are no single character."""
        if self.alphabet.name == "bytes":
            return np.where(np.arange(len(self.alphabet)) < 256, np.arange(len(self.alphabet)), 0).astype(np.uint8)
        return np.array([ord(t) if len(t) == 1 and t.isascii() else 0 for t in self.alphabet.tokens], dtype=np.uint8)

    def _count_unknown(self, ids: np.ndarray, report: SequenceReport) -> None:
        """Letters beyond the standard residues; FASTA is counted by its reader."""
        if self.alphabet.name != "protein":
            return
        odd = ids[~self._standard[ids]]
        for code in odd.tolist():
            if code != self.alphabet.mask_id:
                report.unknown[self.alphabet.tokens[code]] += 1

    @cached_property
    def _standard(self) -> np.ndarray:
        """Whether each id is a residue that can be predicted."""
        return np.isin(np.arange(len(self.alphabet)), self.alphabet.replacement_ids)

    def _text(self, ids: np.ndarray) -> bytes:
        """The sequence as written, which is what its hash is taken of."""
        letters = self._letters[ids]
        return letters.tobytes() if letters.all() else self.alphabet.decode(ids).encode()

    @staticmethod
    def _count(account: InputAccount, name: str, length: int) -> None:
        account.n_sequences += 1
        account.n_residues += length
        if length > account.longest:
            account.longest, account.longest_name = length, name
        upper = 1 << length.bit_length()
        account.length_counts[upper] = account.length_counts.get(upper, 0) + 1

    def _raw(self, report: SequenceReport) -> Iterator[_Raw]:
        for path in self.paths:
            if Path(path).is_dir():
                yield from self._shards(path, report)
            else:
                yield from self._fasta(path, report)

    def _fasta(self, path: str, report: SequenceReport) -> Iterator[_Raw]:
        from protlat.data.fasta import stream_sequences

        if self.alphabet.name != "protein":
            raise ConfigError(
                f"{path}: this model reads {self.alphabet.name}, not residues; give it a shard folder made by protlat prep"
            )
        for record in stream_sequences([path], self.policy, report):
            yield (
                record.identifier,
                record.identifier,
                record.header,
                self.alphabet.encode(record.residues),
                record.source,
            )

    def _shards(self, path: str, report: SequenceReport) -> Iterator[_Raw]:
        from protlat.data.shards import ShardReader, read_manifest

        splits = list(read_manifest(path).splits)
        if self.split is not None:
            if self.split not in splits:
                raise ShardError(f"{path}: no split {self.split!r}; it has {', '.join(splits)}")
            splits = [self.split]
        for split in splits:
            reader = ShardReader(path, split, verify=True)
            if reader.alphabet.tokens != self.alphabet.tokens:
                raise ShardError(
                    f"{path}: made with the alphabet {reader.alphabet.name!r} of {len(reader.alphabet)} tokens, but the "
                    f"model reads {self.alphabet.name!r} of {len(self.alphabet)}"
                )
            for index in range(len(reader)):
                # Fixed-length shards end short sequences with padding, which is no part of them.
                ids = np.asarray(reader.tokens(index))[: int(reader.lengths[index])]
                report.n_records += 1
                report.n_kept += 1
                report.n_residues_in += len(ids)
                report.n_residues_kept += len(ids)
                self._count_unknown(ids, report)
                identifier, start = reader.id(index), int(reader.window_starts[index])
                # Later windows of a cut record are named by their residues, 1-based.
                name = f"{identifier}:{start + 1}-{start + len(ids)}" if start else identifier
                yield identifier, name, reader.header(index), ids, f"{path}/{split}:{index}"


def _skip(account: InputAccount, source: str, identifier: str, detail: str) -> None:
    file, _, line = source.rpartition(":")
    account.report.skip(file, int(line), identifier, "longer than --max-length", detail)


def survey(source: SequenceInput, account: InputAccount, on_sequences: Callable[[int], None] = lambda n: None) -> str:
    """Read the whole input once before any computing: faults stop the run now, and totals give the time left.

    Returns
    -------
    str
        SHA-256 over identifiers, headers and residues in order: what a resumed run must find again.

    Raises
    ------
    SequenceError
        Nothing is left to compute on, or the input breaks a policy.
    """
    digest = hashlib.sha256()
    for sequence in source.stream(account):
        if account.n_sequences % _REPORT_EVERY == 0:
            on_sequences(_REPORT_EVERY)
        row = sequence.row
        digest.update(
            f"{row.name}\0{row.header}\0{row.length}\0{row.sequence_sha256}\n".encode("utf-8", "surrogateescape")
        )
    if account.n_sequences == 0:
        reasons = ", ".join(f"{count} {reason}" for reason, count in account.report.reasons.most_common(4))
        raise SequenceError(f"{', '.join(source.paths)}: no sequence to work on ({reasons or 'no records'})")
    return digest.hexdigest()


def partition(
    stream: Iterator[InputSequence], tokens_per_part: int, specials: int = 2
) -> Iterator[tuple[int, list[InputSequence]]]:
    """Consecutive sequences in numbered parts of at most `tokens_per_part` tokens; a longer one is a part of its own.

    Depends on the stream alone, never on who computes which part.
    """
    index, used = 0, 0
    part: list[InputSequence] = []
    for sequence in stream:
        n_tokens = sequence.row.length + specials
        if part and used + n_tokens > tokens_per_part:
            yield index, part
            index, part, used = index + 1, [], 0
        part.append(sequence)
        used += n_tokens
    if part:
        yield index, part
