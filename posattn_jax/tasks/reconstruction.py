"""Can a SIREN fit the encoding E of the sinusoidal baseline? The data, the loss and the metrics of this task."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.axes import Array, Shape, Sizes
from posattn_jax.data.pipeline.batches import Tabulated
from posattn_jax.data.pipeline.data_set import DataSet, Reading
from posattn_jax.nn.encodings import SinusoidalEncoding
from posattn_jax.nn.siren import Siren
from posattn_jax.nn.tokens import Tokens
from posattn_jax.ops import grid
from posattn_jax.tasks.task import FROM_DATA, Params, Task, Totals


@dataclasses.dataclass(frozen=True)
class Offsets(Tabulated):
    """A relative encoding as examples, one per offset.

    Attributes:
      coordinates: the normalised offsets, row-major, [n, p] float32, n = prod(2 S - 1).
      targets: the rows of the encoding, [n, c] float32.
      grid_shape: S.
    """

    coordinates: np.ndarray
    targets: np.ndarray
    grid_shape: Sizes

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def knows(self) -> dict[str, Any]:
        """See `batches.Source`."""
        return {"grid_shape": self.grid_shape, "features": self.targets.shape[-1]}

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """{"inputs": [b, p], "targets": [b, c]} for the offsets with these ids."""
        return {"inputs": self.coordinates[ids], "targets": self.targets[ids]}


@dataclasses.dataclass(frozen=True)
class EncodingOffsets(DataSet):
    """Every offset of a grid with its row of the baseline's E, whose W and b are drawn from the run's seed.

    Training and validation both use all offsets: the question is what can be fitted, not what generalises. There is no
    test set.

    Attributes:
      grid_shape: S, one to three sizes.
      combine: how several dimensions are combined, see `SinusoidalEncoding`.
      features: the features of a row of E.
    """

    grid_shape: Sizes = (1024,)
    combine: Literal["concat", "sum"] = "concat"
    features: int = 64

    name: ClassVar[str] = "offsets"

    def __post_init__(self):
        if grid.num_positions(grid.check_grid(self.grid_shape)) == 1:
            raise ValueError(f"grid_shape={self.grid_shape}: expected more than one position")

    def load(self, reading: Reading) -> dict[str, Offsets]:
        encoding, num = SinusoidalEncoding(combine=self.combine), grid.num_positions(self.grid_shape)
        tokens = Tokens(jnp.zeros((1, num, self.features)), self.grid_shape, num_heads=1)
        targets, _ = jax.jit(lambda rng: encoding.init_with_output(rng, tokens))(jax.random.key(reading.seed))
        coordinates = np.asarray(grid.relative_coordinates(self.grid_shape)).reshape(-1, len(self.grid_shape))
        offsets = Offsets(coordinates, np.asarray(targets).reshape(-1, self.features), self.grid_shape)
        return {"train": offsets, "validation": offsets}


@dataclasses.dataclass(frozen=True)
class Reconstruction(Task):
    """Fits a SIREN to a given encoding E of a grid's offsets x (proposed in Alfons 2022, section 6).

      loss = mean over offsets and features of (SIREN(x) - E)^2
      explained = 1 - sum of (SIREN(x) - E)^2 / sum of (E - mean of E over the offsets)^2

    Attributes:
      model: a SIREN as wide as E.
      grid_shape: the grid.
    """

    score: ClassVar[str] = "explained"  # 1: E is fitted exactly, 0: no better than the mean of each feature
    unit: ClassVar[str] = "offsets"  # what the examples are
    models: ClassVar[tuple[type, ...]] = (Siren,)
    can_vmap_seeds: ClassVar[bool] = True

    model: Siren = dataclasses.field(metadata=FROM_DATA)
    grid_shape: Shape = dataclasses.field(metadata=FROM_DATA)

    def init(self, rng: Array) -> Params:
        """The parameters of a fresh SIREN."""
        return self.model.init(rng, jnp.zeros((1, len(self.grid_shape))))["params"]

    def loss(self, params: Params, batch: dict[str, Array], rng: Array | None = None) -> tuple[Array, Totals]:
        """The loss of a batch {"inputs" [b p], "targets" [b c], optional "weights" [b]} and its totals.

        Nothing is random, so `rng` has no effect. Totals can be added over batches: see `summarise`.
        """
        targets = batch["targets"]
        weights = batch.get("weights", jnp.ones(len(targets)))
        outputs: Any = self.model.apply({"params": params}, batch["inputs"])
        errors = jnp.subtract(outputs, targets)
        totals = {
            "error": weights @ jnp.sum(errors**2, -1),
            "sum": weights @ targets,
            "squares": weights @ jnp.sum(targets**2, -1),
            "count": jnp.sum(weights),
        }
        return totals["error"] / (totals["count"] * self.model.features), totals

    def zero_totals(self) -> Totals:
        """The totals of no offsets."""
        zero = jnp.zeros(())
        return {"error": zero, "sum": jnp.zeros(self.model.features), "squares": zero, "count": zero}

    def summarise(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """The mean squared error, and the explained share of the variation of E, over the offsets in the totals."""
        error, squares, count = (float(totals[name]) for name in ("error", "squares", "count"))
        variation = squares - float(np.sum(np.square(totals["sum"], dtype=np.float64))) / count
        return {"loss": error / (count * self.model.features), "explained": 1 - error / variation}

    def describe(self, params: Params) -> dict[str, dict[str, Array]]:
        """The fitted encoding as "relative_encoding" [*R, 1, c], as if it were that of a block."""
        encoding: Any = self.model.apply({"params": params}, grid.relative_coordinates(self.grid_shape))
        return {"block_0": {"relative_encoding": encoding[..., None, :]}}
