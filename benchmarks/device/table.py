"""The tables of what was measured on a device, as Markdown, from the results alone.

  python -m benchmarks.device.table benchmarks/results/DEVICE [--into=docs/gpu.md]

--into puts them between the lines "<!-- gpu -->" and "<!-- /gpu -->" of a file, or "tpu" likewise.
"""

import json
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from absl import flags

from posattn_jax.benchmarks.table import markdown, number, put_into
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError, RunError

IMPLEMENTATIONS = ("fused", "tiled", "dense", "flex", "cudnn", "flash")
RATIOS = ("fused/tiled", "fused/flex", "fused/cudnn", "fused/flash", "fused/floor")
NAMED = 3  # of the cases that are left out
PASSES = ("forward", "forward_backward")
PARITY = "forward_backward"


def read_results(folder: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary, and what there is of its cases, in its order.

    Raises:
      InputError: the folder has no summary.
      RunError: a file cannot be read.
    """
    path = folder / "summary.json"
    if not path.exists():
        raise InputError(f"{path}: no such file: expected a folder of launch/tpu_check.sh")
    results = []
    try:
        summary = json.loads(path.read_text())
        for name in (*summary["done"], *summary["given_up"], *summary["left_out"]):
            path = folder / f"{name}.json"
            if path.exists():
                results.append(json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        raise RunError(f"{path} cannot be read ({error})") from error
    return summary, results


def format_results(folder: pathlib.Path) -> str:
    """Times with ratios and floors, parity, what is absent and why, and what was left out."""
    summary, results = read_results(folder)
    timings = [result for result in results if "rates" in result]
    parities = [result for result in results if "rates" not in result and _section(result, PARITY)["implementations"]]
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    parts = [f"{summary['device']['kind']}; {versions}."]
    if timings:
        parts.append(timing_table(timings))
        parts.append(
            "Milliseconds, forward / forward and backward (medians); floor: the largest of arithmetic, exp and "
            f"bandwidth at the device's rates ({timings[0]['rates']['from']}); error: the largest of |x - exact| / "
            "|exact| over outputs and gradients; MiB: temporary memory."
        )
    if parities:
        parts.append(parity_table(parities))
        parts.append("|x - exact| / |exact|, the largest over outputs and gradients, against float64.")
    parts.append("\n".join(f"- {line}" for line in absences(results)))
    if left_out := summary["left_out"]:
        more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        parts.append(f"Not measured, or only in part: {', '.join(left_out[:NAMED])}{more}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def timing_table(results: list[dict[str, Any]]) -> str:
    """A row a case, and no column that is empty."""
    described = [f"{name} {kind}" for name in ("fused", "tiled") for kind in ("error", "MiB")]
    rows = [["grid, half-span, batch, d", "dtype", "floor", *IMPLEMENTATIONS, *RATIOS, *described]]
    for result in results:
        case, passes = result["case"], [_section(result, name) for name in PASSES]
        row = [f"{case['shape']}, {case['half']}, {case['batch']}, {case['head_dim']}", case["dtype"]]
        row.append(both(section.get("floor_ms") for section in passes))
        row += [both(_of(section, name, "median_ms") for section in passes) for name in IMPLEMENTATIONS]
        row += [both(section.get("ratios", {}).get(name) for section in passes) for name in RATIOS]
        for name in ("fused", "tiled"):
            row.append(both((_of(section, name, "error") for section in passes), error))
            row.append(both(_of(section, name, "temp_mib") for section in passes))
        rows.append(row)
    kept = [i for i in range(len(rows[0])) if any(row[i] != "-" for row in rows[1:])]
    return markdown([[row[i] for i in kept] for row in rows])


def parity_table(results: list[dict[str, Any]]) -> str:
    """A row a problem, a column an implementation; what disagrees is bold."""
    sections = [_section(result, PARITY) for result in results]
    implementations = list(dict.fromkeys(name for section in sections for name in section["implementations"]))
    rows = [["problem", *implementations]]
    for result, section in zip(results, sections, strict=True):
        cells = [error(_of(section, name, "error"), _of(section, name, "agrees") is False) for name in implementations]
        rows.append([result["case"]["name"], *cells])
    return markdown(rows)


def absences(results: list[dict[str, Any]]) -> list[str]:
    """Every reason for which something is absent, with what and where."""
    places: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for name, section in result["passes"].items():
            for implementation, values in section["implementations"].items():
                if "absent" in values:
                    key = (implementation, values["absent"])
                    places.setdefault(key, []).append(f"{result['case']['name']} {name}")
    failures = [
        f"{result['case']['name']} failed as a whole: {reason}"
        for result in results
        for reason in dict.fromkeys(result.get("failures", ()))
    ]
    return failures + [
        f"{implementation} is absent from {', '.join(where) if len(where) <= 2 else f'{len(where)} passes'}: {reason}"
        for (implementation, reason), where in places.items()
    ]


def both(values: Iterable[float | None], write: Callable[[float | None], str] = number) -> str:
    """Forward / forward and backward; a dash where there is neither."""
    cells = [write(value) for value in values]
    return "-" if set(cells) == {"-"} else " / ".join(cells)


def error(value: float | None, bold: bool = False) -> str:
    """Two digits."""
    text = "-" if value is None else f"{value:.1e}"
    return f"**{text}**" if bold else text


def _section(result: dict[str, Any], name: str) -> dict[str, Any]:
    return result["passes"].get(name, {"implementations": {}})


def _of(section: dict[str, Any], implementation: str, name: str) -> Any:
    return section["implementations"].get(implementation, {}).get(name)


def main(argv: list[str]) -> int:
    """Prints the tables, or puts them into a file; returns the exit code."""
    values = flags.FlagValues()
    flags.DEFINE_string("into", None, "The file to put the tables into.", flag_values=values)
    command_line.show_help(values, argv, str(__doc__))
    try:
        rest = values(argv)[1:]
    except flags.Error as error:
        raise InputError(str(error)) from error
    if len(rest) != 1:
        raise InputError("expected one folder of results, such as benchmarks/results/DEVICE")
    folder = pathlib.Path(rest[0])
    text = format_results(folder)
    if values["into"].value is None:
        print(text)
    else:
        put_into(pathlib.Path(values["into"].value), read_results(folder)[0]["device"]["platform"], text)
    return 0


def run(argv: list[str]) -> int:
    """`main`, with wrong input told in one line; returns the exit code."""
    return command_line.run(main, argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
