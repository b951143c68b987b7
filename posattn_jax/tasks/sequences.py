"""What the tasks of sequences of tokens share: a model around `Bert`."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp

from posattn_jax.axes import Array, Shape, Sizes
from posattn_jax.models.bert import Bert, MaskedLanguageModel, SequenceClassifier
from posattn_jax.nn.blocks import EncoderBlock
from posattn_jax.tasks.blocks import BlockTask
from posattn_jax.tasks.task import FROM_DATA, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceTask(BlockTask):
    """A task of token ids.

    Attributes:
      model: the model.
      input_shape: (t,), of the sequences.
      pad_id: of the token that fills sequences up: nothing attends to it.
      span_penalty, span_bounds: see `BlockTask`.
    """

    unit: ClassVar[str] = "sequences"
    models: ClassVar[tuple[type, ...]] = (Bert,)

    model: MaskedLanguageModel | SequenceClassifier = dataclasses.field(metadata=FROM_DATA)
    input_shape: Shape = dataclasses.field(metadata=FROM_DATA)
    pad_id: int = dataclasses.field(default=0, metadata=FROM_DATA)
    span_penalty: float = 0.0
    span_bounds: tuple[Shape, ...] | None = dataclasses.field(default=None, metadata=FROM_DATA)

    @property
    def grid_shape(self) -> Sizes:
        """The sequence."""
        return tuple(self.input_shape)

    @property
    def length(self) -> int:
        """t, of the sequences."""
        return self.input_shape[0]

    @property
    def blocks(self) -> Sequence[EncoderBlock]:
        """Of the encoder."""
        return self.model.encoder.blocks

    def init(self, rng: Array) -> Params:
        """The parameters of a fresh model."""
        tokens = jnp.zeros((1, self.length), jnp.int32)
        return self.model.init(rng, tokens, span_bounds=self.whole(self.grid_shape))["params"]

    def apply(
        self, params: Params, batch: dict[str, Array], rng: Array | None = None, **inputs: Any
    ) -> tuple[Array, dict[str, Any]]:
        """Outputs and intermediates of a batch's "tokens" and "segments"; without `rng` dropout is off."""
        outputs: Any = self.model.apply(
            {"params": params},
            batch["tokens"],
            segments=batch["segments"],
            key_mask=batch["tokens"] != self.pad_id,
            span_bounds=self.span_bounds,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
            return_intermediates=True,
            **inputs,
        )
        return outputs

    def describe(self, params: Params) -> Any:
        """See `BlockTask`."""
        tokens = jnp.zeros((1, self.length), jnp.int32)
        encoder = {"params": params["encoder"]}
        bounds = self.whole(self.grid_shape)
        return self.model.encoder.apply(encoder, tokens, span_bounds=bounds, return_intermediates=True)[1]
