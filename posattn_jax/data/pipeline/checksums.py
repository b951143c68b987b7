"""Saves the SHA-256 of a run's data files in its folder, so that the run can only continue with the same data."""

import contextlib
import hashlib
import json
import logging
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping

from posattn_jax.system import checksums
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json

_logger = logging.getLogger(__name__)
FILE = "data_sha256.json"  # in a run folder
NOT_TRAINED_ON = re.compile(r"test|t10k|diagnostic|/\.")  # in the names of test parts and of hidden files

Files = Mapping[str, pathlib.Path]  # the keys are the config's field and the name in its folder: "data.dir/train.tsv"


def below(folder: pathlib.Path, paths: list[pathlib.Path], field: str = "data.dir") -> dict[str, pathlib.Path]:
    """Files by their names: the field of the config, and the path within the folder that it names."""
    names = (path.name if path == folder else path.relative_to(folder).as_posix() for path in paths)
    return {f"{field}/{name}": path for name, path in zip(names, paths, strict=True)}


def found_below(folder: str, find: Callable[[], Iterable[pathlib.Path]], field: str = "data.dir") -> Files:
    """The files that `find` finds, as by `below`; none if it raises InputError, which is told when they are read."""
    with contextlib.suppress(InputError):
        return below(pathlib.Path(folder), list(find()), field)
    return {}


def check(files: Files, workdir: pathlib.Path, evaluates: bool = False) -> None:
    """Compares the files with those that the run began with. Before `save`, there is nothing to compare with.

    An evaluation may use other data. Then there is a warning if a file has changed.

    Raises:
      InputError: training would continue with a file that has changed, without a file, or with another one, which may
        put examples for validation into the train part.
    """
    known = _read(workdir)
    gone, unverified = sorted(set(known) - set(files)), f"delete {workdir / FILE} to go on with other files"
    if gone and not evaluates:
        raise InputError(
            f"{gone[0]}, which the run in {workdir} began with, is not there: put it back, or {unverified}"
        )
    for name, path in files.items() if known else ():
        if name not in known:
            if not evaluates and not NOT_TRAINED_ON.search(name):
                raise InputError(f"{path} was not there when the run in {workdir} began: move it away, or {unverified}")
            if not evaluates:
                _logger.warning("%s was not read when this run began: it is not verified", path)
        elif (found := checksums.of_file(path)) != known[name]:
            hashes = f"its SHA-256 is {found[:12]}..., and was {known[name][:12]}..."
            changed = f"{path} has changed, or is damaged, since the run in {workdir} began: {hashes}"
            if not evaluates:
                raise InputError(f"{changed}; put back what it was, or choose another folder")
            _logger.warning(changed)


def save(files: Files, workdir: pathlib.Path) -> None:
    """Saves the SHA-256 of the files for which the run folder has none yet."""
    known = _read(workdir)
    new = {name: checksums.of_file(path) for name, path in files.items() if name not in known}
    if new:
        write_json(workdir / FILE, known | new)


def of_run(workdir: pathlib.Path) -> str | None:
    """One SHA-256 of the names and sums of all files that the run began with; None if it read no files."""
    known = _read(workdir)
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest() if known else None


def _read(workdir: pathlib.Path) -> dict[str, str]:
    path = workdir / FILE
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise InputError(f"{path}: cannot be read ({error}); delete it, and the data is not verified") from error
