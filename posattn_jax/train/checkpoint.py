"""Checkpoints of a run: saved asynchronously, with the SHA-256 of every file, which is checked before one is read.

The latest two sound ones, the best evaluation's and what is to be averaged are kept. Older ones are deleted only once
two newer have been verified on disk; a damaged one is moved to the folder "unreadable" beside, and told.
"""

import asyncio
import concurrent.futures
import logging
import pathlib
import shutil
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import LatestN
from orbax.checkpoint.path import atomicity

from posattn_jax.system import checksums
from posattn_jax.system.errors import RunError
from posattn_jax.train import retention

_logger = logging.getLogger(__name__)
_NONE, _ALL_DAMAGED = -1, -2  # instead of a step
_NO_SUMS = f"it has no {checksums.FILE}, as those that earlier versions saved"


class _WithSums(atomicity.AtomicRenameTemporaryPath):
    """What is being saved: it gets the name of a checkpoint once its files and their sums are on disk.

    Orbax calls it in its background thread, of process 0: training goes on.
    """

    async def finalize(self) -> None:
        temporary, final = pathlib.Path(self._tmp_path), self._final_path
        if not pathlib.Path(final).name.isdigit():  # an item of a checkpoint
            return await super().finalize()
        self._final_path = type(final)(temporary.with_name(f"{temporary.name}.whole"))
        await super().finalize()
        whole, self._final_path = pathlib.Path(self._final_path), final
        await asyncio.to_thread(checksums.write, whole)
        whole.rename(final)


