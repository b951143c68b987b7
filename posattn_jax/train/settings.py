"""Settings of the training loop: how long to train, and in what batches."""

import dataclasses
from typing import Literal

import jax

from posattn_jax.system.errors import InputError
from posattn_jax.train.schedule import to_steps


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long a run trains, and in what batches.

    Attributes:
      total_steps: the updates of the run; 0: see `total_epochs`.
      total_epochs: the epochs of the run.
      batch_size: the examples of a micro-batch. With `data.packed`, the rows, which several examples share. With
        `Ordered` data, in the unit of that data.
      accumulation_steps: the micro-batches whose gradients are summed into an update.
      merged_batches: "yes": the micro-batches of an update are computed as one. Gradients and dropout are the same, up
        to rounding; there are fewer steps, with more memory. "auto": on accelerators, for a task that `merges`, if what
        its backward pass keeps takes at most a quarter of the memory. "no": one after another.
      eval_batch_size: the examples of a batch in evaluation.
      log_steps: the updates between two log entries.
      checkpoint_steps: the updates between two checkpoints. 0: only evaluations save one; they always do.
      eval_steps: the updates between two evaluations; 0: an epoch.
      keep_checkpoints: how many checkpoints of evaluations are kept from the best one on, and as many of the last ones;
        see `Checkpoints`.
      bounded_spans: "yes": implementations of attention are compiled for static bounds of the spans (see
        `train.program.SpanBounds`). "no": their cost follows the spans at run time. "auto": whichever is faster.
      dispatch_steps: the most updates that are dispatched to the devices at once. 0: 1 on CPUs; on accelerators 64 of
        data that are kept there, and 16 of others, whose batches are copied. It is always 1 with bounded spans, which
        are read after each update, and where batches have several shapes.
      resident_mib: the largest size of `Resident` data, in MiB, that is kept on every device. -1: 2048 on accelerators,
        0 on CPUs.
    """

    total_steps: int = 0
    total_epochs: float = 0.0
    batch_size: int = 20
    accumulation_steps: int = 1
    merged_batches: Literal["auto", "yes", "no"] = "auto"
    eval_batch_size: int = 200
    log_steps: int = 50
    checkpoint_steps: int = 0
    eval_steps: int = 0
    keep_checkpoints: int = 1
    bounded_spans: Literal["auto", "yes", "no"] = "auto"
    dispatch_steps: int = 0
    resident_mib: int = -1

    def __post_init__(self):
        for name in ("batch_size", "accumulation_steps", "eval_batch_size", "log_steps", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")
        for name in ("checkpoint_steps", "eval_steps", "dispatch_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        if self.resident_mib < -1:
            raise ValueError(f"resident_mib={self.resident_mib}: expected 0 or more, or -1")

    def decided(
        self, steps_per_epoch: int, bounds_needed: bool = False, bounds_pay: bool = False, merging_fits: bool = False
    ) -> "Settings":
        """The settings with every default that depends on the data, the model and the devices replaced by its value.

        Args:
          steps_per_epoch: the updates of an epoch.
          bounds_needed: whether spans must be bounded, whatever `bounded_spans` is.
          bounds_pay: whether "auto" bounds the spans.
          merging_fits: whether "auto" merges micro-batches.

        Raises:
          InputError: the run has no update.
        """
        total_steps = to_steps("train.total", self.total_steps, self.total_epochs, steps_per_epoch)
        if total_steps < 1:
            raise InputError(f"train.total_steps={total_steps}: expected at least 1")
        is_bounded = self.bounded_spans == "yes" or (self.bounded_spans == "auto" and bounds_pay)
        on_cpu = jax.default_backend() == "cpu"
        return dataclasses.replace(
            self,
            total_steps=total_steps,
            merged_batches={"auto": "yes" if merging_fits else "no"}.get(self.merged_batches, self.merged_batches),
            bounded_spans="yes" if bounds_needed or is_bounded else "no",
            dispatch_steps=self.dispatch_steps or (1 if on_cpu else 0),
            resident_mib=(0 if on_cpu else 2048) if self.resident_mib == -1 else self.resident_mib,
        )

    @property
    def merges_batches(self) -> bool:
        """Whether the micro-batches of an update are computed as one."""
        return self.merged_batches == "yes"

    @property
    def bounds_spans(self) -> bool:
        """Whether implementations are compiled for static bounds of the spans."""
        return self.bounded_spans == "yes"
