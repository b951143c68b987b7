"""What the loop is told about how long to train."""

import dataclasses

from posattn_jax.system.errors import InputError


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and in what portions a run trains.

    Attributes:
      total_steps: the updates of the run.
      batch_size: the examples of a micro-batch; of a source that is `Ordered`, what that counts.
      accumulation_steps: the micro-batches whose gradients are summed into an update.
      eval_batch_size: the examples of a batch of evaluation.
      log_steps: the updates between two looks at the loss.
      checkpoint_steps: the updates between two checkpoints, besides the one of every evaluation; 0: none besides.
      eval_steps: the updates between two evaluations; 0: an epoch.
      keep_checkpoints: of how many evaluations they are kept, the last, and from the best one on; see `Checkpoints`.
      bounded_spans: whether layouts are compiled for static bounds of the spans (see `train.bounds`); otherwise their
        cost follows the spans at run time.
      dispatch_steps: the updates that the devices are given at once; one where spans are bounded, which are looked at
        after each, and where batches have several shapes.
      resident_mib: the MiB of examples, of sources that are `Resident`, that are device-resident at most, on each.
    """

    total_steps: int
    batch_size: int
    accumulation_steps: int
    eval_batch_size: int
    log_steps: int
    checkpoint_steps: int = 0
    eval_steps: int = 0
    keep_checkpoints: int = 1
    bounded_spans: bool = False
    dispatch_steps: int = 1
    resident_mib: int = 0

    def __post_init__(self):
        for name in ("total_steps", "eval_batch_size", "log_steps", "keep_checkpoints", "dispatch_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"train.{name}={getattr(self, name)}: expected at least 1")
        for name in ("checkpoint_steps", "eval_steps", "resident_mib"):
            if getattr(self, name) < 0:
                raise InputError(f"train.{name}={getattr(self, name)}: expected 0 or more")
