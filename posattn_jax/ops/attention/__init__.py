"""Relative attention: one operation, several layouts, one signature."""

from posattn_jax.ops.attention.api import LAYOUTS, Implementation, relative_attention
from posattn_jax.ops.attention.auto import score_share
from posattn_jax.ops.attention.factorised import factorised_pays, sinusoidal_attention

__all__ = [
    "LAYOUTS",
    "Implementation",
    "factorised_pays",
    "relative_attention",
    "score_share",
    "sinusoidal_attention",
]
