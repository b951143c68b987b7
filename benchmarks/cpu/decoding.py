"""Time and memory of a character, decoded with caches as long as the span and with caches of the whole text.

  python -m benchmarks.cpu.decoding [--length=4096] [--half_span=43] [--widths=64,128] [--heads=8] [--blocks=4]
      [--tokens=128] [--out=FOLDER]

The model is that of configs/char_lm.py with its encodings in tables; the text is at its last --tokens places. A cache
of the whole text is of the same model without a span. Exit codes: 0 done, 2 wrong input.
"""

import functools
import statistics
import sys
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from posattn_jax import (
    Content,
    EncoderBlock,
    LanguageModel,
    LearnedEncoding,
    Positional,
    PositionalSelfAttention,
    WindowSpan,
    cache_length,
)
from posattn_jax.benchmarks import command, timing
from posattn_jax.benchmarks.timing import Program
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError

VOCABULARY_SIZE = 256


def parse_flags(argv: list[str]) -> flags.FlagValues:
    """The flags; InputError for anything wrong with them."""
    values = command.define_flags(repeats=15, seconds=60.0)
    own: dict[str, Any] = {"flag_values": values}
    for name, default in (("length", 4096), ("half_span", 43), ("heads", 8), ("blocks", 4), ("tokens", 128)):
        flags.DEFINE_integer(name, default, "A size.", lower_bound=1, **own)
    flags.DEFINE_list("widths", ["64"], "Features of all heads together.", **own)
    options = command.parse(values, argv, __doc__ or "")
    if options.tokens > options.length:
        raise InputError(f"--tokens={options.tokens}: expected at most --length={options.length}")
    if any(width % options.heads for width in command_line.numbers("--widths", options.widths, least=1)):
        raise InputError(f"--widths={','.join(options.widths)}: expected multiples of --heads={options.heads}")
    return options


def make_program(half_span: int | None, width: int, options: flags.FlagValues) -> tuple[Program, int]:
    """Decodes the last places of a text; and the bytes of its caches."""
    attention = PositionalSelfAttention(
        options.heads,
        terms=(Content(), Positional(LearnedEncoding())),
        span=None if half_span is None else WindowSpan((half_span,)),
    )
    blocks = tuple(EncoderBlock(attention.clone(), 2 * width, norm="pre") for _ in range(options.blocks))
    model = LanguageModel(VOCABULARY_SIZE, width, blocks)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, options.length), jnp.int32))
    length = cache_length((options.length,), None if half_span is None else (half_span,))
    caches: Any = model.apply(variables, 1, (length,) * options.blocks, method=LanguageModel.start)
    at_the_end = tuple(cache._replace(step=jnp.int32(options.length - options.tokens)) for cache in caches)

    def decode(variables, caches):
        def step(carry, _):
            token, caches = carry
            logits, caches = model.apply(variables, token, caches, options.length, method=LanguageModel.step)
            return (jnp.argmax(logits, -1).astype(jnp.int32), caches), token

        return jax.lax.scan(step, (jnp.zeros(1, jnp.int32), caches), length=options.tokens)[1]

    program = timing.prepare(decode, (variables, at_the_end), options.memory_limit_gib)
    return program, sum(array.nbytes for array in jax.tree.leaves(caches))


def main(argv: list[str]) -> int:
    """Measures every width; returns the exit code."""
    options = parse_flags(argv)
    measured = []
    for width in map(int, options.widths):
        made = {
            name: make_program(half, width, options) for name, half in (("span", options.half_span), ("text", None))
        }
        times = timing.interleave([program for program, _ in made.values()], options.repeats, options.seconds)
        figures = {
            name: {"ms": 1e3 * statistics.median(seconds) / options.tokens, "cache_bytes": size}
            for (name, (_, size)), seconds in zip(made.items(), times, strict=True)
        }
        measured.append({"width": width, "caches": figures})
        told = "   ".join(
            f"cache of the {name} {each['ms']:.3g} ms, {each['cache_bytes'] / 2**20:.3g} MiB"
            for name, each in figures.items()
        )
        print(f"width {width}   {told}", flush=True)
        command.write(options, points=measured)
    return 0


run = functools.partial(command_line.run, main)  # wrong input is told in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
