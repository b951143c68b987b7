"""What learned spans cost, from run folders: python -m docs.figures.span_cost RUN [RUN ...] --out=FILE.png

Three panels over the steps of each run: the mean span as a share of the grid, the scores computed, and the seconds of
an update. The legend has each run's validation accuracy after its last step.
"""

import argparse
import pathlib
from collections import defaultdict

import numpy as np

from posattn_jax.system.files import read_json, read_metrics
from posattn_jax.system.plot_style import panels, save, style


def read_run(workdir: pathlib.Path) -> tuple[str, dict[str, tuple[list[int], list[float]]]]:
    """A run's label, and per panel the steps and the values at them: means over blocks, dimensions and heads."""
    config = read_json(workdir / "config.json")
    summary = read_json(workdir / "summary.json")
    images = config["train"]["batch_size"] * config["train"]["accumulation_steps"]
    reach = 2 * np.asarray(summary["grid_shape"]) - 1
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_metrics(workdir / "metrics.jsonl"):
        name = row["name"].split("/")[-1]
        if row["split"] == "span" and name.startswith("size_"):
            dimension = int(name.removeprefix("size_")) % len(reach)
            values["span (share of the offsets)"][row["step"]].append(row["value"] / reach[dimension])
        elif row["split"] == "span" and name.startswith("score_share_"):
            values["scores computed (share of N x N)"][row["step"]].append(row["value"])
        elif row["split"] == "speed" and name == "images_per_second" and row["value"] > 0:
            values["seconds an update"][row["step"]].append(images / row["value"])
    label = f"penalty {config['task']['span_penalty']:g}: accuracy {summary['final']['accuracy']:.3f}"
    return label, {
        name: (sorted(series), [float(np.mean(series[step])) for step in sorted(series)])
        for name, series in values.items()
    }


def draw(workdirs: list[pathlib.Path], out: pathlib.Path) -> None:
    """Draws the runs into `out`."""
    runs = [read_run(workdir) for workdir in workdirs]
    names = ("span (share of the offsets)", "scores computed (share of N x N)", "seconds an update")
    figure, axes = panels(len(names), len(names), 3.0, 3.0)
    for axis, name in zip(axes, names, strict=True):
        for i, (label, series) in enumerate(runs):
            steps, values = series[name]
            axis.plot(steps, values, markevery=0.1, label=label, **style(i))
        top = 1.2 * np.percentile(np.concatenate([series[name][1] for _, series in runs]), 95)  # a pause is no update
        axis.set(xlabel="updates", ylabel=name, ylim=(0, top))
        axis.grid()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(runs))
    save(figure, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="run folders")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the picture to write")
    arguments = parser.parse_args()
    for workdir in arguments.runs:
        if not (workdir / "summary.json").exists():
            parser.error(f"{workdir}: no finished run there (it has no summary.json)")
    draw(arguments.runs, arguments.out)


if __name__ == "__main__":
    main()
