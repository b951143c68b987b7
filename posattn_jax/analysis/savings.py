"""What a run's learned spans saved, in words, for its last lines of output and its picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def what_spans_saved(summary: Mapping[str, Any]) -> list[str]:
    """Describes the share of all pairs inside a run's spans and, if it was measured, the speed of its updates.

    Example:
      >>> shares = {"initial_pair_share": {"block_0": 0.66}, "pair_share": {"block_0": 0.4}}
      >>> speeds = {"span_saving": {"with_span": 12.0, "without_span": 8.0}}
      >>> print(*what_spans_saved({**shares, "score_share": {"block_0": 0.5}, **speeds}), sep="\\n")
      pairs inside the spans: 40.0 %, at first 66.0 %; computed: 50.0 %
      updates a second: 12 with the spans, 8 without a span: 1.50 times as fast
    """
    lines = []
    if blocks := summary["initial_pair_share"]:
        names = ("pair_share", "initial_pair_share", "score_share")
        inside, at_first, computed = (100 * np.mean([summary[name][block] for block in blocks]) for name in names)
        lines.append(f"pairs inside the spans: {inside:.1f} %, at first {at_first:.1f} %; computed: {computed:.1f} %")
    if "span_saving" in summary:
        rate, without = (summary["span_saving"][name] for name in ("with_span", "without_span"))
        times = f"{rate / without:.2f} times as fast"
        lines.append(f"updates a second: {rate:.3g} with the spans, {without:.3g} without a span: {times}")
    return lines
