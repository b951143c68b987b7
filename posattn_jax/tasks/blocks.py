"""Tasks of models with encoder blocks: their spans, the penalty on these, and the share of pairs that they compute."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Shape, Sizes
from posattn_jax.models.bert import Bert, MaskedLanguageModel, SequenceClassifier, TokenClassifier
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.nn.layers import dropout_rngs
from posattn_jax.ops.attention import Cut, score_share
from posattn_jax.ops.span import half_span, pair_share, span_share, span_size
from posattn_jax.tasks.task import FROM_DATA, Params, Task


def _threshold(block: EncoderBlock) -> float:
    """That of a block with a span."""
    assert block.attention.span is not None
    return block.attention.span.threshold


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockTask(Task):
    """A task of a model with encoder blocks.

    `describe` returns the intermediates of each block on the grid, see `PositionalSelfAttention`. Their
    "relative_encoding" [*R, h, d] includes the offsets beyond the span.

    Attributes:
      span_penalty: the weight of the penalty on spans in the loss. The penalty is the span's share of all pairs, see
        `span_share`. The papers have none.
      span_penalty_warmup_steps: the updates over which the weight rises linearly from 0; 0: it is constant.
      penalty_scale: the factor of the weight during this rise, 1 at the end; see `at`.
      span_bounds: for each block, half-spans that its span does not exceed, for implementations of a static size. None:
        the cost follows the span at run time.
    """

    span_penalty: float = 0.0
    span_penalty_warmup_steps: int = 0
    penalty_scale: Array | float = dataclasses.field(default=1.0, metadata=FROM_DATA)
    span_bounds: tuple[Shape, ...] | None = dataclasses.field(default=None, metadata=FROM_DATA)

    def __post_init__(self):
        steps = self.span_penalty_warmup_steps
        if steps < 0 or (steps and not self.span_penalty):
            allowed = "0 or more" if steps < 0 else "0 where span_penalty is 0"
            raise ValueError(f"span_penalty_warmup_steps={steps}: expected {allowed}")

    @property
    def blocks(self) -> Sequence[EncoderBlock]:
        """The blocks of the model."""
        raise NotImplementedError

    @property
    def reference_grid(self) -> Sizes | None:
        """The grid of attention in training, if it was a different one; else None."""
        return None

    def whole(self, grid_shape: Sizes) -> tuple[Shape, ...]:
        """Half-spans of the whole grid for every block: bounds that no span exceeds."""
        return (tuple(size - 1 for size in grid_shape),) * len(self.blocks)

    def _applied(self, params: Params, rng: Array | None, *inputs: Any, **fields: Any) -> Any:
        """Outputs and intermediates of the model. Without `rng`, dropout is off; for keys [m] see `dropout_rngs`."""
        fields |= {"span_bounds": self.span_bounds, "deterministic": rng is None, "return_intermediates": True}
        return self.model.apply({"params": params}, *inputs, rngs=dropout_rngs(rng), **fields)

    def penalty_of(self, intermediates: dict[str, dict[str, Array]]) -> Array | float:
        """penalty_scale * span_penalty * mean over layers of the span's share of all pairs, from `intermediates`."""
        if not self.span_penalty:
            return 0.0
        layers = zip(self.blocks, intermediates.values(), strict=True)
        shares = [span_share(out["sigma"], _threshold(block)) for block, out in layers if "sigma" in out]
        if not shares:
            raise ValueError(f"span_penalty={self.span_penalty}: the model has no span to penalise")
        return self.penalty_scale * self.span_penalty * jnp.mean(jnp.stack(shares))

    def at(self, step: Array) -> Any:
        """The same task after `step` updates: its penalty_scale is min(step / span_penalty_warmup_steps, 1)."""
        if not self.span_penalty_warmup_steps:
            return self
        return dataclasses.replace(self, penalty_scale=jnp.minimum(step / self.span_penalty_warmup_steps, 1.0))

    def within(self, span_bounds: tuple[Shape, ...]) -> Any:
        """The same task, with implementations for spans that do not exceed the bounds."""
        return dataclasses.replace(self, span_bounds=span_bounds)

    def half_spans(self, params: Params) -> list[Array]:
        """The half-spans [p] of each block, the largest over its heads."""
        intermediates, everything = self.describe(params), jnp.subtract(jnp.asarray(self.grid_shape), 1.0)
        halves = []
        for block, out in zip(self.blocks, intermediates.values(), strict=True):
            half = everything
            if "sigma" in out:
                half = half_span(out["sigma"], _threshold(block), self.grid_shape, self.reference_grid)
            halves.append(half.reshape(-1, len(self.grid_shape)).max(0))
        return halves

    def spans(self, intermediates: dict[str, dict[str, Any]], batch_size: int = 1) -> dict[str, dict[str, list]]:
        """For each block with a span, as lists: "sigma", "size", "pair_share" and "score_share".

        "size" is the number of offsets inside the span along each dimension. "pair_share" is the share of all pairs
        that are inside the span, and "score_share" the share of all scores that the block computes, which is at least
        as large. If each head has its own span, the lists have one entry per head.
        """
        spans = {}
        for i, block in enumerate(self.blocks):
            if "sigma" in intermediates[f"block_{i}"]:
                attention = block.attention
                sigma = jnp.asarray(intermediates[f"block_{i}"]["sigma"])
                size = span_size(sigma, _threshold(block), self.grid_shape, self.reference_grid)
                cut = Cut(self.grid_shape, attention.dilation or [1] * len(self.grid_shape))
                halves = [cut.half((extent - 1) // 2 for extent in each) for each in np.atleast_2d(size).tolist()]
                options = {"num_heads": attention.num_heads, "implementation": attention.implementation}
                if self.span_bounds is not None:
                    options["span_bound"] = cut.half(self.span_bounds[i])
                shares = [
                    cut.share * score_share(cut.shape, half, batch_size=batch_size * cut.num_grids, **options)
                    for half in halves
                ]
                inside = [cut.share * pair_share(half, cut.shape) for half in halves]
                of_block = {"sigma": sigma.tolist(), "size": size.tolist()}
                spans[f"block_{i}"] = of_block | {"pair_share": inside, "score_share": shares}
        return spans


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceTask(BlockTask):
    """A task of token ids.

    Attributes:
      model: the model.
      input_shape: (t,), the length of the sequences.
      pad_id: the id of the padding token, to which nothing attends.
    """

    unit: ClassVar[str] = "sequences"
    models: ClassVar[tuple[type, ...]] = (Bert,)

    model: MaskedLanguageModel | SequenceClassifier | TokenClassifier = dataclasses.field(metadata=FROM_DATA)
    input_shape: Shape = dataclasses.field(metadata=FROM_DATA)
    pad_id: int = dataclasses.field(default=0, metadata=FROM_DATA)

    @property
    def grid_shape(self) -> Sizes:
        """(t,)."""
        return tuple(self.input_shape)

    @property
    def length(self) -> int:
        """t, the length of the sequences."""
        return self.input_shape[0]

    @property
    def blocks(self) -> Sequence[EncoderBlock]:
        """The blocks of the encoder."""
        return self.model.encoder.blocks

    def init(self, rng: Array) -> Params:
        tokens = jnp.zeros((1, self.length), jnp.int32)
        return self.model.init(rng, tokens, span_bounds=self.whole(self.grid_shape))["params"]

    def apply(
        self, params: Params, batch: dict[str, Array], rng: Array | None = None, **inputs: Any
    ) -> tuple[Array, dict[str, Any]]:
        """Outputs and intermediates for a batch's "tokens" and "segments". Without `rng`, dropout is off.

        If several sequences share a row, the batch has "segment_ids": see `Bert`.
        """
        return self._applied(params, rng, batch["tokens"], **self._other_inputs(batch), **inputs)

    def encode(self, params: Params, batch: dict[str, Array], **inputs: Any) -> Any:
        """Features [b t c] and intermediates of the encoder for a batch. The parameters need no head."""
        fields = self._other_inputs(batch) | {"span_bounds": self.span_bounds, "return_intermediates": True}
        return self.model.encoder.apply({"params": params["encoder"]}, batch["tokens"], **fields, **inputs)

    def _other_inputs(self, batch: dict[str, Array]) -> dict[str, Array | None]:
        """The model's inputs besides the tokens."""
        mask, segment_ids = batch["tokens"] != self.pad_id, batch.get("segment_ids")
        return {"segments": batch["segments"], "key_mask": mask, "segment_ids": segment_ids}

    def describe(self, params: Params) -> Any:
        tokens = jnp.zeros((1, self.length), jnp.int32)
        encoder = {"params": params["encoder"]}
        bounds = self.whole(self.grid_shape)
        return self.model.encoder.apply(encoder, tokens, span_bounds=bounds, return_intermediates=True)[1]
