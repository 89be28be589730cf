"""Files with damaged bytes: read, or refused in one line; never another exception."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protlat.errors import ProtlatError
from protlat.tasks.load import LoadedTask
from tests.tasks.tools import FILES, one_file

TABLE = (
    b'id,seq,label,set,validation\na,ACDEFGHIKL,HHHHHEEEEE,train,\nb,"ACDEF",HHECC,train,True\nc,ACDEFG,HHECCC,test,\n'
)
CASES: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "headers": (b">a TARGET=x SET=train\nACDEF\n>b TARGET=y SET=train VALIDATION=True\nCDEFG\n>c TARGET=x SET=test\nACD\n", "fasta", {}),
    "words": ((FILES / "locations.fasta").read_bytes(), "fasta", {"source": {"word": 1, "pattern": "^(.+)-[MSU]$"}}),
    "residues": (TABLE, "table", {"type": "residue_class"}),
    "values": (TABLE.replace(b"HHHHHEEEEE", b"1.5").replace(b"HHECC", b"2"), "table", {"type": "sequence_value"}),
    "several": ((FILES / "enzymes.tsv").read_bytes(), "table", {"type": "sequence_multilabel", "source": {"label": "EC number"}}),
    "three lines": ((FILES / "topology.3line").read_bytes(), "three_line", {"type": "residue_class"}),
    "marks": ((FILES / "marked.fasta").read_bytes(), "marked", {"type": "residue_class", "source": {"marked_residues": "Y"}}),
    "variants": (b"mutant,score\nH24C,1\nP25A:L28V,2\n", "variants", {"type": "sequence_value", "wild_type": "HPETL", "offset": 24}),
}  # fmt: skip
PLACES = st.tuples(st.integers(0, 1 << 16), st.sampled_from(["change", "drop", "insert", "cut"]), st.integers(0, 255))


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=60, deadline=None)
@given(st.lists(PLACES, max_size=6), st.sampled_from(["error", "skip"]))
def test_damaged_files(case: str, damage: list[tuple[int, str, int]], inconsistent: str) -> None:
    raw, kind, values = CASES[case]
    data = bytearray(raw)
    for place, action, byte in damage:
        here = place % (len(data) + 1)
        if action == "cut":
            del data[here:]
        elif action == "insert":
            data[here:here] = bytes([byte])
        elif here < len(data):
            data[here : here + 1] = bytes([byte]) if action == "change" else b""
    with tempfile.TemporaryDirectory() as folder:
        try:
            loaded: LoadedTask | None = one_file(
                Path(folder), bytes(data), kind, neighbours=True, inconsistent=inconsistent, **values
            )
        except ProtlatError as error:
            message, loaded = str(error), None
    if loaded is None:
        assert message
        assert "\n" not in message
        return
    for split in loaded.data.splits.values():
        if loaded.data.is_per_residue:
            assert [len(ids) for ids in split.ids] == [len(labels) for labels in split.labels]  # type: ignore[arg-type]  # arrays
        assert len(split.names) == len(split.ids) == len(split.labels)
