"""Records of three lines: header, sequence, labels (TMbed, DeepTMHMM, SignalP)."""

from __future__ import annotations

from typing import Literal

from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.readers.base import RawSet, ReadContext, SourceConfig, located, read_lines, split_of
from protlat.tasks.readers.fasta import header_keys


class ThreeLineSource(SourceConfig):
    """Header, sequence and labels, each on one line."""

    kind: Literal["three_line"] = "three_line"

    def read(self, context: ReadContext, report: SequenceReport) -> RawSet:
        path = located(context.folder, self.path)
        found = RawSet(path)
        header, start = "", 0
        body: list[str] = []

        def close() -> None:
            if not start:
                return
            if len(body) != 2:
                raise SequenceError(
                    f"{path}:{start}: {header[:60]!r} is followed by {len(body)} lines; expected 2, the sequence and its labels"
                )
            words = header.split(maxsplit=1)
            name = words[0] if words else f"unnamed-{start}"
            keys = header_keys(header)
            split = split_of(keys.get("SET", ""), keys.get("VALIDATION", ""), f"{path}:{start}: {name}")
            found.add(name, body[0].encode("utf-8"), start, body[1], split, keys.get("MASK"))

        for number, line in enumerate(read_lines(path), start=1):
            text = line.strip()
            if text.startswith(">"):
                close()
                header, start, body = text[1:].strip(), number, []
            elif text and not start:
                raise SequenceError(f"{path}:{number}: expected a header that starts with '>', found {text[:40]!r}")
            elif text:
                body.append(text)
        close()
        if not len(found):
            raise SequenceError(f"{path}: no records; expected a header, the sequence and its labels on three lines")
        return found
