"""What is checked on a TPU, the most important first."""

import dataclasses
import itertools
from typing import Any

from posattn_jax.benchmarks.shapes import Point, parse_shape

DTYPES = ("bfloat16", "float32")

# Half-spans by grid and batch, and features a head: of each the most telling first.
GRIDS = (
    ("2d64", 8, (8, 3, 16)),
    ("2d32", 40, (4, 8)),
    ("2d256", 1, (8, 16)),
    ("3d32", 1, (2, 4)),
    ("1d65536", 1, (256, 1024)),
)
HEAD_DIMS = (64, 32, 128, 8)
HEADS = 8

# The shape by which the implementations are judged comes before everything else.
PROOF = ("2d64", 8, 8)
PROOF_HEAD_DIMS = (64, 32)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Arrays, and the half-span in positions, the same along each dimension, of what is timed."""

    shape: str
    half: int
    batch: int
    heads: int
    head_dim: int
    dtype: str

    @property
    def name(self) -> str:
        """Of its file."""
        sizes = f"half{self.half}_b{self.batch}_h{self.heads}_d{self.head_dim}"
        return f"attention_{self.shape}_{sizes}_{self.dtype}"

    @property
    def described(self) -> dict[str, Any]:
        """As the results have it."""
        point = self.point
        pairs = {"sigma": point.sigma, "pairs": point.pairs, "pair_ratio": point.pair_ratio}
        return {"name": self.name, **dataclasses.asdict(self), **pairs}

    @property
    def point(self) -> Point:
        """The grid and its span."""
        sizes = parse_shape(self.shape)
        return Point(self.shape, sizes, tuple(min(self.half, size - 1) for size in sizes))


@dataclasses.dataclass(frozen=True)
class Parity:
    """A small problem that the timed implementations must solve as the float64 reference does.

    Options: of `relative_attention`; beside them "per_head", a sigma a head, and "key_mask", a random one.
    """

    shape: str
    half: tuple[int, ...]
    head_dim: int
    dtype: str
    batch: int = 2
    heads: int = 2
    options: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        """Of its file."""
        options = "".join(f"_{name if value is True else value}" for name, value in self.options)
        return f"parity_{self.shape}_d{self.head_dim}{options}_{self.dtype}"

    @property
    def described(self) -> dict[str, Any]:
        """As the results have it."""
        return {"name": self.name, **dataclasses.asdict(self), "sigma": self.point.sigma}

    @property
    def point(self) -> Point:
        """The grid and its span."""
        return Point(self.shape, parse_shape(self.shape), self.half)


Case = Timing | Parity

MASKED = (("span_mode", "log_add"), ("per_head", True), ("key_mask", True), ("is_causal", True))


def cases() -> list[Case]:
    """The proof, parity, and all timings: those first that are the fewest steps from the first choice of each kind."""
    parity = [
        Parity(shape, half, head_dim, dtype, options=options)
        for (shape, half, head_dim, options), dtype in itertools.product(
            (
                ("2d20x12", (4, 3), 64, ()),
                ("1d100", (9,), 32, ()),
                ("3d6x5x7", (2, 1, 3), 32, ()),
                ("2d20x12", (4, 3), 64, MASKED),
            ),
            DTYPES,
        )
    ]
    steps = {}
    for (i, (shape, batch, halves)), (j, head_dim), (k, dtype) in itertools.product(
        enumerate(GRIDS), enumerate(HEAD_DIMS), enumerate(DTYPES)
    ):
        for m, half in enumerate(halves):
            is_proof = (shape, batch, half) == PROOF and head_dim in PROOF_HEAD_DIMS
            steps[Timing(shape, half, batch, HEADS, head_dim, dtype)] = (not is_proof, j + k + m, j + k, i)
    timings = sorted(steps, key=steps.__getitem__)
    proofs = len(DTYPES) * len(PROOF_HEAD_DIMS)
    return [*timings[:proofs], *parity, *timings[proofs:]]


def quick_cases() -> list[Case]:
    """The same code on shapes that a CPU does in a minute."""
    return [
        Timing("2d8", 2, 2, 2, 8, "bfloat16"),
        *(Parity("2d6x5", (2, 1), 8, dtype, options=MASKED) for dtype in DTYPES),
        Timing("1d64", 5, 1, 2, 8, "float32"),
    ]
