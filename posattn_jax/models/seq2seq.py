"""The encoder-decoder of machine translation, and its decoding steps (Schmidt 2023; Vaswani 2017)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from posattn_jax.axes import Array, Features, Float, Int, SegmentIds
from posattn_jax.nn.blocks import SequenceBlock
from posattn_jax.nn.checks import check_rates, check_sizes
from posattn_jax.nn.composite import Composite
from posattn_jax.nn.layers import Dropout
from posattn_jax.nn.places import Memory, Places, between, of_grid, of_sequence
from posattn_jax.nn.positions import SinusoidalPositions, StackPositions
from posattn_jax.nn.precompute import own_params, precompute
from posattn_jax.nn.sharding import named
from posattn_jax.ops.initial import XAVIER
from posattn_jax.ops.precision import float32_or_better, plus

TokenIds = Int[Array, "b t"]
Kept = tuple[dict[str, Array], ...]  # one per block


class EncoderDecoder(Composite):
    """Predicts the next target token from the source tokens and the target so far.

    Blocks are pre-norm, with a layer norm after each stack. Source, target and output share one embedding matrix, or
    have one each. The output has a bias.

    Attributes:
      vocabulary_size: the size of the target vocabulary, and of the source's if it is joint.
      width: c.
      encoder_blocks, decoder_blocks: `SequenceBlock`s, those of the decoder with `cross`.
      encoder_positions, decoder_positions: `StackPositions`.
      source_vocabulary_size: the size of a separate source vocabulary, with three embedding matrices. None: a joint
        vocabulary, with one matrix.
      length_ratio: gamma, source length over target length: query t of cross-attention has the coordinate floor(gamma
        t).
      pad_id: the token that pads sequences. Nothing attends to it in the source.
      dropout_rate: the dropout rate of the embedded words.
      embedding_init: the initialiser of the embeddings.
      layer_norm_epsilon: the epsilon of the layer norms after the stacks.
      dtype: the dtype of the computation; None: float32. Logits are float32 or better.
      param_dtype: the dtype of the parameters.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import EncoderDecoder, SequenceBlock, StackPositions, TokenMixing
      >>> encoder = SequenceBlock(TokenMixing(num_heads=2), mlp_dim=8)
      >>> decoder = SequenceBlock(TokenMixing(num_heads=2), mlp_dim=8, cross=TokenMixing(num_heads=2))
      >>> model = EncoderDecoder(10, 8, (encoder,), (decoder,), StackPositions(), StackPositions())
      >>> source, target = jnp.array([[5, 6, 7, 2]]), jnp.array([[1, 8, 9]])
      >>> logits, variables = model.init_with_output(jax.random.key(0), source, target)
      >>> logits.shape
      (1, 3, 10)
    """

    vocabulary_size: int
    width: int
    encoder_blocks: tuple[SequenceBlock, ...]
    decoder_blocks: tuple[SequenceBlock, ...]
    encoder_positions: StackPositions
    decoder_positions: StackPositions
    source_vocabulary_size: int | None = None
    length_ratio: float = 1.0
    pad_id: int = 0
    dropout_rate: float = 0.0
    embedding_init: Initializer = XAVIER
    layer_norm_epsilon: float = 1e-6
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        check_sizes(self, "vocabulary_size", "source_vocabulary_size", "width")
        check_rates(self, "dropout_rate")
        for block in self.decoder_blocks:
            if block.cross is None:
                raise ValueError("decoder_blocks: expected cross-attention in every block")
            for mixing in (block.mixing, block.cross):
                if getattr(mixing.energies, "needs_whole_sequence", False):
                    raise ValueError(f"decoder_blocks: {type(mixing.energies).__name__} cannot decode step by step")
        super().__post_init__()

    def setup(self):
        fields: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        embed = {"embedding_init": named(self.embedding_init, "vocabulary", "width"), **fields}
        self.embedding = nn.Embed(self.vocabulary_size, self.width, **embed)
        if self.source_vocabulary_size is not None:
            self.source_embedding = nn.Embed(self.source_vocabulary_size, self.width, **embed)
            self.output_embedding = nn.Embed(self.vocabulary_size, self.width, **embed)
        self.output_bias = self.param("output_bias", nn.initializers.zeros, (self.vocabulary_size,), self.param_dtype)
        self.encoder_norm = nn.LayerNorm(self.layer_norm_epsilon, **fields)
        self.decoder_norm = nn.LayerNorm(self.layer_norm_epsilon, **fields)
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self,
        source: Int[Array, "b s"],
        target: TokenIds,
        *,
        source_segment_ids: Int[Array, "b s"] | None = None,
        target_segment_ids: SegmentIds | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t v"]:
        """The logits of the token after each target token.

        Args:
          source: ids [b s], padded with `pad_id`.
          target: ids [b t], starting with the token that begins every target.
          source_segment_ids, target_segment_ids: [b s] and [b t], if several sentences share a row: tokens attend to
            their own sentence and its translation, which has the same id, and positions start at 0 in each. None: a row
            is one sentence.
          deterministic: whether dropout is off; otherwise an rng "dropout" is needed.
        """
        encoded, source_positions = self.encode(source, source_segment_ids, deterministic=deterministic)
        memories = tuple(Memory(encoded) for _ in self.decoder_blocks)
        places = of_grid(target.shape[1:], target_segment_ids, is_causal=True)
        fields = {"source_segment_ids": source_segment_ids, "deterministic": deterministic}
        return self._decode(target, places, memories, source, source_positions, **fields)[0]

    def encode(
        self, source: Int[Array, "b s"], segment_ids: Int[Array, "b s"] | None = None, *, deterministic: bool = True
    ) -> tuple[Features, Float[Array, "_ s c"] | None]:
        """The features of the source [b s c], which mean nothing at padding, and those of its positions."""
        embedding = self.embedding if self.source_vocabulary_size is None else self.source_embedding
        places = of_grid(source.shape[1:], segment_ids, key_mask=source != self.pad_id)
        added, features = self.encoder_positions(places.key, self.width, source.shape[0], deterministic=deterministic)
        places = dataclasses.replace(places, query_features=features, key_features=features)
        x = self.dropout(self.encoder_positions.add(embedding(source), added), deterministic=deterministic)
        for block in self.encoder_blocks:
            x, _ = block(x, places, deterministic=deterministic)
        return self.encoder_norm(x), features

    def start(self, source: Int[Array, "b s"], num_hypotheses: int, max_steps: int) -> tuple[Kept, Kept]:
        """The initial state of decoding.

        Returns:
          For every decoder block, the empty arrays that it keeps of the target, [b * num_hypotheses, max_steps, ...];
          and those that its cross-attention keeps of the source, [b s ...].
        """
        encoded, source_positions = self.encode(source)
        memories = tuple(Memory(encoded) for _ in self.decoder_blocks)
        first = jnp.zeros((source.shape[0], 1), jnp.int32)
        _, own = self._decode(first, between(1, 1, is_causal=True), memories, source, source_positions)
        shape = source.shape[0] * num_hypotheses, max_steps
        empty = tuple({name: jnp.zeros((*shape, *x.shape[2:]), x.dtype) for name, x in kept.items()} for kept in own)
        return empty, tuple(memory.kept for memory in memories)

    def step(
        self, tokens: Int[Array, " n"], position: Int[Array, ""], before: Kept, cross: Kept, source: Int[Array, "b s"]
    ) -> tuple[Float[Array, "n v"], Kept]:
        """The logits after one more token of each hypothesis, and the arrays to keep.

        Args:
          tokens: the last token of each hypothesis, where those of a sentence are adjacent; n is a multiple of b.
          position: the position of these tokens.
          before: the arrays kept by every block, as returned by `start` or the step before.
          cross: as returned by `start`.
          source: ids [b s].
        """
        max_steps = next(iter(before[0].values())).shape[1]
        places = between(1, max_steps, is_causal=True, step=position)
        query = jnp.reshape(position, (1, 1, 1)).astype(jnp.int32)
        places = dataclasses.replace(places, query=query, query_shape=(max_steps,))
        _, source_positions = self.encoder_positions(of_sequence(source.shape[1]), self.width)
        memories = tuple(Memory(before=kept) for kept in cross)
        logits, own = self._decode(tokens[:, None], places, memories, source, source_positions, before)
        return logits[:, 0], own

    def _decode(
        self,
        target: TokenIds,
        places: Places,
        memories: tuple[Memory, ...],
        source: Int[Array, "_ s"],
        source_positions: Float[Array, "_ s c"] | None,
        before: Kept | None = None,
        *,
        source_segment_ids: Int[Array, "_ s"] | None = None,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "b t v"], Kept]:
        """The logits, and the arrays that every block keeps of the target."""
        added, features = self.decoder_positions(places.key, self.width, target.shape[0], deterministic=deterministic)
        of_query = features
        if places.step is not None:  # only those at the query's position
            added, of_query = (None if x is None else x[:, places.query[0, :, 0]] for x in (added, features))
        places = dataclasses.replace(places, query_features=of_query, key_features=features)
        x = self.dropout(self.decoder_positions.add(self.embedding(target), added), deterministic=deterministic)

        # Hypotheses per sentence: each is one more query of its tokens.
        hypotheses = 1 if source.shape[0] == 0 else target.shape[0] // source.shape[0]
        across = Places(
            jnp.tile(places.query, (1, hypotheses, 1)),
            of_sequence(source.shape[1], source_segment_ids),
            key_mask=source != self.pad_id,
            query_segments=places.query_segments,
            key_segments=source_segment_ids,
            length_ratio=self.length_ratio,
            query_features=None if of_query is None else jnp.tile(of_query, (1, hypotheses, 1)),
            key_features=source_positions,
            query_shape=places.query_shape,
            key_shape=source.shape[1:],
        )
        own = []
        for block, kept, memory in zip(self.decoder_blocks, before or [None] * len(memories), memories, strict=True):
            x, kept = block(x, places, before=kept, memory=memory, memory_places=across, deterministic=deterministic)
            own.append(kept)
        x = self.decoder_norm(x)
        output = self.embedding if self.source_vocabulary_size is None else self.output_embedding
        wide = float32_or_better(x.dtype)  # rounded to bfloat16, the logits of many tokens would be equal
        logits = jnp.einsum("btc,vc->btv", x, output.embedding.astype(x.dtype), preferred_element_type=wide)
        return plus(logits, self.output_bias), tuple(own)


def precomputed(
    model: EncoderDecoder, params: Mapping[str, Any], max_length: int
) -> tuple[EncoderDecoder, dict[str, Any]]:
    """The model with its mixers' position-only energies as tables, for up to `max_length` positions: see `precompute`.

    It computes the same logits and refuses longer sequences. `params` stays as it is. ValueError for parts that are one
    and the same module, and so share parameters: places differ between a stack and another.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from posattn_jax import DotProducts, EncoderDecoder, SequenceBlock, StackPositions, TokenMixing, precomputed
      >>> rposnet = TokenMixing(num_heads=2, energies=DotProducts("position", ("relative",), context=2))
      >>> decoder = SequenceBlock(TokenMixing(num_heads=2), mlp_dim=8, cross=TokenMixing(num_heads=2))
      >>> blocks = (SequenceBlock(rposnet, mlp_dim=8),), (decoder,)
      >>> model = EncoderDecoder(10, 8, *blocks, StackPositions("learned"), StackPositions())
      >>> source, target = jnp.array([[5, 6, 7, 2]]), jnp.array([[1, 8, 9]])
      >>> logits, variables = model.init_with_output(jax.random.key(0), source, target)
      >>> fast, params = precomputed(model, variables["params"], max_length=8)
      >>> params["encoder_blocks_0"]["mixing"]["energies"]["table"].shape
      (2, 8, 5)
      >>> bool(jnp.allclose(fast.apply({"params": params}, source, target), logits, atol=1e-5))
      True
    """
    places, bound, params = of_sequence(max_length), model.bind({"params": params}), dict(params)

    def features(stack: str) -> Features:
        _, found = getattr(bound, f"{stack}_positions")(places, model.width)
        return SinusoidalPositions()(places, model.width) if found is None else found

    stacks = {stack: features(stack) for stack in ("encoder", "decoder")}
    changed: dict[str, Any] = {}
    for stack, of_stack in stacks.items():
        blocks = []
        for i, block in enumerate(getattr(model, f"{stack}_blocks")):
            name = f"{stack}_blocks_{i}"
            own = dict(own_params(params, name))
            block = block.clone(parent=None)
            if any(getattr(getattr(each, "energies", None), "positions", None) for each in (block.mixing, block.cross)):
                raise ValueError(f"{name}: expected positions in its stack or in its mixers, not in both")
            for slot, keys in (("mixing", of_stack), ("cross", stacks["encoder"])):
                if getattr(block, slot) is not None:
                    mixing, own[slot] = precompute(getattr(block, slot), own_params(own, slot), of_stack, keys)
                    block = block.clone(**{slot: mixing})
            params[name] = own
            blocks.append(block)
        changed[f"{stack}_blocks"] = tuple(blocks)
    return model.clone(**changed), params
