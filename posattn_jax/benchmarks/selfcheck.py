"""Tries the fused kernel on this TPU, and shows the verdicts of earlier trials.

  python -m posattn_jax.benchmarks.selfcheck [--shapes=2d64,1d1024] [--half=8] [--heads=8] [--head_dims=64]
      [--dtypes=bfloat16] [--seconds=180] [--renew]

"auto" uses the kernel in the cases for which a trial found it correct and the fastest. This command must run the trial
before a training occupies the device. Each trial runs in a separate process. Verdicts are files in
`~/.cache/posattn_jax/fused` ($XDG_CACHE_HOME moves it): please send us those of your device. Exit codes: 0 done, 2
wrong input or no device with such a kernel.
"""

import sys
from typing import Any

from absl import flags

from posattn_jax.benchmarks.shapes import parse_shape
from posattn_jax.ops.attention.tpu import verdict
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import cache_folder, read_json

PARTS = ("key", "relative_encoding", "content_bias", "position_bias", "sigma")  # those of the span paper's layers


def define_flags() -> flags.FlagValues:
    """The flags, unparsed, in a registry of their own."""
    values = flags.FlagValues()
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("shapes", ["2d64", "1d1024"], "Grids, as 2d64x32.", **own)
    flags.DEFINE_integer("half", 8, "The half-span in every dimension.", lower_bound=1, **own)
    flags.DEFINE_integer("heads", 8, "Heads.", lower_bound=1, **own)
    flags.DEFINE_list("head_dims", ["64"], "Features per head.", **own)
    flags.DEFINE_list("dtypes", ["bfloat16"], "Data types of the features.", **own)
    about = "Time limit per trial, after which the kernel counts as hanging."
    flags.DEFINE_float("seconds", verdict.SECONDS, about, lower_bound=1, **own)
    flags.DEFINE_bool("renew", False, "Try cases again that already have a verdict.", **own)
    return values


def cases(options: flags.FlagValues) -> list[verdict.Case]:
    """The cases to try."""
    head_dims = command_line.numbers("--head_dims", options.head_dims, least=1)
    for dtype in options.dtypes:
        if dtype not in ("bfloat16", "float32"):
            raise InputError(f"--dtypes={dtype}: expected bfloat16 or float32")
    shapes = [parse_shape(name) for name in options.shapes]
    return [
        verdict.Case(shape, tuple(min(options.half, size - 1) for size in shape), options.heads, d, dtype, PARTS)
        for shape in shapes
        for d in head_dims
        for dtype in options.dtypes
    ]


def main(argv: list[str], platforms: tuple[str, ...] = verdict.PLATFORMS) -> int:
    """Runs the trials, and prints every verdict that is kept; returns the exit code."""
    options = command_line.parse(define_flags(), argv, str(__doc__))
    folder = cache_folder() / "fused"
    asked, machine = cases(options), verdict.machine_apart()  # only one process can hold a TPU: the trial's
    if machine["platform"] in platforms:
        for case in asked:
            if options.renew or verdict.saved(case, machine) is None:
                print(f"trying {_named(case._asdict())} ...", flush=True)
                found = verdict.save(case, verdict.tried(case, machine, options.seconds), machine)
                if found.outcome == verdict.UNDECIDED:
                    print(f"  no verdict: {found.reason}")
    for path in sorted(folder.glob("*.json")):
        found = read_json(path)
        said = found["verdict"]
        print(f"{found['device']}, jax {found['jax']}: {_named(found['case'])}:")
        print(f"  {said['outcome']} ({said['reason']})")
        print(f"  {path}")
    if machine["platform"] not in platforms:
        raise InputError(f"no fused kernel for platform {machine['platform']}: expected one of {', '.join(platforms)}")
    return 0


def _named(case: dict) -> str:
    return (
        f"{' x '.join(map(str, case['grid_shape']))}, half-span {' x '.join(map(str, case['half']))}, "
        f"{case['num_heads']} heads of {case['head_dim']}, {case['dtype']}"
    )


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
