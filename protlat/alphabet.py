"""Residues, bytes and special tokens <-> integer codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from protlat.errors import ConfigError, SequenceError

# Order of ESM-2's vocabulary (fair-esm, `Alphabet.from_architecture("ESM-1b")`), so that ids are interchangeable.
_ESM2_TOKENS = (
    "<cls>", "<pad>", "<eos>", "<unk>",
    *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
    "<null_1>", "<mask>",
)  # fmt: skip
STANDARD_RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


@dataclass(frozen=True)
class Alphabet:
    """A vocabulary whose first-class members are single symbols (residues or bytes) and a few specials.

    Parameters
    ----------
    name : str
        "protein", "bytes" or "tokenizer".
    tokens : tuple of str
        Token at each id.
    cls_token, pad_token, eos_token, unk_token, mask_token : str
        Names of the specials inside `tokens`.
    tokenizer_json : str
        Text of a Hugging Face ``tokenizer.json`` when the alphabet is one, else "".
    """

    name: str
    tokens: tuple[str, ...]
    cls_token: str = "<cls>"
    pad_token: str = "<pad>"
    eos_token: str = "<eos>"
    unk_token: str = "<unk>"
    mask_token: str = "<mask>"
    tokenizer_json: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    @property
    def cls_id(self) -> int:
        return self.ids[self.cls_token]

    @property
    def pad_id(self) -> int:
        return self.ids[self.pad_token]

    @property
    def eos_id(self) -> int:
        return self.ids[self.eos_token]

    @property
    def unk_id(self) -> int:
        return self.ids[self.unk_token]

    @property
    def mask_id(self) -> int:
        return self.ids[self.mask_token]

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids that are never masked, predicted or used as a random replacement."""
        specials = {self.cls_token, self.pad_token, self.eos_token, self.unk_token, self.mask_token, "<null_1>"}
        return tuple(sorted(self.ids[token] for token in specials if token in self.ids))

    @cached_property
    def replacement_ids(self) -> tuple[int, ...]:
        """Ids that random replacement and prediction tables draw from: the 20 residues, or every non-special token."""
        if self.name == "protein":
            return tuple(sorted(self.ids[residue] for residue in STANDARD_RESIDUES))
        specials = set(self.special_ids)
        return tuple(index for index in range(len(self)) if index not in specials)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Narrowest unsigned type that holds every id."""
        return np.dtype(np.uint8 if len(self) <= 256 else np.uint16)

    @cached_property
    def byte_table(self) -> np.ndarray:
        """Id of each byte value, shape (256,); bytes outside the alphabet map to ``unk_id``."""
        table = np.full(256, self.unk_id, dtype=self.dtype)
        if self.name == "bytes":
            table[:] = np.arange(256, dtype=self.dtype)
        else:
            for token, index in self.ids.items():
                if len(token) == 1 and ord(token) < 128:
                    table[ord(token)] = index
                    table[ord(token.lower())] = index
        return table

    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids of a sequence without adding ``<cls>`` or ``<eos>``; ``<mask>`` in the text is one token.

        Returns
        -------
        numpy.ndarray, shape (L,), uint8 or uint16

        Raises
        ------
        SequenceError
            Protein text with a character beyond ASCII.
        """
        if self.name == "tokenizer":
            text = text.decode("utf-8") if isinstance(text, bytes) else text
            return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=self.dtype)
        if isinstance(text, str):
            try:
                raw = text.encode("ascii" if self.name == "protein" else "utf-8")
            except UnicodeEncodeError as error:
                raise SequenceError(
                    f"character {text[error.start]!r} at position {error.start + 1} is not ASCII"
                ) from None
        else:
            raw = text
        mask = self.mask_token.encode()
        if mask not in raw:
            return self.byte_table[np.frombuffer(raw, dtype=np.uint8)]
        pieces: list[np.ndarray] = []
        for index, part in enumerate(raw.split(mask)):
            if index:
                pieces.append(np.array([self.mask_id], dtype=self.dtype))
            pieces.append(self.byte_table[np.frombuffer(part, dtype=np.uint8)])
        return np.concatenate(pieces)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; specials are written by name."""
        if self.name == "bytes":
            raw = b"".join(bytes([i]) if i < 256 else self.tokens[i].encode() for i in map(int, ids))
            return raw.decode("utf-8", errors="replace")
        if self.name == "tokenizer":
            return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))
        return "".join(self.tokens[int(i)] for i in ids)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer_json)

    def to_plain(self) -> dict[str, Any]:
        """What a manifest or a model's config stores."""
        if self.name != "tokenizer":
            return {"name": self.name, "n_tokens": len(self)}
        names = ("cls_token", "pad_token", "eos_token", "unk_token", "mask_token", "tokenizer_json")
        return {"name": self.name, "n_tokens": len(self), **{name: getattr(self, name) for name in names}}

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Alphabet:
        """Inverse of `to_plain`.

        Raises
        ------
        ConfigError
            An unknown name, or a size that does not match this version's alphabet.
        """
        values = dict(values)
        name, n_tokens = values.pop("name", None), values.pop("n_tokens", None)
        if name == "tokenizer":
            alphabet = _from_tokenizer_text(**values)
        elif name in ("protein", "bytes"):
            alphabet = PROTEIN if name == "protein" else BYTES
        else:
            raise ConfigError(f"alphabet {name!r} is unknown; known: protein, bytes, tokenizer")
        if n_tokens is not None and n_tokens != len(alphabet):
            raise ConfigError(f"alphabet {name!r} has {len(alphabet)} tokens here but {n_tokens} in the file")
        return alphabet


