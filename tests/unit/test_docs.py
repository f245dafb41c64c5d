"""The links of README.md, SECURITY.md and docs/ lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def sentences() -> str:
    """The texts in the code, and in the programs of playbooks; what a text is filled with is `_`."""
    found = []
    for file in [*(ROOT / "mnt").rglob("*.py"), *(ROOT / "playbooks" / "tasks").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "_" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub("%[ds]", "_", node.value))
    return "\n".join(found)


def test_troubleshooting_quotes_what_mnt_says() -> None:
    rows = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").splitlines()
    symptoms = [row.split("|")[1] for row in rows if row.startswith("| ")]
    quoted = [text.removesuffix("..").strip() for row in symptoms for text in re.findall("`([^`]+)`", row)]
    said = sentences().lower()
    filled = r"\b(bash|15|29500|host key|memlock|8192|KiB|nofile|1024|files)\b"
    phrases = [re.sub(filled, "_", text) for text in quoted if " " in text]
    assert len(phrases) > 5
    assert [text for text in phrases if text.lower().removeprefix("_: ") not in said] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
