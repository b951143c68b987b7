"""`--mode=generate`: continues a text, character by character, with caches as long as the learned spans."""

import codecs
import functools
import io
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Float, Int
from posattn_jax.config import experiment
from posattn_jax.data.text import text_files
from posattn_jax.models.language_model import Kept, LanguageModel
from posattn_jax.models.stack import with_tables
from posattn_jax.ops.attention import cache_length
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import cache_folder
from posattn_jax.tasks.causal_lm import CausalLanguageModelling
from posattn_jax.use import trained

CHUNK = 64  # tokens that are generated before they are written
FIRST = b"\n"  # stands for an empty prompt
COLD = 1e-30  # below this temperature only the likeliest token has a probability, and 1 / temperature may overflow

State = tuple[Kept, Float[Array, "b v"]]  # the caches, and the logits of the next token


class Generator:
    """A trained model that continues text.

    Args:
      task: the task with its model.
      params: the parameters of the model.
      temperature: logits are divided by it; 0: always the likeliest token.
      top_k: tokens are drawn from the `top_k` likeliest ones only; 0: from all.
    """

    def __init__(self, task: CausalLanguageModelling, params: Any, temperature: float = 1.0, top_k: int = 0):
        self.temperature, self.top_k = temperature, top_k
        (self.length,) = task.grid_shape
        self.model, self.params = with_tables(task.model, params, task.describe(params))
        halves = [np.asarray(half).astype(int).tolist() for half in task.half_spans(params)]
        self.lengths = tuple(cache_length(task.grid_shape, half) for half in halves)  # of the caches, one per block
        self._advance = jax.jit(self._chunk, donate_argnums=1)

    def start(self, batch_size: int = 1) -> State:
        """The state before the first token."""
        empty = self.model.apply({"params": self.params}, batch_size, self.lengths, method=LanguageModel.start)
        return empty, jnp.zeros((batch_size, self.model.vocabulary_size))

    def tokens(self, prompt: np.ndarray, number: int, seed: int = 0) -> Iterator[np.ndarray]:
        """Yields the `number` tokens after a prompt [n], n >= 1, in chunks."""
        state, rng, total = self.start(), jax.random.key(seed), len(prompt) + number
        for first in range(0, total, CHUNK):
            given = np.full(CHUNK, -1, np.int32)
            some = prompt[first : first + CHUNK]
            given[: len(some)] = some
            state, made = self._advance(self.params, state, given, first, rng)
            if first + CHUNK > len(prompt):
                yield np.asarray(made)[max(len(prompt) - first, 0) : total - first]

    def _chunk(
        self, params: Any, state: State, given: Int[Array, " n"], first: Array, rng: Array
    ) -> tuple[State, Int[Array, " n"]]:
        """The next tokens: those of `given`, and a drawn token wherever `given` is -1."""
        step = functools.partial(self.model.apply, {"params": params}, length=self.length, method=LanguageModel.step)

        def advance(state, xs):
            (caches, logits), (token, place) = state, xs
            token = jnp.where(token < 0, self._draw(logits[0], jax.random.fold_in(rng, place)), token)
            logits, caches = step(token[None], caches)
            return (caches, logits), token

        return jax.lax.scan(advance, state, (given, first + jnp.arange(CHUNK)))

    def _draw(self, logits: Float[Array, " v"], rng: Array) -> Int[Array, ""]:
        if self.temperature < COLD:
            return jnp.argmax(logits).astype(jnp.int32)
        scaled = (logits - logits.max()) / self.temperature  # at most 0, so that it overflows to a probability of 0
        if self.top_k:
            scaled = jnp.where(logits >= jax.lax.top_k(logits, self.top_k)[0][-1], scaled, -jnp.inf)
        return jax.random.categorical(rng, scaled).astype(jnp.int32)


def generate(
    workdir: pathlib.Path,
    prompt: bytes,
    output: io.TextIOBase,
    *,
    number: int = 500,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> None:
    """Writes a prompt and `number` generated characters (bytes) after it, as they are generated.

    Args:
      workdir: the folder of a run of causal language modelling.
      prompt: the prompt in UTF-8, read as the text of training. If empty, the text begins after a new line.
      output: where the text is written. Bytes that are not UTF-8 become U+FFFD.
      number: the number of characters to generate.
      seed: the seed of the draws.
      temperature, top_k: see `Generator`.

    Raises:
      InputError: there is no such run, or a number is out of its range.
    """
    for name, value, least in (("length", number, 1), ("temperature", temperature, 0), ("top_k", top_k, 0)):
        if not value >= least:
            raise InputError(f"--{name}={value}: expected at least {least}")
    run = trained.of_run(workdir, (CausalLanguageModelling,))
    size = run.task.model.vocabulary_size
    if top_k > size:
        raise InputError(f"--top_k={top_k}: expected at most {size}, the characters that there are")
    experiment.keep_programs(cache_folder())
    generator = Generator(run.task, run.params, temperature, top_k)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    prompt = text_files.plain(prompt)
    chunks = generator.tokens(np.frombuffer(prompt or FIRST, np.uint8).astype(np.int32), number, seed)
    with doing("compiling, and reading the prompt"):
        first = next(chunks)
    output.write(decoder.decode(prompt))
    for made in itertools.chain([first], chunks):
        output.write(decoder.decode(made.astype(np.uint8).tobytes()))
        output.flush()
    print(decoder.decode(b"", final=True), file=output)
