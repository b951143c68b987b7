"""Relative attention: one operation, several layouts, one signature."""

from posattn_jax.ops.attention.api import LAYOUTS, Implementation, relative_attention
from posattn_jax.ops.attention.auto import score_share
from posattn_jax.ops.attention.factorised import factorised_pays, sinusoidal_attention
from posattn_jax.ops.attention.halo import CUT_LAYOUTS, exchange_bytes, halo_attention
from posattn_jax.ops.attention.weights import attention_weights

__all__ = [
    "CUT_LAYOUTS",
    "LAYOUTS",
    "Implementation",
    "attention_weights",
    "exchange_bytes",
    "factorised_pays",
    "halo_attention",
    "relative_attention",
    "score_share",
    "sinusoidal_attention",
]
