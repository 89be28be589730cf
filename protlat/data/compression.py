"""Read a file of any supported compression as plain blocks; the kind is told by its first bytes, not by its name."""

from __future__ import annotations

import bz2
import hashlib
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from protlat.errors import SequenceError

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_PLAIN_BYTES = 1 << 20
# Small reads of compressed data bound what one call can expand to (zlib: about 1000 times).
_COMPRESSED_BYTES = 1 << 16


def compression_of(first_bytes: bytes) -> str:
    """Name of the compression that a file starts with: gzip, bzip2, xz, zstd or none."""
    for magic, name in _MAGIC.items():
        if first_bytes.startswith(magic):
            return name
    return "none"


class ByteSource:
    """A file, or standard input for ``-``, as decompressed chunks.

    Parameters
    ----------
    path : str
    on_read : callable, optional
        Receives the number of raw (compressed) bytes of each read, for progress.
    hashed : bool
        Compute the SHA-256 of the raw bytes while reading.

    Attributes
    ----------
    compression : str
        Known once reading began.
    size_bytes : int
        Raw bytes read so far.
    """

    def __init__(self, path: str, on_read: Callable[[int], None] | None = None, hashed: bool = False) -> None:
        self.path = path
        self.compression = "none"
        self.size_bytes = 0
        self._on_read = on_read
        self._digest = hashlib.sha256() if hashed else None

    @property
    def sha256(self) -> str:
        """SHA-256 of the raw bytes read so far, "" unless asked for."""
        return self._digest.hexdigest() if self._digest else ""

    def chunks(self) -> Iterator[bytes]:
        """Decompressed bytes in order.

        Raises
        ------
        SequenceError
            The file cannot be read, its compressed data is damaged or ends too early.
        """
        try:
            if self.path == "-":
                yield from self._chunks(sys.stdin.buffer)
            else:
                with open(self.path, "rb") as handle:
                    yield from self._chunks(handle)
        except OSError as error:
            if isinstance(error, SequenceError):
                raise
            raise SequenceError(f"{self.path}: cannot be read: {error.strerror or error}") from None

    def _chunks(self, handle: BinaryIO) -> Iterator[bytes]:
        first = self._read(handle, _COMPRESSED_BYTES)
        self.compression = compression_of(first)
        if self.compression == "none":
            while first:
                yield first
                first = self._read(handle, _PLAIN_BYTES)
            return
        yield from self._decompressed(handle, first)

    def _read(self, handle: BinaryIO, n_bytes: int) -> bytes:
        data = handle.read(n_bytes)
        self.size_bytes += len(data)
        if self._digest:
            self._digest.update(data)
        if self._on_read:
            self._on_read(len(data))
        return data

    def _decompressed(self, handle: BinaryIO, data: bytes) -> Iterator[bytes]:
        """Members (gzip), streams (bzip2, xz) and frames (zstd) may follow each other, as bgzip and pigz write them."""
        engine: Any = self._engine()
        while data:
            try:
                out = engine.decompress(data)
            except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
                raise self._damaged(str(error)) from None
            except Exception as error:  # zstandard's own error class; the package is imported only for zstd files
                if type(error).__name__ != "ZstdError":
                    raise
                raise self._damaged(str(error)) from None
            if out:
                yield out
            data = b""
            if engine.eof:
                # Tape tools pad the end of a file with zero bytes.
                data = engine.unused_data.lstrip(b"\0") or self._read(handle, _COMPRESSED_BYTES).lstrip(b"\0")
                if data:
                    data = self._member(handle, data)
                    engine = self._engine()
            else:
                data = self._read(handle, _COMPRESSED_BYTES)
        if not engine.eof:
            raise SequenceError(
                f"{self.path}: the {self.compression} data ends too early after {self.size_bytes:,} bytes; the file is "
                "incomplete, probably a broken download or copy: fetch it again"
            )

    def _member(self, handle: BinaryIO, data: bytes) -> bytes:
        if len(data) < 6:
            data += self._read(handle, _COMPRESSED_BYTES)
        if compression_of(data) != self.compression:
            raise self._damaged("other bytes follow the end of the compressed data")
        return data

    def _damaged(self, detail: str) -> SequenceError:
        return SequenceError(f"{self.path}: damaged {self.compression} data near byte {self.size_bytes:,}: {detail}")

    def _engine(self) -> Any:
        if self.compression == "gzip":
            return zlib.decompressobj(wbits=31)
        if self.compression == "bzip2":
            return bz2.BZ2Decompressor()
        if self.compression == "xz":
            return lzma.LZMADecompressor()
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj()
