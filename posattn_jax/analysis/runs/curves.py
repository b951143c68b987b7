"""The logs of a treatment's runs, prepared for pictures: means over runs, and intervals or ranges."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from posattn_jax.analysis.statistics import mean_interval, sample

# What a run logged: (split, name) -> step -> (epoch, value).
Log = Mapping[tuple[str, str], Mapping[int, tuple[float, float]]]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A metric during training, at the steps that all runs have.

    Attributes:
      num_runs: the number of runs that have the metric.
      at: [n] epochs, or seconds.
      mean: [n] the mean over runs.
      low, high: [n] for a response the 95% interval of the mean (t), for the size of a span its range; None: not known.
    """

    num_runs: int
    at: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def at_points(self, which: Any) -> "Curve":
        """The curve at some of its points."""
        arrays = {name: array[which] for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return dataclasses.replace(self, **arrays)


@dataclasses.dataclass(frozen=True)
class Spans:
    """Learned spans after the best epoch.

    Attributes:
      num_runs: the number of runs that have them.
      factors: layer -> [p, p] the Cholesky factor of its Gaussian, the mean over heads and runs.
      image: [height width c] the image to draw them on.
    """

    num_runs: int
    factors: dict[str, np.ndarray]
    image: np.ndarray


def log_of(rows: Iterable[Mapping[str, Any]]) -> Log:
    """The rows of a `metrics.jsonl` by split and name."""
    log: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in rows:
        log.setdefault((row["split"], row["name"]), {})[row["step"]] = (float(row["epoch"]), float(row["value"]))
    return log


def response_curves(logs: Sequence[Log], response: str) -> dict[str, Curve]:
    """The curves of the validation response over "epochs" and over "seconds"."""
    curves = {}
    metric = ("validation", response)
    epochs, (values,) = _common(logs, [[metric]])
    if len(epochs):
        curves["epochs"] = Curve(len(values), epochs, values.mean(0), *_interval(values))
    epochs, (values, seconds) = _common(logs, [[metric], [("speed", "seconds")]])
    if len(epochs):
        curves["seconds"] = Curve(len(values), seconds.mean(0), values.mean(0))
    return curves


def size_curves(logs: Sequence[Log], num_dims: int) -> dict[str, Curve]:
    """The size of every layer's span in each dimension, as "block_0/1". It is a mean over heads with own spans."""
    sizes = {name for log in logs for split, name in log if split == "span" and "/size_" in name}
    layers = sorted({name.split("/")[0] for name in sizes}, key=lambda layer: int(layer.split("_")[1]))
    curves = {}
    for dim in range(num_dims):
        for layer in layers:
            own = [n for n in sizes if n.startswith(f"{layer}/") and int(n.split("_")[-1]) % num_dims == dim]
            epochs, (values,) = _common(logs, [[("span", name) for name in own]])
            if len(epochs):
                curves[f"{layer}/{dim}"] = Curve(len(values), epochs, values.mean(0), values.min(0), values.max(0))
    return curves


def _common(logs: Sequence[Log], groups: Sequence[Sequence[tuple[str, str]]]) -> tuple[np.ndarray, np.ndarray]:
    """Means of groups of metrics, for the runs that have all metrics: epochs [n] and values [groups, runs, n]."""
    having = [log for log in logs if all(metric in log for group in groups for metric in group)]
    if not having:
        return np.zeros(0), np.zeros((len(groups), 0, 0))
    steps = sorted(set.intersection(*(set(log[metric]) for log in having for group in groups for metric in group)))
    epochs = np.array([having[0][groups[0][0]][step][0] for step in steps])
    values = [
        [np.mean([[log[metric][step][1] for step in steps] for metric in group], axis=0) for log in having]
        for group in groups
    ]
    return epochs, np.array(values)


def _interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """The ends of the 95% interval of the mean over runs; None for a single run."""
    if len(values) < 2:
        return None, None
    intervals = [mean_interval(sample(column.tolist())) for column in values.T]
    return np.array([each.low for each in intervals]), np.array([each.high for each in intervals])