PROTEIN = Alphabet("protein", _ESM2_TOKENS)
BYTES = Alphabet("bytes", (*(f"<0x{i:02X}>" for i in range(256)), "<cls>", "<pad>", "<eos>", "<unk>", "<mask>"))

_SPECIAL_NAMES = {
    "cls_token": ("<cls>", "[CLS]", "<s>", "<bos>"),
    "pad_token": ("<pad>", "[PAD]"),
    "eos_token": ("<eos>", "[SEP]", "</s>", "<|endoftext|>"),
    "unk_token": ("<unk>", "[UNK]"),
    "mask_token": ("<mask>", "[MASK]"),
}


def load_tokenizer(path: str) -> Alphabet:
    """Alphabet from a Hugging Face ``tokenizer.json`` file.

    Raises
    ------
    ConfigError
        The file cannot be read, is not a tokenizer, has over 65,536 tokens, or lacks a special token.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a tokenizer: {error}") from None
    return _from_tokenizer_text(text, where=path)


def _from_tokenizer_text(tokenizer_json: str, where: str = "tokenizer", **names: str) -> Alphabet:
    from tokenizers import Tokenizer

    try:
        vocabulary = Tokenizer.from_str(tokenizer_json).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises bare Exception for any malformed file
        raise ConfigError(f"{where}: not a Hugging Face tokenizer.json: {error}") from None
    size = max(vocabulary.values(), default=-1) + 1
    if size > 65_536:
        raise ConfigError(f"{where}: {size} tokens; at most 65,536 fit the shard format")
    tokens = [f"<unused_{index}>" for index in range(size)]
    for token, index in vocabulary.items():
        tokens[index] = token
    chosen = {}
    for role, options in _SPECIAL_NAMES.items():
        wanted = (names[role],) if role in names else options
        found = [option for option in wanted if option in vocabulary]
        if not found:
            raise ConfigError(
                f"{where}: no {role.replace('_', ' ')} among its tokens; expected one of {', '.join(wanted)}"
            )
        chosen[role] = found[0]
    return Alphabet("tokenizer", tuple(tokens), tokenizer_json=tokenizer_json, **chosen)
