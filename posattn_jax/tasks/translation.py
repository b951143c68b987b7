"""Translation: the loss, the metrics, and how sentences are decoded."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Float, Int, Shape
from posattn_jax.models.beam_search import beam_search
from posattn_jax.models.seq2seq import EncoderDecoder
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.places import Memory, between, of_sequence
from posattn_jax.tasks.task import FROM_DATA, Params, Task, Totals


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Settings of the beam search for translations: see `beam_search`.

    Attributes:
      beam_size: the size of the beam; 1: greedy.
      batch_size: the sentences of a batch.
      extra_length: how many tokens longer than its source a translation may be.
    """

    beam_size: int = 12
    batch_size: int = 32
    extra_length: int = 50

    def __post_init__(self):
        check_sizes(self, "beam_size", "batch_size", "extra_length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Task):
    """Cross-entropy of each target token given those before it, with label smoothing (Vaswani 2017).

      loss = sum over tokens of  -(1 - e) log p(token) - e mean_v log p(v),  divided by `batch_tokens`

    The divisor is constant, so that every token has the same weight in every batch. The reported cross-entropy is
    without smoothing, per token and in natural logarithms. The perplexity is its exponential.

    Attributes:
      model: the encoder-decoder.
      begin_id, end_id, pad_id: the ids of special tokens.
      batch_tokens: the tokens of a micro-batch.
      length: the length of the sequences for which figures of positions are drawn.
      label_smoothing: e.
      decoding: the settings of the beam search.
    """

    score: ClassVar[str] = "log_likelihood"
    unit: ClassVar[str] = "tokens"
    models: ClassVar[tuple[type, ...]] = (EncoderDecoder,)

    model: EncoderDecoder = dataclasses.field(metadata=FROM_DATA)
    begin_id: int = dataclasses.field(metadata=FROM_DATA)
    end_id: int = dataclasses.field(metadata=FROM_DATA)
    pad_id: int = dataclasses.field(default=0, metadata=FROM_DATA)
    batch_tokens: int = dataclasses.field(default=1, metadata=FROM_DATA)
    length: int = dataclasses.field(default=32, metadata=FROM_DATA)
    label_smoothing: float = 0.1
    decoding: Decoding = Decoding()

    def __post_init__(self):
        check_rates(self, "label_smoothing")

    @property
    def grid_shape(self) -> Shape:
        """(length,)."""
        return (self.length,)

    def init(self, rng: Array) -> Params:
        tokens = jnp.full((1, 2), self.end_id, jnp.int32)
        return self.model.init(rng, tokens, tokens)["params"]

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"source", "target" [b l], optional "weights" [b]} and its totals.

        If several sentences share a row, the batch has "source_segment_ids" and "target_segment_ids" [b l]: see the
        model. Without `rng`, dropout is off. Totals can be added over batches: see `summarise`.
        """
        target = batch["target"]
        segments: dict[str, Any] = {name: batch.get(name) for name in ("source_segment_ids", "target_segment_ids")}
        begins = of_sequence(target.shape[1], segments["target_segment_ids"])[..., 0] == 0
        before = jnp.where(begins, self.begin_id, jnp.roll(target, 1, axis=1))
        logits: Any = self.model.apply(
            {"params": params},
            batch["source"],
            before,
            **segments,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )
        weights = (target != self.pad_id) * batch.get("weights", jnp.ones(len(target)))[:, None]
        normaliser = jax.nn.logsumexp(logits, -1)
        likelihood = jnp.take_along_axis(logits, target[..., None], -1)[..., 0] - normaliser
        smoothed = (1 - self.label_smoothing) * likelihood + self.label_smoothing * (logits.mean(-1) - normaliser)
        correct = jnp.argmax(logits, -1) == target
        totals = {"loss": -likelihood, "correct": correct, "count": jnp.ones_like(weights)}
        totals = {name: jnp.sum(weights * each) for name, each in totals.items()}
        return -jnp.sum(weights * smoothed) / self.batch_tokens, totals

    @staticmethod
    def summarise(totals: Mapping[str, Any]) -> dict[str, float]:
        """The mean cross-entropy, its negative, its perplexity and the accuracy of the tokens in the totals."""
        loss, correct, count = (float(totals[name]) for name in ("loss", "correct", "count"))
        return {
            "loss": loss / count,
            "log_likelihood": -loss / count,
            "perplexity": math.exp(min(loss / count, 700.0)),
            "accuracy": correct / count,
        }

    @functools.partial(jax.jit, static_argnames=("self", "beam_size", "max_steps"))
    def translate(
        self, params: Params, source: Int[Array, "b s"], max_lengths: Int[Array, " b"], beam_size: int, max_steps: int
    ) -> tuple[Int[Array, "b m"], Float[Array, " b"]]:
        """The best translation of every sentence that the beam search finds, and its score; see `beam_search`.

        Args:
          params: the parameters of the model.
          source: the ids of the sentences [b s].
          max_lengths: the largest length of each translation [b].
          beam_size: the size of the beam; 1: greedy.
          max_steps: the largest length of all translations.
        """
        variables = {"params": params}
        empty, cross = self.model.apply(variables, source, beam_size, max_steps, method="start")

        def step(tokens, position, kept):
            return self.model.apply(variables, tokens, position, kept, cross, source, method="step")

        tokens, scores = beam_search(
            step,
            empty,
            batch_size=len(source),
            beam_size=beam_size,
            max_lengths=max_lengths,
            max_steps=max_steps,
            begin_id=self.begin_id,
            end_id=self.end_id,
            pad_id=self.pad_id,
            only_best=True,
        )
        return tokens[:, 0], scores[:, 0]

    def describe(self, params: Params) -> dict[str, dict[str, Array]]:
        """The energies of every mixer that uses only positions: {"encoder_0": {"energies": [h t s]}, ...}."""
        model, length = self.model, self.length
        bound, made, places = model.bind({"params": params}), {}, of_sequence(length)
        _, of_encoder = bound.encoder_positions(places, model.width)
        _, of_decoder = bound.decoder_positions(places, model.width)
        features = {"encoder": of_encoder, "decoder": of_decoder}
        inputs = jnp.zeros((1, length, model.width), model.param_dtype)
        for stack in ("encoder", "decoder"):
            for i, block in enumerate(getattr(bound, f"{stack}_blocks")):
                for name, mixing in ((f"{stack}_{i}", block.mixing), (f"cross_{i}", block.cross)):
                    energies = None if mixing is None else mixing.energies
                    if mixing is None or energies is None or energies.knows_content:
                        continue
                    is_cross = name.startswith("cross")
                    at = between(
                        length,
                        length,
                        length_ratio=model.length_ratio if is_cross else 1.0,
                        query_features=features[stack],
                        key_features=features["encoder" if is_cross else stack],
                    )
                    heads = mixing.num_heads, mixing.head_dim or model.width // mixing.num_heads
                    found, inside = energies(inputs, Memory(), at, heads)
                    found = jnp.broadcast_to(found[0], (heads[0], length, length))
                    made[name] = {"energies": found if inside is None else jnp.where(inside, found, -jnp.inf)}
        return made
