"""Relative attention: one operation, several layouts, one signature."""

from posattn_jax.ops.attention.api import Implementation, relative_attention
from posattn_jax.ops.attention.auto import score_share

__all__ = ["Implementation", "relative_attention", "score_share"]
