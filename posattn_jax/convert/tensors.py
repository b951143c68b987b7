"""Maps between the tensors of others and our parameters, in both directions."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.system.errors import InputError

_logger = logging.getLogger(__name__)
Tensors = Mapping[str, np.ndarray]
MOST = 8  # tensors that an error lists


class Entry(NamedTuple):
    """Some of our parameters, and the tensors with the same numbers.

    Attributes:
      ours: the paths of the parameters, with slashes.
      theirs: the names of the tensors.
      pack: a function from the tensors, in this order, to the parameters.
      unpack: a function from the parameters to the tensors.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    pack: Callable[..., Sequence[np.ndarray]]
    unpack: Callable[..., Sequence[np.ndarray]]


def one(ours: str, theirs: str, pack: Callable, unpack: Callable) -> Entry:
    """An entry of one parameter and one tensor."""
    return Entry((ours,), (theirs,), lambda tensor: [pack(tensor)], lambda array: [unpack(array)])


def same(ours: str, theirs: str) -> Entry:
    """An entry of a parameter that equals a tensor."""
    return one(ours, theirs, lambda tensor: tensor, lambda array: array)


def without_first(ours: str, theirs: str) -> Entry:
    """An entry of a parameter that equals a tensor without its first axis, of size 1."""
    return one(ours, theirs, lambda tensor: tensor[0], lambda array: array[None])


def constant(theirs: str, array: np.ndarray) -> Entry:
    """An entry of a buffer with known numbers. `pack` raises InputError if the tensor has others."""

    def check(given: np.ndarray) -> tuple:
        if not np.allclose(given, array, rtol=0, atol=1e-5):
            raise InputError(f"{theirs} has other numbers than those of such a model")
        return ()

    return Entry((), (theirs,), check, lambda: [array])


def linear(ours: str, theirs: str) -> list[Entry]:
    """The entries of a linear map. PyTorch's weights are [out, in]."""
    return [
        one(f"{ours}/kernel", f"{theirs}.weight", np.transpose, np.transpose),
        same(f"{ours}/bias", f"{theirs}.bias"),
    ]


def from_heads(ours: str, theirs: str, num_heads: int) -> list[Entry]:
    """The entries of a linear map of all heads, whose kernel is [h d out] here. PyTorch's weights are [out, h d]."""
    kernel = one(
        f"{ours}/kernel",
        f"{theirs}.weight",
        lambda weight: weight.T.reshape(num_heads, -1, len(weight)),
        lambda kernel: kernel.reshape(-1, kernel.shape[-1]).T,
    )
    return [kernel, same(f"{ours}/bias", f"{theirs}.bias")]


def norm(ours: str, theirs: str) -> list[Entry]:
    """The entries of a layer norm."""
    return [same(f"{ours}/scale", f"{theirs}.weight"), same(f"{ours}/bias", f"{theirs}.bias")]


def take(entries: Sequence[Entry], shapes: Any, tensors: Tensors, where: Any, spare: str = "") -> dict[str, Any]:
    """Turns the tensors of a file into parameters in float32.

    Args:
      entries: the entries of all parameters.
      shapes: the tree of the shapes of the parameters.
      tensors: the tensors of the file.
      where: the file, for messages.
      spare: a pattern for the names of tensors that may be left out, with a warning. All others need an entry.

    Raises:
      InputError: tensors are missing, have another shape, hold no floats, or are unknown. The message lists them.
    """
    flat = flax.traverse_util.flatten_dict(shapes, sep="/")
    expected = _shapes_of_theirs(entries, flat)
    wrong = [
        f"{name} is {_shape(tensors[name]) if name in tensors else 'missing'}, expected {shape}"
        for name, shape in expected.items()
        if name not in tensors or _shape(tensors[name]) != shape
    ]
    weights = [name for entry in entries if entry.ours for name in entry.theirs if name in tensors]
    given = {name: tensors[name].dtype for name in weights}
    wrong += [
        f"{n} is {dtype}, expected floats" for n, dtype in given.items() if not jnp.issubdtype(dtype, jnp.floating)
    ]
    left_out = {name: _shape(tensor) for name, tensor in tensors.items() if name not in expected}
    wrong += [f"{name} {shape} has no place here" for name, shape in left_out.items() if not re.fullmatch(spare, name)]
    if wrong:
        raise InputError(f"{where}: {_listed(wrong)}")
    if left_out:
        _logger.warning("%s: left out: %s", where, ", ".join(f"{name} {shape}" for name, shape in left_out.items()))
    taken: dict[str, Any] = {}
    for entry in entries:
        arrays = entry.pack(*(np.asarray(tensors[name], np.float32) for name in entry.theirs))
        taken |= {path: jnp.asarray(array) for path, array in zip(entry.ours, arrays, strict=True)}
    assert taken.keys() == flat.keys(), taken.keys() ^ flat.keys()
    return flax.traverse_util.unflatten_dict(taken, sep="/")


def renamed(tensors: Tensors, rename: Callable[[str], str], where: Any) -> dict[str, np.ndarray]:
    """The tensors by other names. Raises InputError if two of them get the same name."""
    old: dict[str, str] = {}
    for name in tensors:
        if old.setdefault(rename(name), name) != name:
            raise InputError(f"{where}: {old[rename(name)]} and {name} are two tensors for {rename(name)}")
    return {new: tensors[name] for new, name in old.items()}


def give(entries: Sequence[Entry], params: Any) -> dict[str, np.ndarray]:
    """Turns parameters into tensors. Raises InputError with those that have no entry, or are missing."""
    flat = {path: np.asarray(array) for path, array in flax.traverse_util.flatten_dict(params, sep="/").items()}
    known = {path for entry in entries for path in entry.ours}
    foreign = [f"{path} {_shape(array)}" for path, array in flat.items() if path not in known]
    if foreign:
        raise InputError(f"there is no name for {_listed(foreign)}")
    if missing := sorted(known - flat.keys()):
        raise InputError(f"there are no parameters {_listed(missing)}")
    tensors: dict[str, np.ndarray] = {}
    for entry in entries:
        arrays = entry.unpack(*(flat[path] for path in entry.ours))
        tensors |= {name: np.ascontiguousarray(array) for name, array in zip(entry.theirs, arrays, strict=True)}
    return tensors


def _shapes_of_theirs(entries: Sequence[Entry], shapes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the entries, from the shapes of our parameters."""
    found: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        zeros = (np.broadcast_to(np.float32(0), shapes[path].shape) for path in entry.ours)
        found |= {name: _shape(array) for name, array in zip(entry.theirs, entry.unpack(*zeros), strict=True)}
    return found


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape)


def _listed(items: Sequence[str]) -> str:
    more = f"; and {len(items) - MOST} more" if len(items) > MOST else ""
    return "; ".join(items[:MOST]) + more


def shapes_of(where: Any, init: Callable[..., Any], *args: Any) -> Any:
    """The shapes of the parameters of a module. Raises InputError if its fields do not fit together."""
    try:
        return jax.eval_shape(lambda: init(jax.random.key(0), *args))["params"]
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
