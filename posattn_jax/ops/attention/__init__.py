"""Relative attention: one operation, several layouts, one signature."""

from posattn_jax.ops.attention.api import LAYOUTS, Implementation, relative_attention
from posattn_jax.ops.attention.auto import score_share
from posattn_jax.ops.attention.factorised import factorised_pays, sinusoidal_attention
from posattn_jax.ops.attention.weights import attention_weights

__all__ = [
    "LAYOUTS",
    "Implementation",
    "attention_weights",
    "factorised_pays",
    "relative_attention",
    "score_share",
    "sinusoidal_attention",
]
