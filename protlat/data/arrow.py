"""Arrow arrays straight from buffers.

`pyarrow.array` and `Array.to_numpy` import pandas, where it is installed, to see whether it has a part in the matter: half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from protlat.data.records import Texts

if TYPE_CHECKING:
    import pyarrow as pa


def as_arrow(values: np.ndarray) -> pa.Array:
    """A numeric array without nulls; no copy where it is contiguous."""
    import pyarrow as pa

    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def texts_as_arrow(texts: Texts) -> pa.StringArray:
    """UTF-8 strings; only the offsets are copied."""
    import pyarrow as pa

    offsets = pa.py_buffer(texts.offsets.astype(np.int32))
    return pa.StringArray.from_buffers(len(texts), offsets, pa.py_buffer(texts.data))


def strings(items: list[str]) -> pa.StringArray:
    """A list of strings."""
    return texts_as_arrow(Texts.of([item.encode() for item in items]))


def empty_strings(n_rows: int) -> pa.StringArray:
    """As many empty strings, without a Python object for each."""
    return texts_as_arrow(Texts(b"", np.zeros(n_rows + 1, dtype=np.int64)))


def as_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A numeric column without nulls as a read-only view; chunks are joined first."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    dtype = np.dtype(column.type.to_pandas_dtype())
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(data, dtype=dtype, count=len(column), offset=column.offset * dtype.itemsize)
