"""Checks a run folder: it must belong to the config, and only one process at a time may train in it."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from posattn_jax.config.names import name_of
from posattn_jax.config.saved import check_version
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import OF_THE_PLACE, as_saved, config_of_run, read_json
from posattn_jax.system.processes import claim
from posattn_jax.train.schedule import ENDLESS

# Fields that may change when a run is resumed, such as the folder of the run that it started from; ...
MAY_CHANGE = (*OF_THE_PLACE, "task.pretrained")
# ... its length, if the learning rate does not depend on it; ...
MAY_GROW = ("train.total_epochs", "train.total_steps")
# ... and for an evaluation also the grid of the data, what is evaluated, and the decoding.
MAY_DIFFER = ("data.height", "data.width", "data.pool", "data.validation_limit", "data.test_part")
MAY_DIFFER += ("train.eval_batch_size", "task.decoding.beam_size", "task.decoding.batch_size")
MAY_DIFFER += ("task.decoding.extra_length",)


def check_config(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Raises InputError if the folder has anything else than a run that this config continues."""
    saved = _read_config(workdir)
    if saved is not None:
        remedy, may_change = "choose another folder", MAY_CHANGE
        if config.optimizer.schedule.kind in map(name_of, ENDLESS):
            may_change += MAY_GROW
        elif hasattr(config.task, "pretrained") and not _differing(config, saved, MAY_CHANGE + MAY_GROW):
            remedy = (
                "the learning rate falls over this length. To train longer, start a new run from its best parameters: "
                f"the same command with --workdir=OTHER --config.task.pretrained={workdir}"
            )
        _compare(config, saved, workdir, may_change, remedy)


def check_evaluation(config: ConfigDict, workdir: pathlib.Path) -> dict[str, Any]:
    """The config of the run in a folder. Raises InputError unless this config can evaluate that run."""
    saved = config_of_run(workdir)
    remedy = f"without --config it is the run's own; an evaluation may change only {', '.join(MAY_DIFFER)}"
    _compare(config, saved, workdir, MAY_CHANGE + MAY_GROW + MAY_DIFFER, remedy)
    return saved


@contextlib.contextmanager
def alone_in(workdir: pathlib.Path) -> Iterator[None]:
    """Locks the folder, and creates it if necessary. Raises InputError if another process trains in it."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(claim(workdir / ".lock"))
        except OSError as error:
            raise InputError(f"--workdir={workdir}: cannot be written to ({error.strerror})") from error
        if file is None:
            raise InputError(f"--workdir={workdir}: another process is training there")
        yield


def _read_config(workdir: pathlib.Path) -> dict[str, Any] | None:
    saved = read_json(workdir / "config.json")
    visible = workdir.is_dir() and any(not path.name.startswith(".") for path in workdir.iterdir())
    if saved is None and (visible or workdir.is_file()):
        raise InputError(f"--workdir={workdir}: is in use, but not by a run (it has no config.json)")
    return saved


def _compare(
    config: ConfigDict, saved: dict[str, Any], workdir: pathlib.Path, may_change: tuple[str, ...], remedy: str
) -> None:
    """Raises InputError, with a remedy, if the config differs from that of the run in a field that may not change."""
    check_version(saved, workdir)
    if differing := _differing(config, saved, may_change):
        listed = ", ".join(f"{name} was {then!r} and is now {now!r}" for name, (then, now) in differing.items())
        raise InputError(f"--workdir={workdir} belongs to another config: {listed}; {remedy}")


def _differing(config: ConfigDict, saved: dict[str, Any], may_change: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """What each field that differs was, and is now, but for those that may change."""
    now, then = flatten_dict(as_saved(config.to_dict()), sep="."), flatten_dict(saved, sep=".")
    both = {name: (then.get(name), now.get(name)) for name in sorted(now | then) if name not in may_change}
    return {name: values for name, values in both.items() if values[0] != values[1]}
