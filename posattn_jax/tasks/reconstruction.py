"""Can a SIREN fit the sinusoidal baseline's E? What a run that asks so optimises and reports."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Shape
from posattn_jax.nn.siren import Siren
from posattn_jax.ops import grid
from posattn_jax.tasks.task import Params, Task, Totals


@dataclasses.dataclass(frozen=True)
class Reconstruction(Task):
    """A SIREN fitted to a given encoding E of a grid's offsets x (proposed in Alfons 2022, section 6).

      loss = mean over offsets and features of (SIREN(x) - E)^2
      explained = 1 - sum of (SIREN(x) - E)^2 / sum of (E - mean of E over the offsets)^2

    Attributes:
      siren: as wide as E.
      grid_shape: the grid.
    """

    score: ClassVar[str] = "explained"  # 1: E itself, 0: no better than the mean of each feature
    unit: ClassVar[str] = "offsets"  # of examples

    siren: Siren
    grid_shape: Shape

    def init(self, rng: Array) -> Params:
        """The parameters of a fresh SIREN."""
        return self.siren.init(rng, jnp.zeros((1, len(self.grid_shape))))["params"]

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"inputs" [b p], "targets" [b c], optional "weights" [b]} and its totals.

        Nothing is random, so `rng` changes nothing. Totals add up over batches: see `summarise`.
        """
        targets = batch["targets"]
        weights = batch.get("weights", jnp.ones(len(targets)))
        errors = jnp.subtract(self.siren.apply({"params": params}, batch["inputs"]), targets)
        totals = {
            "error": weights @ jnp.sum(errors**2, -1),
            "sum": weights @ targets,
            "squares": weights @ jnp.sum(targets**2, -1),
            "count": jnp.sum(weights),
        }
        return totals["error"] / (totals["count"] * self.siren.features), totals

    def zero_totals(self) -> Totals:
        """The totals of no offsets."""
        zero = jnp.zeros(())
        return {"error": zero, "sum": jnp.zeros(self.siren.features), "squares": zero, "count": zero}

    def summarise(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Mean squared error, and the share of the variation of E that is explained, over the offsets in the totals."""
        error, squares, count = (float(totals[name]) for name in ("error", "squares", "count"))
        variation = squares - float(np.sum(np.square(totals["sum"], dtype=np.float64))) / count
        return {"loss": error / (count * self.siren.features), "explained": 1 - error / variation}

    def describe(self, params: Params) -> dict[str, dict[str, Array]]:
        """The fitted encoding instead of a block's: "relative_encoding" [*R, 1, c]."""
        encoding = self.siren.apply({"params": params}, grid.relative_coordinates(self.grid_shape))
        return {"block_0": {"relative_encoding": encoding[..., None, :]}}
