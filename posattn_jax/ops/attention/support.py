"""What a problem may ask for, and the error for what is not supported; what an implementation lacks: `select.py`."""

from posattn_jax.ops.attention.problem import Problem

# What a problem may ask for, in the words of errors.
PAIRWISE = "class tokens, or parts that are by pair"
BY_PAIR = "mask, bias or other scores of pairs"
CUT = "a grid that is cut over devices"
CAUSAL_AXES = "is_causal of single dimensions"
NO_SPAN = "attention without a span"
ASKED = {
    "query_grid_shape": lambda problem: problem.query_grid_shape is not None,
    "return_weights": lambda problem: problem.return_weights,
    "dropout": lambda problem: problem.dropout_rate > 0,
    "class tokens": lambda problem: problem.num_class_tokens > 0,
    PAIRWISE: lambda problem: problem.is_pairwise,
    BY_PAIR: lambda problem: problem.is_by_pair,
    CUT: lambda problem: problem.block is not None,
    "segment_ids": lambda problem: problem.segment_ids is not None,
    "is_causal": lambda problem: problem.is_causal,
    CAUSAL_AXES: lambda problem: not isinstance(problem.is_causal, bool),
    "dilation": lambda problem: problem.dilation is not None,
    "span_bound": lambda problem: problem.span_bound is not None,
    "limit": lambda problem: problem.limit is not None,
    "a span": lambda problem: problem.sigma is not None,
    NO_SPAN: lambda problem: problem.sigma is None,
    "no contents": lambda problem: problem.key is None,
    "a relative bias": lambda problem: problem.relative_bias is not None,
    "relative vectors": lambda problem: problem.relative_encoding is not None or problem.factors is not None,
    "the factors of an encoding": lambda problem: problem.factors is not None,
    "terms without one sinusoidal encoding": lambda problem: problem.factors is None,
}
# What a local implementation lacks: it computes only a part of the pairs, and holds no weight.
LOCAL = ("return_weights", "dropout", PAIRWISE, BY_PAIR)
# What is not supported with a grid of queries, and with a grid that is cut over devices; the first is told.
TWO_GRIDS = ("is_causal", "segment_ids", "dilation", "span_bound", "class tokens", "limit")
GRID_AXIS = (NO_SPAN, "query_grid_shape", *LOCAL, "segment_ids", "dilation")


def supports(unsupported: tuple[str, ...], problem: Problem) -> str | None:
    """The first of `unsupported`, keys of `ASKED`, that a problem asks for; None if it asks for none of them."""
    return next((asked for asked in unsupported if ASKED[asked](problem)), None)


def refuse(what: str, reason: str | None, other: str = "") -> None:
    """ValueError if there is a reason why something is not supported; `other` names what does support it."""
    if reason is not None:
        raise ValueError(f"{what} does not support {reason}" + (f": {other} does" if other else ""))
