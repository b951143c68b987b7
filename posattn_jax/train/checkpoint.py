"""Checkpoints of a run: saved asynchronously; the latest, the best epoch's and what is to be averaged are kept."""

import dataclasses
import logging
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, LatestN

from posattn_jax.errors import RunError

_logger = logging.getLogger(__name__)


def _rank(metrics: dict[str, Any]) -> tuple[float, int]:
    """Checkpoints are ranked by score; of equals the first is the best."""
    return metrics["score"], -metrics["step"]


@dataclasses.dataclass
class ToAverage:
    """Keeps the checkpoints of `n` evaluations: from the best one on, and the last."""

    n: int

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """One answer a checkpoint, oldest first."""
        scored = [info for info in checkpoints if info.metrics]
        best = max(range(len(scored)), key=lambda i: _rank(scored[i].metrics), default=0)
        kept = {info.step for info in (*scored[best : best + self.n], *scored[-self.n :])}
        return [info.step in kept for info in checkpoints]


class Checkpoints:
    """The checkpoints of one run folder, each the training state and its progress (plain JSON)."""

    def __init__(self, workdir: pathlib.Path, read_only: bool = False, keep: int = 1):
        """Opens the folder.

        Args:
          workdir: the run folder.
          read_only: whether nothing in it is changed, so that a run may go on in it.
          keep: of how many evaluations the checkpoints are kept, from the best one on, and of the last; beside the
            latest two, of whatever.
        """
        self._read_only = read_only
        self.folder = workdir.absolute() / "checkpoints"
        policy = AnyPreservationPolicy([LatestN(2), ToAverage(keep)])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            best_fn=_rank,  # without it Orbax would not write the scores to disk
            cleanup_tmp_directories=not read_only,
            read_only=read_only,
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_names=("state", "progress"))

    def save(self, state: Any, progress: dict[str, Any], score: float | None = None) -> None:
        """Saves in the background; `score` is the validation score of a finished epoch."""
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress)),
            metrics=None if score is None else {"score": score, "step": step},
            force=True,
        )

    def restore(self, abstract_state: Any, step: int | None = None) -> tuple[Any, dict[str, Any]] | None:
        """The state and progress of `step`, or of the latest; None where there is no checkpoint.

        Where it cannot be read, the newest one that can is taken, with a warning, and the unreadable ones are moved
        to the folder "unreadable" beside.

        Raises:
          RunError: there are checkpoints, and none can be read; they stay where they are.
        """
        steps = sorted(self._manager.all_steps(), key=lambda s: (s == step, s), reverse=True)
        failures: dict[int, str] = {}
        for candidate in steps:
            try:
                restored = self._manager.restore(
                    candidate,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardRestore(abstract_state), progress=ocp.args.JsonRestore()
                    ),
                )
            except Exception as error:  # Orbax raises whatever the damage happens to be: ValueError, KeyError, ...
                failures[candidate] = (str(error).splitlines() or [type(error).__name__])[0]
                continue
            for unreadable, reason in failures.items():
                _logger.warning("checkpoint %d cannot be read (%s): %d is taken", unreadable, reason, candidate)
                self._set_aside(unreadable)
            return restored["state"], restored["progress"]
        if failures:
            newest = max(failures)
            raise RunError(
                f"no checkpoint in {self.folder} can be read: {len(failures)} tried, {newest}: {failures[newest]}"
            )
        return None

    def read_params(self, step: int) -> Any:
        """The parameters of `step` as they were saved, on the first device: whoever saved them, and how they were cut.

        Raises:
          RunError: they cannot be read.
        """
        path = self.folder / str(step) / "state"
        one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                saved: Any = checkpointer.metadata(path).item_metadata
                abstract = jax.tree.map(
                    lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=one_device),
                    saved.tree,
                    is_leaf=lambda each: hasattr(each, "shape"),
                )
                return checkpointer.restore(path, abstract)["params"]
        except Exception as error:  # see `restore`
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RunError(f"checkpoint {path} cannot be read: {reason}") from error

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint."""
        return self._manager.latest_step()

    def steps_to_average(self, number: int) -> list[int]:
        """The best epoch and those after it, `number` in all; where there are not as many, the last so many."""
        scored = [step for step in sorted(self._manager.all_steps()) if self._manager.metrics(step)]
        best = self.best_step()
        following = [step for step in scored if best is not None and step >= best][:number]
        return following if len(following) == number else scored[-number:]

    def best_step(self) -> int | None:
        """The step of the best epoch so far."""
        metrics = {step: self._manager.metrics(step) for step in self._manager.all_steps()}
        scored = {step: found for step, found in metrics.items() if found}
        return max(scored, key=lambda step: _rank(scored[step])) if scored else None

    def wait(self) -> None:
        """Until everything saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

    def _set_aside(self, step: int) -> None:
        if jax.process_index() == 0 and not self._read_only:
            aside = self.folder.with_name("unreadable") / str(step)
            aside.parent.mkdir(exist_ok=True)
            if aside.exists():
                shutil.rmtree(aside)
            (self.folder / str(step)).rename(aside)
        self._manager.reload()
