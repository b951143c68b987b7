"""Checkpoints of a run. They are saved asynchronously with the SHA-256 of every file, and verified before reading.

A run keeps its latest two undamaged checkpoints, that of the best evaluation, and those that may be averaged. An older
one is deleted only after two newer ones were verified on disk. A damaged one is moved to the folder "unreadable", next
to the folder of checkpoints, with a warning.
"""

import asyncio
import concurrent.futures
import logging
import pathlib
import shutil
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import LatestN
from orbax.checkpoint.path import atomicity

from posattn_jax.nn.terms import renamed
from posattn_jax.system import checksums
from posattn_jax.system.compat import multihost_utils
from posattn_jax.system.errors import RunError
from posattn_jax.system.files import checkpoint_steps

Score = Mapping[str, Any]  # {"score": of an evaluation, "step": of the checkpoint}
LATEST = 2  # undamaged ones: if the last is damaged later, there is one more


def rank(score: Score) -> Any:
    """The sort key, a pair, of checkpoints: the highest score is the best; of equal scores, the earliest."""
    return score["score"], -score["step"]


def best(scores: Mapping[int, Score]) -> int | None:
    """The step of the best evaluation; None if there is none."""
    return max(scores, key=lambda step: rank(scores[step]), default=None)


def from_best(scores: Mapping[int, Score], number: int) -> list[int]:
    """The best evaluation and those after it, `number` in all, or as many as there are."""
    first = best(scores)
    return [step for step in sorted(scores) if first is not None and step >= first][:number]


def to_average(scores: Mapping[int, Score], number: int) -> list[int]:
    """The best evaluation and those after it, `number` in all; if they are fewer, the last `number` evaluations."""
    following = from_best(scores, number)
    return following if len(following) == number else sorted(scores)[-number:]


def of_evaluations(scores: Mapping[int, Score], number: int) -> set[int]:
    """The evaluations that may still be averaged: `number` from the best one on, and the last `number`."""
    return {*from_best(scores, number), *sorted(scores)[-number:]}


_logger = logging.getLogger(__name__)
_NONE, _ALL_DAMAGED = -1, -2  # instead of a step
_NO_SUMS = f"it has no {checksums.FILE}, like checkpoints of earlier versions"


class _WithSums(atomicity.AtomicRenameTemporaryPath):
    """A temporary folder that gets the name of a checkpoint once its files and their checksums are on disk.

    Orbax calls `finalize` in a background thread of process 0, so training goes on.
    """

    async def finalize(self) -> None:
        temporary, final = pathlib.Path(str(self._tmp_path)), self._final_path
        if not pathlib.Path(final).name.isdigit():  # an item of a checkpoint
            return await super().finalize()
        self._final_path = type(final)(temporary.with_name(f"{temporary.name}.whole"))
        await super().finalize()
        whole, self._final_path = pathlib.Path(self._final_path), final
        await asyncio.to_thread(checksums.write, whole)
        whole.rename(final)


