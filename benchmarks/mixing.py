"""Parameters, operations, memory and latency of mixers, as trained and with precomputed energies, for one sentence.

  python -m benchmarks.mixing [--length=128 --width=512 --heads=8 --context=16]
      [--repeats=200 --seconds=20] [--out=FOLDER]

Prints Table 7 of Schmidt 2023 as measured: multiply-adds are half of the operations that the compiler counts in the
forward pass of one layer, softmax and activations included; beside them what the paper's formula says. With --out also
`results.json`. Exit codes: 0 done, 2 wrong input, 130 stopped by Ctrl-C.
"""

import math
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import flags

from posattn_jax.benchmarks.command import describe_machine
from posattn_jax.benchmarks.table import measurement
from posattn_jax.benchmarks.timing import interleave, prepare
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, Glu, NormalizedGelu
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.places import LearnedPositions, SinusoidalPositions
from posattn_jax.nn.precompute import precompute
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json

HEADER = "mixer                     parameters  multiply-adds     formula   temp MiB         ms"


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, apart from those of any other command."""
    values = flags.FlagValues()
    own = {"flag_values": values}
    for name, default in {"length": 128, "width": 512, "heads": 8, "context": 16}.items():
        flags.DEFINE_integer(name, default, "A size of the layer.", lower_bound=1, **own)
    flags.DEFINE_integer("repeats", 200, "Runs of every mixer, fewer where --seconds is short.", lower_bound=1, **own)
    flags.DEFINE_float("seconds", 20, "To spend on the runs, though at least three each.", **own)
    flags.DEFINE_string("out", None, "The folder for results.json.", **own)
    flags.DEFINE_bool("help", False, "Show this.", **own)
    return values


def make_mixers(options: flags.FlagValues) -> dict[str, tuple[TokenMixing, int]]:
    """Every mixer of Table 7, and the multiply-adds that its formula counts."""
    n, c, k = options.length, options.width, 2 * options.context + 1
    gated = {"values": NormalizedGelu, "gate": GeluGate}
    transform = round(n * math.log2(n) * c + c * math.log2(c) * n)

    def mixer(energies: nn.Module, **parts: type[nn.Module]) -> TokenMixing:
        return TokenMixing(options.heads, energies=energies, **{name: part() for name, part in parts.items()})

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
            features = SinusoidalPositions().apply({}, places, c)
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
            programs[form] = prepare(forward, (own, x), memory_limit_gib=8.0)
    times = interleave(list(programs.values()), options.repeats, options.seconds)
    for (form, program), runs in zip(programs.items(), times, strict=True):
        figures[form] |= measurement(program, runs)
    return figures


def format_table(figures: dict[str, dict[str, Any]]) -> str:
    """A line a mixer."""
    lines = [HEADER]
    for form, row in figures.items():
        line = f"{form:24s} {row['parameters']:11,d} {row['multiply_adds']:14,d} {row['formula']:11,d}"
        lines.append(f"{line} {row['temp_mib']:10.2f} {row['median_ms']:10.3f}")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Measures; returns the exit code."""
    options = command_line.parse(define_flags(), argv)
    if options.help:
        print(f"{__doc__}\n{options.get_help()}")
        return 0
    if options.width % options.heads:
        raise InputError(f"--heads={options.heads} does not divide --width={options.width}")
    out = command_line.make_folder(options.out)
    asked = {name: value for name, value in options.flag_values_dict().items() if name not in ("help", "out")}
    figures = measure(options)
    print(format_table(figures), flush=True)
    if out is not None:
        write_json(out / "results.json", {"options": asked, **describe_machine(), "mixers": figures})
    return 0


def run(argv: list[str]) -> int:
    """`main`, with wrong input told in one line; returns the exit code."""
    return command_line.run(main, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
