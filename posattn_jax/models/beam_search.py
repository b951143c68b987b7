"""Beam search with a model that takes one token of every hypothesis at a time.

Axes: k hypotheses per sentence, v tokens in the vocabulary, m positions per hypothesis, and n = b k hypotheses in all,
where those of a sentence are adjacent.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from posattn_jax.axes import Array, Bool, Float, Int

Step = Callable[[Int[Array, "n"], Int[Array, ""], Any], tuple[Float[Array, "n v"], Any]]


class _Beam(NamedTuple):
    """The state of the loop. Hypotheses are sorted, the best first.

    A finished hypothesis has END or is dead. A dead one has probability 0, and any other hypothesis can replace it.
    """

    position: Int[Array, ""]
    tokens: Int[Array, "b k m"]
    last: Int[Array, "b k"]
    log_probs: Float[Array, "b k"]
    scores: Float[Array, "b k"]
    finished: Bool[Array, "b k"]
    cache: Any


def beam_search(
    step: Step,
    cache: Any,
    *,
    batch_size: int,
    beam_size: int,
    max_lengths: Int[Array, "b"],
    max_steps: int,
    begin_id: int,
    end_id: int,
    pad_id: int,
    only_best: bool = False,
) -> tuple[Int[Array, "b k m"], Float[Array, "b k"]]:
    """The translations that a model finds most likely, by log-probability per token.

      score(y) = sum_i log p(y_i | y_<i) / |y|   where |y| counts END

    Every step ranks all continuations of the unfinished hypotheses, and the finished ones as they are; the best
    `beam_size` stay. A tie goes to the continuation of the better hypothesis, then to the lower token. A beam of 1 is
    greedy: it takes exactly the token with the largest logit. BEGIN and PAD are never generated. But p is the model's,
    so they may have some of the probability. Logits that are NaN or +inf are replaced by -inf.

    Args:
      step: (tokens [n], position, cache) -> (logits [n v], cache): the logits of what follows the tokens at `position`
        = 0, 1, ...; the first tokens are BEGIN. Finished hypotheses have PAD as tokens, and their logits are ignored.
      cache: arrays [n ...], which are reordered with the hypotheses. Let `step` close over arrays that all hypotheses
        of a sentence share, rather than put them here.
      batch_size: b.
      beam_size: k.
      max_lengths: the largest length of each sentence's hypotheses, END included: the last position allows END only. It
        is clipped to 1 ... `max_steps`.
      max_steps: m.
      begin_id: BEGIN, which is not in the result.
      end_id: END.
      pad_id: PAD, which fills the positions after END.
      only_best: whether to return the best hypothesis only, so that k = 1 in the result. The search then stops as soon
        as the best one is known, because the log-probability of unfinished ones can only fall:

          log p / max_length < the best finished score   for all unfinished hypotheses.

    Returns:
      tokens [b k m] and scores [b k], the best first. If there are fewer hypotheses than `beam_size`, the last rows are
      PAD throughout, with the score -inf.

    Raises:
      ValueError: a size below 1, an END that is BEGIN or PAD, or arrays of other sizes in the cache.

    Example:
      >>> import jax.numpy as jnp
      >>> from posattn_jax import beam_search
      >>> PAD, BEGIN, END = 0, 1, 2
      >>> follows = {BEGIN: [0, 0, 0.1, 0.3, 0.6], 3: [0, 0, 0.9, 0, 0.1], 4: [0, 0, 0.2, 0.8, 0]}
      >>> table = jnp.log(jnp.array([follows.get(token, [0.2] * 5) for token in range(5)]))
      >>> step = lambda tokens, position, cache: (table[tokens], cache)
      >>> sizes = {"batch_size": 1, "beam_size": 2, "max_lengths": jnp.array([4]), "max_steps": 4}
      >>> tokens, scores = beam_search(step, {}, begin_id=BEGIN, end_id=END, pad_id=PAD, **sizes)
      >>> print(tokens)
      [[[4 3 2 0]
        [3 2 0 0]]]
    """
    rows = batch_size * beam_size
    if min(batch_size, beam_size, max_steps) < 1:
        raise ValueError(f"{batch_size=}, {beam_size=}, {max_steps=}: expected 1 or more")
    if end_id in (begin_id, pad_id):
        raise ValueError(f"{end_id=}: expected another than {begin_id=} and {pad_id=}")
    for leaf in jax.tree.leaves(cache):
        if jnp.shape(leaf)[:1] != (rows,):
            raise ValueError(f"cache: a leaf has the shape {jnp.shape(leaf)}, expected [{rows} ...]")
    most = jnp.clip(max_lengths, 1, max_steps)[:, None]

    def unsettled(beam: _Beam) -> Bool[Array, ""]:
        open_ = ~beam.finished
        if only_best:
            done = jnp.where(beam.finished, beam.scores, -jnp.inf).max(1, keepdims=True)
            open_ &= beam.log_probs / most >= done  # with equal scores they might still come first
        return (beam.position < max_steps) & open_.any()

    def advance(beam: _Beam) -> _Beam:
        logits, cache = step(beam.last.reshape(rows), beam.position, beam.cache)
        logits = logits.astype(jnp.float32).reshape(batch_size, beam_size, -1)
        is_last = (beam.position + 1 >= most)[..., None]
        tokens, log_probs = _continue(logits, is_last, beam_size, begin_id, end_id, pad_id)
        log_probs += beam.log_probs[..., None]
        scores = log_probs / (beam.position + 1).astype(log_probs.dtype)
        # A finished hypothesis has one continuation, PAD, which costs nothing.
        finished, first = beam.finished[..., None], jnp.arange(tokens.shape[-1]) == 0
        tokens = jnp.where(finished, pad_id, tokens)
        log_probs = jnp.where(finished, beam.log_probs[..., None], log_probs)
        scores = jnp.where(finished, jnp.where(first, beam.scores[..., None], -jnp.inf), scores)

        best, chosen = jax.lax.top_k(scores.reshape(batch_size, -1), beam_size)
        parents = chosen // tokens.shape[-1]
        alive = best > -jnp.inf
        last = jnp.where(alive, _pick(tokens.reshape(batch_size, -1), chosen), pad_id)
        history = jnp.take_along_axis(beam.tokens, parents[..., None], axis=1)
        if beam_size > 1:
            parent_rows = (jnp.arange(batch_size)[:, None] * beam_size + parents).reshape(rows)
            cache = jax.tree.map(lambda leaf: leaf[parent_rows], cache)
        return _Beam(
            position=beam.position + 1,
            tokens=history.at[:, :, beam.position].set(last),
            last=last,
            log_probs=jnp.where(alive, _pick(log_probs.reshape(batch_size, -1), chosen), -jnp.inf),
            scores=best,
            finished=~alive | _pick(beam.finished, parents) | (last == end_id),
            cache=cache,
        )

    # All hypotheses of a sentence are still the same: only the first is alive.
    shape = (batch_size, beam_size)
    only_first = jnp.broadcast_to(jnp.where(jnp.arange(beam_size) == 0, 0.0, -jnp.inf).astype(jnp.float32), shape)
    beam = _Beam(
        position=jnp.array(0, jnp.int32),
        tokens=jnp.full((*shape, max_steps), pad_id, jnp.int32),
        last=jnp.full(shape, begin_id, jnp.int32),
        log_probs=only_first,
        scores=only_first,
        finished=only_first < 0,
        cache=cache,
    )
    beam = jax.lax.while_loop(unsettled, advance, beam)
    kept = 1 if only_best else beam_size
    tokens = jnp.where((beam.scores > -jnp.inf)[..., None], beam.tokens, pad_id)
    return tokens[:, :kept], beam.scores[:, :kept]


def _continue(
    logits: Float[Array, "b k v"], is_last: Bool[Array, "b 1 1"], number: int, begin_id: int, end_id: int, pad_id: int
) -> tuple[Int[Array, "b k c"], Float[Array, "b k c"]]:
    """The `number` most likely next tokens of each hypothesis, and their log-probabilities, the best first.

    More tokens of one hypothesis cannot be among the best of all. They are chosen by logits, because rounding causes
    fewer ties among logits than among sums of log-probabilities.
    """
    logits = jnp.where(logits < jnp.inf, logits, -jnp.inf)  # NaN < inf is False
    ids = jnp.arange(logits.shape[-1])
    allowed = jnp.where(is_last, ids == end_id, (ids != begin_id) & (ids != pad_id))
    best, tokens = jax.lax.top_k(jnp.where(allowed, logits, -jnp.inf), min(number, logits.shape[-1]))
    log_probs = best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    # -inf - -inf is NaN, and rounding may give more than 0.
    return tokens, jnp.where(best > -jnp.inf, jnp.minimum(log_probs, 0.0), -jnp.inf)


def _pick(array: Array, places: Int[Array, "b k"]) -> Array:
    """out[b, k] = array[b, places[b, k]]."""
    return jnp.take_along_axis(array, places, axis=1)