class Checkpoints:
    """The checkpoints of one run folder. Each has the training state and its progress (plain JSON).

    With several processes, all call `save`, `restore` and `wait` at the same steps. Only the first process verifies,
    moves and deletes checkpoints, and it decides for all.
    """

    def __init__(self, workdir: pathlib.Path, read_only: bool = False, keep: int = 1):
        """Opens the folder.

        Args:
          workdir: the run folder.
          read_only: whether to change nothing in the folder, so that a run may be training in it.
          keep: how many checkpoints of evaluations to keep from the best one on, and as many of the last ones. The
            latest two checkpoints of any kind are kept besides.
        """
        self._read_only, self._keep = read_only, keep
        self.folder = workdir.absolute() / "checkpoints"
        self._manager = self._open(clean_up=not read_only)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
        self._tidying: concurrent.futures.Future | None = None

    def _open(self, clean_up: bool = False) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=LatestN(),  # keeps all: `_tidy` deletes
            best_fn=rank,  # without it Orbax would not write the scores to disk
            cleanup_tmp_directories=clean_up,  # in the background
            read_only=self._read_only,
            temporary_path_class=_WithSums,
            lightweight_initialize=True,  # otherwise it would read files that are not verified yet
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
        """Returns the state and progress of `step`, or of the latest checkpoint; None if there is no checkpoint.

        A checkpoint is read only if its files still have the checksums that they were saved with. If it is damaged,
        the newest undamaged one is read instead, with a warning that says which and why, and the damaged ones are moved
        to the folder "unreadable". A checkpoint without checksums is read too, with a warning, but others come first.

        Raises:
          RunError: there are checkpoints, but none can be read. They stay where they are.
        """
        self.wait()
        failures: dict[int, str] = {}
        while (candidate := _of_first_process(lambda: self._next_sound(step, failures))) >= 0:
            restored = None
            try:
                state = self._as_saved(abstract_state, candidate)
                args = ocp.args.Composite(state=ocp.args.StandardRestore(state), progress=ocp.args.JsonRestore())
                restored = self._manager.restore(candidate, args=args)
            except Exception as error:  # Orbax raises errors of many types: ValueError, KeyError, ...
                failures[candidate] = _reason(error)
            if not _everywhere(restored is not None):
                failures.setdefault(candidate, "another process cannot read it")
                continue
            assert restored is not None
            if step is None and jax.process_index() == 0:  # the run continues here, and saves later steps again
                for newer in (each for each in self._steps() if each > candidate):
                    failures.setdefault(newer, _NO_SUMS)
            for other, reason in failures.items():
                _logger.warning(
                    "checkpoint %d cannot be read (%s): checkpoint %d is used instead", other, reason, candidate
                )
            self._set_aside(failures)
            return jax.tree.map(renamed, restored["state"], abstract_state, is_leaf=_is_dict), restored["progress"]
        if candidate == _ALL_DAMAGED:
            newest, failure = max(failures.items(), default=("?", None))  # only the first process knows the failures
            reason = f"{len(failures)} tried, {newest}: {failure}"
            raise RunError(f"no checkpoint in {self.folder} can be read: {reason}; restore an intact copy")
        return None

    def read_params(self, step: int) -> Any:
        """The parameters of `step`, whole, on the first device, however they were sharded when they were saved.

        Raises:
          RunError: the checkpoint is damaged, or cannot be read.
        """
        path = self.folder / str(step) / "state"
        one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        if (reason := self._damage(step)) is not None:
            others = "move this folder away to use another one"
            raise RunError(f"checkpoint {path.parent} cannot be read: {reason}; restore an intact copy, or {others}")
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                abstract = jax.tree.map(
                    lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=one_device),
                    self._saved_tree(step),
                    is_leaf=lambda each: hasattr(each, "shape"),
                )
                return checkpointer.restore(path, abstract)["params"]
        except Exception as error:  # see `restore`
            raise RunError(f"checkpoint {path} cannot be read: {_reason(error)}") from error

    def _saved_tree(self, step: int) -> Any:
        """What is known of the arrays of a checkpoint, as a tree of dicts."""
        with ocp.StandardCheckpointer() as checkpointer:
            saved: Any = checkpointer.metadata(self._path(step) / "state").item_metadata
        return {} if saved is None else saved.tree

    def _as_saved(self, abstract_state: Any, step: int) -> Any:
        """The abstract state with the names of parameters that a checkpoint has, in its moments too."""
        params = self._saved_tree(step).get("params")
        return jax.tree.map(lambda each: renamed(each, params), abstract_state, is_leaf=_is_dict)

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint."""
        self.wait()
        return max(self._steps(), default=None)

    def steps_to_average(self, number: int) -> list[int]:
        """The steps of the best evaluation and those after it, `number` in all; if these are fewer, the last ones."""
        return to_average(self._scores(), number)

    def best_step(self) -> int | None:
        """The step of the best evaluation so far; None if there was none."""
        return best(self._scores())

    def is_evaluated(self, step: int) -> bool:
        """Whether the checkpoint of `step` has the score of an evaluation."""
        return step in self._scores()

    def close(self) -> None:
        self.wait()
        self._thread.shutdown()
        self._manager.close()

    def wait(self) -> None:
        """Waits until everything is saved on disk, and old checkpoints are deleted."""
        self._manager.wait_until_finished()
        if self._tidying is not None:
            tidying, self._tidying = self._tidying, None
            tidying.result()

    def _tidy(self, saved: int) -> None:
        """Waits until `saved` is on disk. Then deletes old checkpoints, and moves damaged ones away.

        Orbax itself would decide at the beginning of a save, without checking whether the kept ones are damaged.
        """
        try:
            self._manager.wait_until_finished()
        except BaseException:  # `wait` raises it too
            return
        sound, scores = [saved], {}
        for step in reversed(self._steps()):
            is_latest = step < saved and len(sound) < LATEST
            score, reason = self._score(step, verified="" if is_latest else "metrics")
            if reason is not None:
                _logger.warning("checkpoint %d cannot be read (%s): it is moved to %s", step, reason, self._aside)
                self._move_aside(step)
                continue
            if is_latest:
                sound.append(step)
            if score is not None:
                scores[step] = score
        kept = {*sound, *of_evaluations(scores, self._keep)}
        for step in set(self._steps()) - kept:
            # Renamed first: if the process is killed, the next one finds no half-deleted checkpoint.
            path = self._path(step).rename(self.folder / f"{step}{atomicity.TMP_DIR_SUFFIX}.deleted")
            shutil.rmtree(path)

    def _next_sound(self, step: int | None, failures: dict[int, str]) -> int:
        """The step to read next; negative: none. Steps that are found damaged are added to `failures`."""
        steps = set(self._steps()) - set(failures)
        preferred = sorted(steps, key=lambda s: (s == step, (self._path(s) / checksums.FILE).exists(), s), reverse=True)
        for candidate in preferred:
            reason = self._damage(candidate)
            if reason is None:
                return candidate
            failures[candidate] = reason
        return _ALL_DAMAGED if failures else _NONE

    def _damage(self, step: int, below: str = "", warn: bool = True) -> str | None:
        """What the checksums show to be wrong with a checkpoint; None if it is sound, or has no checksums."""
        try:
            return checksums.damage(self._path(step), below)
        except FileNotFoundError:
            if warn:
                _logger.warning("checkpoint %d is not verified: %s", step, _NO_SUMS)
            return None

    def _scores(self) -> dict[int, Score]:
        """The scores of all evaluations that have a checkpoint. A damaged score is left out, with a warning."""
        self.wait()
        found = {}
        for step in self._steps():
            score, reason = self._score(step, verified="metrics")
            if reason is not None:
                _logger.warning("the score of checkpoint %d is left out: %s", step, reason)
            elif score is not None:
                found[step] = score
        return found

    def _score(self, step: int, verified: str) -> tuple[Score | None, str | None]:
        """The score of a checkpoint, or None, and what is wrong with its files below `verified` or with the score."""
        try:
            return self._manager.metrics(step), self._damage(step, verified, warn=False)
        except Exception as error:  # see `restore`
            return None, self._damage(step, verified, warn=False) or _reason(error)

    def _steps(self) -> list[int]:
        """The steps in the folder, ascending. Orbax's own list would miss what was moved and deleted here."""
        return checkpoint_steps(self.folder.parent)

    def _path(self, step: int) -> pathlib.Path:
        return self.folder / str(step)

    @property
    def _aside(self) -> pathlib.Path:
        return self.folder.with_name("unreadable")

    def _set_aside(self, steps: Collection[int]) -> None:
        """Moves checkpoints away, and reopens the manager so that Orbax forgets them."""
        if self._read_only or not _of_first_process(lambda: len(steps)):
            return
        if jax.process_index() == 0:
            for step in steps:
                self._move_aside(step)
        _everywhere(True)  # the other processes reopen the folder only after the move
        self._manager.close()
        self._manager = self._open()

    def _move_aside(self, step: int) -> None:
        aside = self._aside / str(step)
        aside.parent.mkdir(exist_ok=True)
        if aside.exists():
            shutil.rmtree(aside)
        self._path(step).rename(aside)


def _is_dict(node: Any) -> bool:
    return isinstance(node, dict)


def _of_first_process(decide: Callable[[], int]) -> int:
    """The decision of the first process, in all processes."""
    decided = decide() if jax.process_index() == 0 else 0
    return int(multihost_utils.broadcast_one_to_all(np.int32(decided)))


def _everywhere(done: bool) -> bool:
    """Whether `done` is true in all processes."""
    return bool(np.all(multihost_utils.process_allgather(np.array(done))))


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