class Checkpoints:
    """The checkpoints of one run folder, each the training state and its progress (plain JSON).

    With several processes all call `save`, `restore` and `wait` at the same steps. The first one decides, and alone
    verifies, moves and deletes.
    """

    def __init__(self, workdir: pathlib.Path, read_only: bool = False, keep: int = 1):
        """Opens the folder.

        Args:
          workdir: the run folder.
          read_only: whether nothing in it is changed, so that a run may go on in it.
          keep: of how many evaluations the checkpoints are kept, from the best one on, and of the last; beside the
            latest two, of whatever.
        """
        self._read_only, self._keep = read_only, keep
        self.folder = workdir.absolute() / "checkpoints"
        self._manager = self._open(clean_up=not read_only)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
        self._tidying: concurrent.futures.Future | None = None

    def _open(self, clean_up: bool = False) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=LatestN(),  # all: see `_tidy`
            best_fn=retention.rank,  # without it Orbax would not write the scores to disk
            cleanup_tmp_directories=clean_up,  # in the background
            read_only=self._read_only,
            temporary_path_class=_WithSums,
            lightweight_initialize=True,  # it would read what is not verified yet
        )
        return ocp.CheckpointManager(self.folder, options=options, item_names=("state", "progress"))

    def save(self, state: Any, progress: dict[str, Any], score: float | None = None) -> None:
        """Saves in the background; `score` is the validation score of a finished epoch."""
        self.wait()
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress)),
            metrics=None if score is None else {"score": score, "step": step},
            force=True,
        )
        if jax.process_index() == 0:
            self._tidying = self._thread.submit(self._tidy, step)

    def restore(self, abstract_state: Any, step: int | None = None) -> tuple[Any, dict[str, Any]] | None:
        """The state and progress of `step`, or of the latest; None where there is no checkpoint.

        A checkpoint is read if its files have the sums that they were saved with. Where that one is damaged, the newest
        one that is not is taken, with a warning that says which and why, and the damaged ones are moved to the folder
        "unreadable" beside. One without sums is read too, with a warning, where there is none with.

        Raises:
          RunError: there are checkpoints, and none can be read; they stay where they are.
        """
        self.wait()
        failures: dict[int, str] = {}
        while (candidate := _of_first_process(lambda: self._next_sound(step, failures))) >= 0:
            restored = None
            try:
                args = ocp.args.Composite(
                    state=ocp.args.StandardRestore(abstract_state), progress=ocp.args.JsonRestore()
                )
                restored = self._manager.restore(candidate, args=args)
            except Exception as error:  # Orbax raises whatever is wrong: ValueError, KeyError, ...
                failures[candidate] = _reason(error)
            if not _everywhere(restored is not None):
                failures.setdefault(candidate, "another process cannot read it")
                continue
            assert restored is not None
            if step is None and jax.process_index() == 0:  # a run goes on from here, and saves these again
                for newer in (each for each in self._steps() if each > candidate):
                    failures.setdefault(newer, _NO_SUMS)
            for other, reason in failures.items():
                _logger.warning("checkpoint %d cannot be read (%s): %d is taken", other, reason, candidate)
            self._set_aside(failures)
            return restored["state"], restored["progress"]
        if candidate == _ALL_DAMAGED:
            newest = max(failures, default="?")  # what is wrong is known to the first process
            reason = f"{len(failures)} tried, {newest}: {failures.get(newest)}"
            raise RunError(f"no checkpoint in {self.folder} can be read: {reason}; put a sound copy there")
        return None

    def read_params(self, step: int) -> Any:
        """The parameters of `step` as they were saved, on the first device: whoever saved them, and how they were cut.

        Raises:
          RunError: they are damaged, or cannot be read.
        """
        path = self.folder / str(step) / "state"
        one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        if (reason := self._damage(step)) is not None:
            others = "move this folder away, and others are taken"
            raise RunError(f"checkpoint {path.parent} cannot be read: {reason}; put a sound copy there, or {others}")
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
            raise RunError(f"checkpoint {path} cannot be read: {_reason(error)}") from error

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint."""
        self.wait()
        return max(self._steps(), default=None)

    def steps_to_average(self, number: int) -> list[int]:
        """The best epoch and those after it, `number` in all; where there are not as many, the last so many."""
        return retention.to_average(self._scores(), number)

    def best_step(self) -> int | None:
        """The step of the best epoch so far."""
        return retention.best(self._scores())

    def close(self) -> None:
        self.wait()
        self._thread.shutdown()
        self._manager.close()

    def wait(self) -> None:
        """Until everything saved is on disk, and what is no longer kept is deleted."""
        self._manager.wait_until_finished()
        if self._tidying is not None:
            tidying, self._tidying = self._tidying, None
            tidying.result()

    def _tidy(self, saved: int) -> None:
        """Once `saved` is on disk: deletes what is no longer kept, and sets aside what is found damaged.

        Orbax would decide when it begins to save, of checkpoints that have been damaged since perhaps.
        """
        try:
            self._manager.wait_until_finished()
        except BaseException:  # which `wait` meets too
            return
        sound, scores = [saved], {}
        for step in reversed(self._steps()):
            is_latest = step < saved and len(sound) < retention.LATEST
            score, reason = self._score(step, verified="" if is_latest else "metrics")
            if reason is not None:
                _logger.warning("checkpoint %d cannot be read (%s): it is moved to %s", step, reason, self._aside)
                self._move_aside(step)
                continue
            if is_latest:
                sound.append(step)
            if score is not None:
                scores[step] = score
        kept = {*sound, *retention.of_evaluations(scores, self._keep)}
        for step in set(self._steps()) - kept:
            # Renamed first: should the process be killed, the next one finds nothing half deleted.
            path = self._path(step).rename(self.folder / f"{step}{atomicity.TMP_DIR_SUFFIX}.deleted")
            shutil.rmtree(path)

    def _next_sound(self, step: int | None, failures: dict[int, str]) -> int:
        """Which to read next, and in `failures` those that were found damaged before it; negative: none."""
        steps = set(self._steps()) - set(failures)
        preferred = sorted(steps, key=lambda s: (s == step, (self._path(s) / checksums.FILE).exists(), s), reverse=True)
        for candidate in preferred:
            reason = self._damage(candidate)
            if reason is None:
                return candidate
            failures[candidate] = reason
        return _ALL_DAMAGED if failures else _NONE

    def _damage(self, step: int, below: str = "", warn: bool = True) -> str | None:
        """What is wrong with a checkpoint, by its sums; nothing is known of one without."""
        try:
            return checksums.damage(self._path(step), below)
        except FileNotFoundError:
            if warn:
                _logger.warning("checkpoint %d is not verified: %s", step, _NO_SUMS)
            return None

    def _scores(self) -> dict[int, retention.Score]:
        """Of the evaluations whose checkpoints there are; one that is damaged is told, and left out."""
        self.wait()
        found = {}
        for step in self._steps():
            score, reason = self._score(step, verified="metrics")
            if reason is not None:
                _logger.warning("the score of checkpoint %d is left out: %s", step, reason)
            elif score is not None:
                found[step] = score
        return found

    def _score(self, step: int, verified: str) -> tuple[retention.Score | None, str | None]:
        """Of a checkpoint, or None; and what is wrong with its files below `verified`, or with the score."""
        try:
            return self._manager.metrics(step), self._damage(step, verified, warn=False)
        except Exception as error:  # see `restore`
            return None, self._damage(step, verified, warn=False) or _reason(error)

    def _steps(self) -> list[int]:
        """Ascending, of the folder: Orbax has its own list, which does not know what was moved and deleted."""
        return sorted(int(path.name) for path in self.folder.glob("[0-9]*") if path.name.isdigit())

    def _path(self, step: int) -> pathlib.Path:
        return self.folder / str(step)

    @property
    def _aside(self) -> pathlib.Path:
        return self.folder.with_name("unreadable")

    def _set_aside(self, steps: Collection[int]) -> None:
        """Moves checkpoints away, and lets Orbax forget them."""
        if self._read_only or not _of_first_process(lambda: len(steps)):
            return
        if jax.process_index() == 0:
            for step in steps:
                self._move_aside(step)
        _everywhere(True)  # only then they look again
        self._manager.close()
        self._manager = self._open()

    def _move_aside(self, step: int) -> None:
        aside = self._aside / str(step)
        aside.parent.mkdir(exist_ok=True)
        if aside.exists():
            shutil.rmtree(aside)
        self._path(step).rename(aside)


def _of_first_process(decide: Callable[[], int]) -> int:
    """What the first process decides."""
    decided = decide() if jax.process_index() == 0 else 0
    return int(multihost_utils.broadcast_one_to_all(np.int32(decided)))


def _everywhere(done: bool) -> bool:
    """Whether all processes have done it."""
    return bool(np.all(multihost_utils.process_allgather(np.array(done))))


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
