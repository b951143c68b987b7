"""Limits of how much a layout computes at once."""

from typing import Any

from jax.extend.backend import get_default_device

# The bytes of scores that are computed at once: they should stay in a CPU's cache, and fill an accelerator.
SCORE_BYTES = {"cpu": 2**21}
ACCELERATOR_SCORE_BYTES = 2**28


def examples(batch: Any) -> int:
    """The number of examples to choose sizes for: 1 for an empty batch, and for one whose size is symbolic."""
    return max(1, batch) if isinstance(batch, int) else 1


def score_bytes() -> int:
    """The bytes of scores to compute at once on this device."""
    return SCORE_BYTES.get(get_default_device().platform, ACCELERATOR_SCORE_BYTES)


def heads_at_once(num_heads: int, room: int) -> int:
    """The largest divisor of `num_heads` that is at most `room`; at least 1."""
    return max(count for count in range(1, num_heads + 1) if num_heads % count == 0 and count <= max(1, room))
