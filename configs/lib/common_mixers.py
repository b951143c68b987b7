"""The mixers of Schmidt 2023, as parts of a block. This file is not a config.

attention, shaw, relative, aposnet, rposnet, lightconv (with GLU), lightconv_plain, lightconv_gelu (gated),
lightconv_global (gated; offsets beyond the context have the weight of the nearest offset within it), linear, glinear
(gated), gaussian, fourier (only in an encoder), mixed (content and rPosNet, with a learned share of each per head;
ours).
"""

from typing import Any

from ml_collections import ConfigDict

from posattn_jax import (
    DotProducts,
    FourierWeights,
    GaussianWeights,
    GeluGate,
    Glu,
    LearnedPositions,
    MixedEnergies,
    NormalizedGelu,
    OffsetTable,
    PairTable,
    TokenMixing,
)
from posattn_jax.config.parts import part

GATED = ("aposnet", "rposnet", "mixed", "glinear", "lightconv_gelu", "lightconv_global")
# Where GaussianNet's heads look.
NEIGHBOURS = {"encoder": (-1, 0, 1), "decoder": (-1, 0), "cross": (-1, 0, 1)}


def mixing(
    name: str,
    num_heads: int,
    dropout_rate: float = 0.0,
    *,
    head_dim: int | None = None,
    place: str = "encoder",
    context: int = 16,
    is_gated: bool | None = None,
    own_positions: bool = False,
    layer_norm_epsilon: float = 1e-6,
    grid_shape: tuple[int, ...] | None = None,
) -> ConfigDict:
    """The part of one mixer.

    Args:
      name: see above.
      num_heads, head_dim: h and d; head_dim=None: the width divided by h.
      dropout_rate: the dropout rate of the weights; for fourier, as in the authors' code, that of the sums.
      place: "encoder", "decoder" or "cross".
      context: the number of offsets on each side that have their own vectors or weights.
      is_gated: whether there is a gate; None: as in the paper.
      own_positions: whether rPosNet has its own learned positions; otherwise its stack has them.
      layer_norm_epsilon: the epsilon of the layer norm of gated values.
      grid_shape: the grid of tables of pairs; None: that of the data.
    """
    table = {"query_shape": grid_shape, "key_shape": grid_shape}
    learned = part(LearnedPositions) if own_positions else None
    energies = {
        "attention": lambda: part(DotProducts, context=context),
        "shaw": lambda: part(DotProducts, keys=("content", "relative"), context=context),
        "relative": lambda: part(DotProducts, keys=("relative",), context=context),
        "aposnet": lambda: part(DotProducts, query="position", keys=("position",), context=context),
        "rposnet": lambda: part(DotProducts, query="position", keys=("relative",), positions=learned, context=context),
        "lightconv": lambda: part(OffsetTable, context=context),
        "lightconv_plain": lambda: part(OffsetTable, context=context),
        "lightconv_gelu": lambda: part(OffsetTable, context=context),
        "lightconv_global": lambda: part(OffsetTable, context=context, outside="clip"),
        "linear": lambda: part(PairTable, **table),
        "glinear": lambda: part(PairTable, **table),
        "gaussian": lambda: part(GaussianWeights, centres=NEIGHBOURS[place]),
        "fourier": lambda: part(FourierWeights),
        "mixed": lambda: part(
            MixedEnergies, parts=ConfigDict({name: energies[name]() for name in ("attention", "rposnet")})
        ),
    }
    gated = name in GATED if is_gated is None else is_gated
    values = part(Glu) if name == "lightconv" else None
    dropped: dict[str, Any] = {"sum_dropout_rate" if name == "fourier" else "dropout_rate": dropout_rate}
    return part(
        TokenMixing,
        num_heads=num_heads,
        head_dim=head_dim,
        energies=energies[name](),
        values=part(NormalizedGelu, layer_norm_epsilon=layer_norm_epsilon) if gated else values,
        gate=part(GeluGate) if gated else None,
        **dropped,
    )
