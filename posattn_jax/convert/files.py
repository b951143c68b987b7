"""Reads and writes files of weights: safetensors, .npz, and PyTorch's .pt, which needs torch. No code in them runs."""

import dataclasses
import logging
import math
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from posattn_jax.convert.tensors import Tensors
from posattn_jax.system import extras
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_atomically, write_json

_logger = logging.getLogger(__name__)
WEIGHTS, CONFIG = "model.safetensors", "config.json"  # in a folder of Hugging Face
TORCH = (".pt", ".pth", ".bin")
STATES = ("model_state_dict", "state_dict", "model")  # the keys of the tensors in a .pt that has more than tensors


@dataclasses.dataclass(frozen=True)
class Weights:
    """The tensors of a file, and its config.json.

    Attributes:
      path: the path of the file.
      tensors: the tensors by name.
      config: the content of the config.json in the same folder; {}: there is none.
    """

    path: pathlib.Path
    tensors: Tensors
    config: dict[str, Any]

    def shape(self, name: str, num_axes: int) -> tuple[int, ...]:
        """The shape of a tensor. Raises InputError if it is missing or empty, or has another number of axes."""
        if name not in self.tensors:
            raise InputError(f"{self.path}: {name} is missing")
        shape = tuple(self.tensors[name].shape)
        if len(shape) != num_axes:
            raise InputError(f"{self.path}: {name} is {shape}, expected {num_axes} sizes")
        if 0 in shape:
            raise InputError(f"{self.path}: {name} is {shape}, expected sizes of at least 1")
        return shape

    def setting(self, name: str, default: Any) -> Any:
        """An entry of config.json; the default if it is missing or null. InputError if its kind is another (`is_a`)."""
        value = default if self.config.get(name) is None else self.config[name]
        if not is_a(type(default), value):
            where = self.path.with_name(CONFIG)
            raise InputError(f"{where}: {name}={value!r}: expected a value such as {default!r}")
        return value

    def entry(self, path: str) -> Any:
        """An entry of config.json; None if it is missing. Dots in its path lead into objects and lists."""
        found: Any = self.config
        for name in path.split("."):
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found

    def first(self, *paths: str) -> str:
        """The first of these paths at which config.json has an entry; without one, the last path."""
        return next((path for path in paths if self.entry(path) is not None), paths[-1])

    def check(self, sizes: Mapping[str, Any]) -> None:
        """Compares config.json with the tensors. An entry that is missing or empty says nothing.

        Args:
          sizes: what the tensors say, by the path of the entry. The entry for a tuple may be one number for all axes.
            The entry for a number may be that many names: a list, or an object whose keys are the numbers from 0 on.
            A range is the same, but the object may leave out numbers.

        Raises:
          InputError: some entries say something else. The message lists them, each with both values.
        """
        given = {path: self.entry(path) for path in sizes}
        wrong = [
            f"{path}={_shown(given[path])} in its config, but {_shown(size)} in its tensors"
            for path, size in sizes.items()
            if given[path] not in (None, [], {}) and not _says(given[path], size)
        ]
        if wrong:
            raise InputError(f"{self.path}: {'; '.join(wrong)}")

    def heads(self, path: str, default: Any, width: int) -> Any:
        """The number of attention heads at this path of config.json. InputError if it does not divide the width."""
        found = self.entry(path)
        if found is None:
            return default
        if not isinstance(found, int) or isinstance(found, bool):
            such = 1 if default is None else default
            raise InputError(f"{self.path.with_name(CONFIG)}: {path}={found!r}: expected a value such as {such}")
        if found < 1 or width % found:
            raise InputError(
                f"{self.path}: {path}={found} in its config does not divide {width}, the width in its tensors"
            )
        return found

    def count(self, before: str, after: str = ".") -> int:
        """One more than the largest number between `before` and `after` in the names of tensors."""
        numbers = [name.removeprefix(before).partition(after)[0] for name in self.tensors if name.startswith(before)]
        return max((int(each) + 1 for each in numbers if each.isdecimal()), default=0)


def is_a(kind: type, value: Any) -> bool:
    """Whether an entry of a config is of this kind. A float may be an int; it is finite and at least 0."""
    if isinstance(value, bool) or kind is not float:
        return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return isinstance(value, int | float) and 0 <= value < math.inf


