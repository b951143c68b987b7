"""Checks a part's sizes against the layer's. NNX modules create their parameters before they see tokens."""

from posattn_jax.nn.tokens import Tokens


def check_fits(part: object, tokens: Tokens, *, num_dims: int = 0, num_heads: int = 0, head_dim: int = 0) -> None:
    """ValueError if the tokens' sizes are not those that the part was created with; 0: any size."""
    own = {"num_dims": num_dims, "num_heads": num_heads, "head_dim": head_dim}
    found = {"num_dims": len(tokens.grid_shape), "num_heads": tokens.num_heads, "head_dim": tokens.head_dim}
    for name, number in own.items():
        if number and number != found[name]:
            raise ValueError(f"{type(part).__name__} was made with {name}={number}: the layer has {found[name]}")
