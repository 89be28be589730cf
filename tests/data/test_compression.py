"""Every compression by content, whole and broken."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from protlat.data.compression import ByteSource, compression_of
from protlat.errors import SequenceError

TEXT = b"".join(b">r%d\nMKVLAAGIVG%d\n" % (i, i * 7919) for i in range(20_000))
COMPRESS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstandard.compress}


@pytest.mark.parametrize("name", [*COMPRESS, "none"])
def test_content_and_facts(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(COMPRESS.get(name, bytes)(TEXT))
    reads: list[int] = []
    source = ByteSource(str(path), reads.append, hashed=True)
    assert b"".join(source.chunks()) == TEXT
    assert source.compression == name
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sum(reads) == source.size_bytes == path.stat().st_size


@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
def test_members_end_to_end_and_padding(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "data"
    path.write_bytes(compress(TEXT) + compress(b"more") + bytes(100_000))
    assert b"".join(ByteSource(str(path)).chunks()) == TEXT + b"more"


@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
@pytest.mark.parametrize("part", [0.3, 0.999])
def test_truncated(tmp_path: Path, compress: Callable[[bytes], bytes], part: float) -> None:
    path = tmp_path / "data"
    whole = compress(TEXT)
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(SequenceError, match=r"data: the .* data ends too early .* incomplete"):
        list(ByteSource(str(path)).chunks())


@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
def test_damaged(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "data"
    # zstd frames carry a checksum only when asked for.
    checked = zstandard.ZstdCompressor(write_checksum=True).compress
    whole = bytearray(checked(TEXT) if compress is zstandard.compress else compress(TEXT))
    middle = len(whole) // 2
    whole[middle : middle + 64] = bytes(64)
    path.write_bytes(whole)
    with pytest.raises(SequenceError, match=r"data: damaged|ends too early"):
        list(ByteSource(str(path)).chunks())


def test_other_bytes_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(gzip.compress(TEXT) + b"surprise")
    with pytest.raises(SequenceError, match="other bytes follow the end"):
        list(ByteSource(str(path)).chunks())


def test_missing_file_and_unknown_magic(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match="cannot be read: No such file"):
        list(ByteSource(str(tmp_path / "none")).chunks())
    assert compression_of(b">a") == "none"
