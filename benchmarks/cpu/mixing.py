"""Parameters, operations, memory and latency of mixers, as trained and with precomputed energies, for one sentence.

  python -m benchmarks.cpu.mixing [--length=128 --width=512 --heads=8 --context=16]
      [--repeats=200 --seconds=20 --memory_limit_gib=8] [--out=FOLDER]

Prints Table 7 of Schmidt 2023 as measured: multiply-adds are half of the operations that the compiler counts in the
forward pass of one layer, softmax and activations included; next to them what the paper's formula says. With --out also
`results.json`. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import functools
import math
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import flags

from posattn_jax.benchmarks import command
from posattn_jax.benchmarks.table import measure_all
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, Glu, NormalizedGelu
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.positions import LearnedPositions, SinusoidalPositions
from posattn_jax.nn.precompute import precompute
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError

HEADER = "mixer                     parameters  multiply-adds     formula   temp MiB         ms"


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = command.define_flags(repeats=200, seconds=20.0)
    own: dict[str, Any] = {"flag_values": values}
    for name, default in {"length": 128, "width": 512, "heads": 8, "context": 16}.items():
        flags.DEFINE_integer(name, default, "A size of the layer.", lower_bound=1, **own)
    return values


def make_mixers(options: flags.FlagValues) -> dict[str, tuple[TokenMixing, int]]:
    """Every mixer of Table 7, and the multiply-adds that its formula counts."""
    n, c, k = options.length, options.width, 2 * options.context + 1
    gated = {"values": NormalizedGelu, "gate": GeluGate}
    transform = round(n * math.log2(n) * c + c * math.log2(c) * n)

    def mixer(energies: nn.Module, **parts: type[nn.Module]) -> TokenMixing:
        made: dict[str, Any] = {name: part() for name, part in parts.items()}
        return TokenMixing(options.heads, energies=energies, **made)

    learned = LearnedPositions((n,))
    table, context = ((n,), (n,)), options.context
    return {
        "Transformer": (mixer(DotProducts()), 2 * n * n * c + 4 * n * c * c),
        "Shaw et al.": (
            mixer(DotProducts(keys=("content", "relative"), context=context)),
            k * n * c + 2 * n * n * c + 4 * n * c * c,
        ),
        "FourierNet": (mixer(FourierWeights()), transform),
        "GaussianNet": (mixer(GaussianWeights()), k * n * c + 2 * n * c * c),
        "LinearNet": (mixer(PairTable(*table)), n * n * c + 2 * n * c * c),
        "LightConv": (mixer(OffsetTable(context), values=Glu), k * n * c + 3 * n * c * c),
        "gLinearNet": (mixer(PairTable(*table), **gated), n * n * c + 3 * n * c * c),
        "aPosNet": (mixer(DotProducts("position", ("position",)), **gated), 2 * n * n * c + 5 * n * c * c),
        "rPosNet": (
            mixer(DotProducts("position", ("relative",), context, learned), **gated),
            k * n * c + n * n * c + 4 * n * c * c,
        ),
    }


def measure(options: flags.FlagValues) -> dict[str, dict[str, Any]]:
    """Compiles and times every mixer; those of positions alone also precomputed."""
    n, c = options.length, options.width
    x = jax.random.normal(jax.random.key(0), (1, n, c))
    places = jnp.arange(n)[:, None]
    figures, programs = {}, {}
    for name, (mixer, formula) in make_mixers(options).items():
        params = jax.jit(lambda key, mixer=mixer: mixer.init(key, x, (n,))["params"])(jax.random.key(1))
        forms = {name: (mixer, params, formula)}
        if name in ("aPosNet", "rPosNet"):
            features: Any = SinusoidalPositions().apply({}, places, c)
            if name == "rPosNet":
                features = params["energies"]["positions"]["table"]
            fixed, tables = precompute(mixer, params, features[None])
            forms[f"{name}, precomputed"] = fixed, tables, n * n * c + 3 * n * c * c
        for form, (layer, own, multiply_adds) in forms.items():

            def forward(own, x, layer=layer):
                return layer.apply({"params": own}, x, (n,))

            counted: Any = jax.jit(forward).lower(own, x).compile().cost_analysis()
            figures[form] = {
                "parameters": sum(array.size for array in jax.tree.leaves(own)),
                "multiply_adds": round(counted["flops"] / 2),
                "formula": multiply_adds,
            }
            programs[form] = forward, (own, x)
    measured = measure_all(programs, options)
    return {form: row | measured[form] for form, row in figures.items()}


def format_table(figures: dict[str, dict[str, Any]]) -> str:
    """A line a mixer."""
    lines = [HEADER]
    for form, row in figures.items():
        line = f"{form:24s} {row['parameters']:11,d} {row['multiply_adds']:14,d} {row['formula']:11,d}"
        lines.append(f"{line} {row['temp_mib']:10.2f} {row['median_ms']:10.3f}")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Measures; returns the exit code."""
    options = command.parse(define_flags(), argv, str(__doc__))
    if options.width % options.heads:
        raise InputError(f"--heads={options.heads} does not divide --width={options.width}")
    figures = measure(options)
    print(format_table(figures), flush=True)
    command.write(options, mixers=figures)
    return 0


run = functools.partial(command_line.run, main)  # wrong input is told in one line


if __name__ == "__main__":
    sys.exit(run(sys.argv))
