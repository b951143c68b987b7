"""Layout "dense": the sums of the reference, looped over rows of queries. No N x N x d tensor, and little memory.

A row is a run of queries along the first dimension. Its positional scores are (q + v) E^T over the offsets the row
meets, one matrix product, then shifted so that column s holds offset s - t. Of a row only its outputs and two
statistics of its softmax are kept: the backward pass computes the weights again.
"""

from posattn_jax.axes import Query, Weights
from posattn_jax.ops.attention.loop import attend
from posattn_jax.ops.attention.problem import Problem
from posattn_jax.ops.attention.row_loop import RowLoop
from posattn_jax.ops.attention.rows import choose_rows


def dense_attention(problem: Problem) -> tuple[Query, Weights | None]:
    """Outputs [b t h d], and the weights [b h t s] where asked for."""
    return attend(problem, [row_loop(problem)])


def row_loop(problem: Problem) -> RowLoop:
    """The loop for the rows and heads that are best computed at once."""
    b, _, h, _ = problem.query.shape
    all_heads = problem.return_weights or problem.dropout_rate > 0
    rows, heads = choose_rows(problem.grid_shape, b, h, problem.dtype.itemsize, all_heads, problem.query_shape[0])
    return RowLoop(problem, rows, heads)
