"""Relative attention: one operation, several implementations, one signature."""

from posattn_jax.ops.attention.api import Implementation as Implementation
from posattn_jax.ops.attention.api import attend as attend
from posattn_jax.ops.attention.api import relative_attention as relative_attention
from posattn_jax.ops.attention.api import scores_of as scores_of
from posattn_jax.ops.attention.arguments import Factors as Factors
from posattn_jax.ops.attention.arguments import of_all_heads as of_all_heads
from posattn_jax.ops.attention.decoding import Cache as Cache
from posattn_jax.ops.attention.decoding import cache_length as cache_length
from posattn_jax.ops.attention.decoding import decode as decode
from posattn_jax.ops.attention.decoding import table_shape as table_shape
from posattn_jax.ops.attention.dilation import Cut as Cut
from posattn_jax.ops.attention.halo import attend_cut as attend_cut
from posattn_jax.ops.attention.halo import exchange_bytes as exchange_bytes
from posattn_jax.ops.attention.halo import halo_attention as halo_attention
from posattn_jax.ops.attention.halo import whole_block as whole_block
from posattn_jax.ops.attention.problem import Problem as Problem
from posattn_jax.ops.attention.select import CUT_IMPLEMENTATIONS as CUT_IMPLEMENTATIONS
from posattn_jax.ops.attention.select import IMPLEMENTATIONS as IMPLEMENTATIONS
from posattn_jax.ops.attention.select import score_share as score_share
from posattn_jax.ops.attention.xla.reference import attention_weights as attention_weights
from posattn_jax.ops.attention.xla.reference import average as average
