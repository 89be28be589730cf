"""Codes of residues and bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protlat.alphabet import BYTES, PROTEIN, Alphabet, load_tokenizer
from protlat.errors import ConfigError, SequenceError


def test_ids_are_those_of_esm2() -> None:
    # Ids as the ESM-2 checkpoints of the transformers library list them in vocab.txt.
    assert len(PROTEIN) == 33
    assert (PROTEIN.cls_id, PROTEIN.pad_id, PROTEIN.eos_id, PROTEIN.unk_id, PROTEIN.mask_id) == (0, 1, 2, 3, 32)
    assert PROTEIN.encode("LAGVSERTIDPKQNFYMHWCXBUZO.-").tolist() == list(range(4, 31))


def test_mask_and_unknown_and_case() -> None:
    assert PROTEIN.encode("M<mask>k?").tolist() == [20, 32, 15, 3]
    assert PROTEIN.encode(b"<mask><mask>").tolist() == [32, 32]
    assert PROTEIN.decode([20, 32, 15]) == "M<mask>K"
    with pytest.raises(SequenceError, match="position 2 is not ASCII"):
        PROTEIN.encode("MÄ")


def test_random_replacements_are_the_twenty_residues() -> None:
    assert PROTEIN.decode(PROTEIN.replacement_ids) == "LAGVSERTIDPKQNFYMHWC"
    assert set(PROTEIN.special_ids) == {0, 1, 2, 3, 31, 32}


@given(st.text(max_size=50).filter(lambda text: "<mask>" not in text))
def test_bytes_round_trip(text: str) -> None:
    ids = BYTES.encode(text)
    assert ids.dtype == np.uint16
    assert BYTES.decode(ids) == text


def test_byte_specials_do_not_collide_with_bytes() -> None:
    assert min(BYTES.special_ids) == 256
    assert BYTES.encode("a<mask>b").tolist() == [97, BYTES.mask_id, 98]


def test_plain_form_round_trips() -> None:
    for alphabet in (PROTEIN, BYTES):
        assert Alphabet.from_plain(alphabet.to_plain()) == alphabet
    with pytest.raises(ConfigError, match="unknown"):
        Alphabet.from_plain({"name": "klingon"})
    with pytest.raises(ConfigError, match="33 tokens here but 34"):
        Alphabet.from_plain({"name": "protein", "n_tokens": 34})


def test_hugging_face_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<cls>": 0, "<pad>": 1, "<eos>": 2, "<unk>": 3, "hello": 4, "world": 5, "<mask>": 6}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    alphabet = load_tokenizer(str(path))
    assert alphabet.encode("hello there world").tolist() == [4, 3, 5]
    assert (alphabet.mask_id, len(alphabet)) == (6, 7)
    assert Alphabet.from_plain(alphabet.to_plain()).encode("world").tolist() == [5]
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"not a Hugging Face tokenizer\.json"):
        load_tokenizer(str(path))


def test_tokenizer_without_a_mask_is_refused(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<cls>": 0, "<pad>": 1, "<eos>": 2, "<unk>": 3}
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")).save(str(path))
    with pytest.raises(ConfigError, match=r"no mask token .*<mask>"):
        load_tokenizer(str(path))
