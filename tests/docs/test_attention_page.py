"""Every Python block of docs/attention.md runs, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def test_the_code_of_the_attention_page_runs() -> None:
    text = (DOCS / "attention.md").read_text(encoding="utf-8")
    blocks = list(_BLOCK.finditer(text))
    assert len(blocks) >= 8
    namespace: dict[str, Any] = {}
    for block in blocks:
        # As many empty lines before it as in the page, so that a traceback names the page's line.
        before = "\n" * (text.count("\n", 0, block.start(1)))
        exec(compile(before + block.group(1), str(DOCS / "attention.md"), "exec"), namespace)


def test_what_the_page_links_to_is_there() -> None:
    text = (DOCS / "attention.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (DOCS / target).is_file(), target
