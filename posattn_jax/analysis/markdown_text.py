"""Numbers, text and tables in Markdown."""

import html
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from posattn_jax.analysis.statistics import Interval


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header and rows."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(text: str) -> str:
    """The text with Markdown and HTML escaped."""
    return re.sub(r"([\\`*_])", r"\\\1", html.escape(text, quote=False))


def on_terminal(text: str) -> str:
    """A line of `plain` texts and bold words, without any Markdown."""
    return html.unescape(re.sub(r"\\([\\`*_])", r"\1", text.replace("**", "")))


def number(p: float, digits: int = 4) -> str:
    """A p-value as text: "-" for NaN, and a bound if it is near 0 or 1."""
    if math.isnan(p):
        return "-"
    if p < 0.001:
        return "< .001"
    return "> .99" if p > 0.99 else f"{p:.{digits}f}".lstrip("0")


def p_is(p: float) -> str:
    """A p-value in a sentence: "p = .0123", "p < .001"."""
    return f"p {number(p)}" if number(p)[0] in "<>" else f"p = {number(p)}"


def figure(value: float, form: str = "{:.4f}") -> str:
    """A number in the given format; "-" for NaN."""
    return "-" if math.isnan(value) else form.format(value).replace("inf", "∞")


def interval_text(interval: Interval, form: str) -> str:
    """The ends of an interval in the given format; "-" if it is undefined."""
    return "-" if math.isnan(interval.low) else f"{figure(interval.low, form)} to {figure(interval.high, form)}"


def mean_and_error(values: Sequence[float], form: str) -> str:
    """The mean in the given format, with its standard error if there are several values; "-" if there are none."""
    if not values:
        return "-"
    mean = form.format(np.mean(values))
    return mean if len(values) < 2 else f"{mean} ± {form.format(np.std(values, ddof=1) / len(values) ** 0.5)}"
