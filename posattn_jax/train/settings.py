"""What the loop is told about how long to train."""

import dataclasses
from typing import Literal

import jax

from posattn_jax.system.errors import InputError
from posattn_jax.train.schedule import to_steps


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and in what portions a run trains.

    Attributes:
      total_steps: the updates of the run; 0: see `total_epochs`.
      total_epochs: its epochs.
      batch_size: the examples of a micro-batch, or the rows that several share (`data.packed`); of a source that is
        `Ordered`, what that counts.
      accumulation_steps: the micro-batches whose gradients are summed into an update.
      eval_batch_size: the examples of a batch of evaluation.
      log_steps: the updates between two looks at the loss.
      checkpoint_steps: the updates between two checkpoints, besides the one of every evaluation; 0: none besides.
      eval_steps: the updates between two evaluations; 0: an epoch.
      keep_checkpoints: of how many evaluations they are kept, the last, and from the best one on; see `Checkpoints`.
      bounded_spans: whether layouts are compiled for static bounds of the spans (see `train.bounds`), "yes" or "no":
        then their cost follows the spans at run time; "auto": as is faster.
      dispatch_steps: the updates that the devices are given at once; one where spans are bounded, which are looked at
        after each, and where batches have several shapes. 0: 16 on accelerators, 1 on CPUs.
      resident_mib: the MiB of examples, of sources that are `Resident`, that are device-resident at most. -1: 2048 on
        accelerators, 0 on CPUs.
    """

    total_steps: int = 0
    total_epochs: float = 0.0
    batch_size: int = 20
    accumulation_steps: int = 1
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

    def decided(self, steps_per_epoch: int, bounds_needed: bool = False, bounds_pay: bool = False) -> "Settings":
        """With a number, or "yes" or "no", instead of what depends on the data, on the model and on the devices.

        Args:
          steps_per_epoch: the updates of an epoch.
          bounds_needed: whether spans are bounded whatever is asked for.
          bounds_pay: whether they are with "auto".

        Raises:
          InputError: a run of no update.
        """
        total_steps = to_steps("train.total", self.total_steps, self.total_epochs, steps_per_epoch)
        if total_steps < 1:
            raise InputError(f"train.total_steps={total_steps}: expected at least 1")
        is_bounded = self.bounded_spans == "yes" or (self.bounded_spans == "auto" and bounds_pay)
        on_cpu = jax.default_backend() == "cpu"
        return dataclasses.replace(
            self,
            total_steps=total_steps,
            bounded_spans="yes" if bounds_needed or is_bounded else "no",
            dispatch_steps=self.dispatch_steps or (1 if on_cpu else 16),
            resident_mib=(0 if on_cpu else 2048) if self.resident_mib == -1 else self.resident_mib,
        )

    @property
    def bounds_spans(self) -> bool:
        """Whether layouts are compiled for static bounds of the spans."""
        return self.bounded_spans == "yes"
