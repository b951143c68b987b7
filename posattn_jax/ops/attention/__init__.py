"""Relative attention: one operation, several layouts, one signature."""

from posattn_jax.ops.attention.api import Implementation, relative_attention

__all__ = ["Implementation", "relative_attention"]
