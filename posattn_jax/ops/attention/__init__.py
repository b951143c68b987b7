"""Relative attention: one operation, several implementations, one signature."""

from posattn_jax.ops.attention.api import Implementation, attend, relative_attention, scores_of
from posattn_jax.ops.attention.arguments import Factors, of_all_heads
from posattn_jax.ops.attention.decoding import Cache, cache_length, decode, table_shape
from posattn_jax.ops.attention.dilation import Cut
from posattn_jax.ops.attention.halo import attend_cut, exchange_bytes, halo_attention, whole_block
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.select import CUT_IMPLEMENTATIONS, IMPLEMENTATIONS, score_share
from posattn_jax.ops.attention.xla.reference import attention_weights, average

__all__ = [
    "CUT_IMPLEMENTATIONS",
    "IMPLEMENTATIONS",
    "Cache",
    "Cut",
    "Factors",
    "Implementation",
    "Problem",
    "attend",
    "attend_cut",
    "attention_weights",
    "average",
    "cache_length",
    "decode",
    "exchange_bytes",
    "halo_attention",
    "of_all_heads",
    "relative_attention",
    "score_share",
    "scores_of",
    "table_shape",
    "whole_block",
]