def read(given: str | pathlib.Path) -> Weights:
    """Reads a file, or the one in a folder. Raises InputError if there is none, or if it is damaged."""
    path = _find(pathlib.Path(given))
    try:
        if path.suffix in TORCH:
            loaded = _torch(path)
        else:
            loaded = _npz(path) if path.suffix == ".npz" else _safetensors().flax.load_file(path)
    except InputError:
        raise
    except Exception as error:  # SafetensorError, OSError, BadZipFile, ValueError, ...
        raise InputError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    config = read_json(path.with_name(CONFIG)) or {}
    if not isinstance(config, dict):
        raise InputError(f"{path.with_name(CONFIG)}: expected an object")
    return Weights(path, {name: np.asarray(tensor) for name, tensor in loaded.items()}, config)


def write(folder: str | pathlib.Path, tensors: Tensors, config: dict[str, Any]) -> pathlib.Path:
    """Writes model.safetensors and, if `config` is not empty, config.json, as Hugging Face's libraries read them."""
    path = pathlib.Path(folder, WEIGHTS)
    data = _safetensors().numpy.save(dict(tensors), metadata={"format": "pt"})
    write_atomically(path, lambda file: file.write(data))
    if config:
        write_json(path.with_name(CONFIG), config)
    return path


def write_npz(folder: str | pathlib.Path, tensors: dict[str, Any]) -> pathlib.Path:
    """Writes model.npz. NumPy's files have no bfloat16: it is written as float32, which has all of its numbers."""
    path = pathlib.Path(folder, "model.npz")
    found = {name: array.astype(np.float32) if array.dtype == "bfloat16" else array for name, array in tensors.items()}
    write_atomically(path, lambda file: np.savez(file, **found))
    return path


def _says(given: Any, size: Any) -> bool:
    """Whether an entry of a config says this: see `Weights.check`."""
    if isinstance(size, tuple):
        return (tuple(given) if isinstance(given, list) else (given,) * len(size)) == size
    if isinstance(given, dict):
        found, numbers = {str(name) for name in given}, {*map(str, size if isinstance(size, range) else range(size))}
        return found <= numbers if isinstance(size, range) else found == numbers
    size = len(size) if isinstance(size, range) else size
    return (len(given) if isinstance(given, list) else given) == size


def _shown(value: Any) -> str:
    """A value for a message: of names only their number, with the keys of an object."""
    value = len(value) if isinstance(value, range) else value
    if isinstance(value, dict):
        return f"{len(value)} names ({', '.join(map(str, [*value][:8]))}{', ...' if len(value) > 8 else ''})"
    is_names = isinstance(value, list) and any(isinstance(each, str) for each in value)
    return f"{len(value)} names" if is_names else repr(list(value) if isinstance(value, tuple) else value)


def _find(path: pathlib.Path) -> pathlib.Path:
    if not path.is_dir():
        if path.suffix not in (".safetensors", ".npz", *TORCH):
            raise InputError(f"{path}: expected a .safetensors, an .npz, a .pt, or a folder with one of the first two")
        return path
    found = sorted(each for each in path.iterdir() if each.suffix in (".safetensors", ".npz"))
    if path / WEIGHTS in found:
        return path / WEIGHTS
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise InputError(f"{path}: expected {WEIGHTS}, or one other .safetensors or .npz, and there is {names}")
    return found[0]


def _npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: is no .npz")
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _torch(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The state dict of a file. Its pickle may only make tensors. Floats become float32. A warning lists the rest."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise InputError(f"{path}: cannot be read without torch: pip install torch") from error
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    key = next((name for name in STATES if isinstance(loaded.get(name), dict)), None)
    state = loaded if key is None else loaded[key]
    others = [name for name in loaded if key is not None and name != key]
    others += [name for name, each in state.items() if not torch.is_tensor(each)]
    if others:
        _logger.warning("%s: left out: %s", path, ", ".join(map(str, others)))
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        for name, tensor in state.items()
        if torch.is_tensor(tensor)
    }


def _safetensors():
    with extras.named():
        import safetensors.flax  # it can read bfloat16
        import safetensors.numpy
    return safetensors
