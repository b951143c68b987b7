"""Text and tables in Markdown."""

import html
import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Header and rows."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(text: str) -> str:
    """Text in which nothing is Markdown or HTML."""
    return re.sub(r"([\\`*_])", r"\\\1", html.escape(text, quote=False))
