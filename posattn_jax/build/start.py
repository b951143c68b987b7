"""How a run begins that starts from another: with its parameters, and parts added that leave the function the same."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from posattn_jax.build import experiment
from posattn_jax.build.experiment import Saved
from posattn_jax.build.parts import change, set_all
from posattn_jax.build.saved import completed
from posattn_jax.data.batches import Source
from posattn_jax.nn.grafts import Flat, Path, begin_as
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.task import Task
from posattn_jax.train import pretrained
from posattn_jax.train.step import init_params

# Of the model's fields, those in which a run may differ from the one it starts from, but for its head, ...
MAY_DIFFER = ("num_classes", "dropout_rate", "mlp_dropout_rate", "kernel_init", "implementation", "remat", "dtype")
MAY_GO = "absolute_positions"  # ... and this one, which changes what the model tells, and is told.
EXAMPLES = 8  # that are asked of both models, ...
CLOSE = 1e-5  # ... and by how much their logits may differ, of logits up to 1


def beginning(config: ConfigDict, task: Task, source: Source) -> Callable[[Any], Any] | None:
    """From fresh parameters to those that a run begins with, where it starts from another; it tells which they are.

    The model may have parts that the other has not. Then a few examples are asked of both: what they tell must be the
    same, up to rounding, but for absolute positions that are taken away.

    Raises:
      InputError: there is no such run, its parameters have other shapes, or its model tells something else.
    """
    saved = experiment.pretrained_run(config)
    if saved is None:
        return None
    trained, step = pretrained.read(saved.workdir)
    its = flatten_dict(trained)
    whole = _Other.of(config, saved, its, source)
    other = whole.without(MAY_GO) if config.model.get(MAY_GO) is False else whole
    fresh: Any = jax.jit(lambda: init_params(task, jax.random.key(config.seed)))()
    found, own = begin_as(task.model, fresh, other.task.model, other.params(fresh)), flatten_dict(fresh)
    print(f"starts from {saved.workdir}, step {step}: {_count(other.taken)} of its {_count(its)} parameters")
    _tell("left out", its, (its.keys() - other.taken.keys()) | found.left_out)
    _tell("drawn anew", own, other.drawn)
    _tell("made of its projections", own, found.made)
    _tell("added", own, found.added)
    differing = list(_differing(other.config.model.to_dict(), config.model.to_dict(), "model"))
    if differing or other.taken.keys() != whole.taken.keys():
        there, here = other.told(fresh), _told(config, found.params, source)
        most = _most(there, here)
        if not most <= CLOSE:
            drawn = f" ({', '.join(_names(found.added))} begin as they are drawn)" if found.added else ""
            what = f"logits differ by {most:.2g}, expected at most {CLOSE}{drawn}"
            raise InputError(f"{saved.name}: another model: {'; '.join(differing)}: {what}")
        print(f"  the same function: logits of {len(there)} examples differ by {most:.1g} at most")
        if other.taken.keys() != whole.taken.keys():
            most = _most(whole.told(fresh), here)
            print(f"  but without {MAY_GO}: with them the logits differ by {most:.2g} at most")
    return lambda fresh: begin_as(task.model, fresh, other.task.model, other.params(fresh)).params


class _Other(NamedTuple):
    """The model that a run starts from.

    Attributes:
      config: the run's own, with the other's model.
      task: of this config.
      taken: the parameters that the other run has, by their paths.
      drawn: the paths of the others.
      source: of the run's examples.
    """

    config: ConfigDict
    task: Any
    taken: dict[Path, np.ndarray]
    drawn: list[Path]
    source: Source

    @classmethod
    def of(cls, config: ConfigDict, saved: Saved, its: Flat, source: Source) -> "_Other":
        """That of the run that was saved, but for what may differ."""
        here = flatten_dict(config.model.to_dict())
        model = {
            path: here[path] if path in here and path[-1] in MAY_DIFFER else value
            for path, value in flatten_dict(completed(saved.config["model"])).items()
        }
        own = config.copy_and_resolve_references()
        with own.unlocked(), own.ignore_type():
            own.model = ConfigDict(unflatten_dict(model))
        task, shapes = _made(own, source)
        taken = pretrained.taken_over(shapes, its, _same_labels(config, saved, source), saved.name)
        return cls(own, task, taken, [path for path in shapes if path not in taken], source)

    def without(self, field: str) -> "_Other":
        """The same model, in which a field is False."""
        own = change(self.config.copy_and_resolve_references(), {f"model.{field}": False})
        task, shapes = _made(own, self.source)
        taken = {path: array for path, array in self.taken.items() if path in shapes}
        return self._replace(config=own, task=task, taken=taken)

    def params(self, fresh: Any) -> Any:
        """Those taken; the others are the fresh ones of a model with the same head."""
        own = flatten_dict(fresh)
        return unflatten_dict(self.taken | {path: own[path] for path in self.drawn})

    def told(self, fresh: Any) -> np.ndarray:
        """See `_told`."""
        return _told(self.config, self.params(fresh), self.source)


def _made(config: ConfigDict, source: Source) -> tuple[Any, Flat]:
    """The task, and the shapes of its parameters."""
    task = experiment.make_task(config, source)
    return task, flatten_dict(jax.eval_shape(task.init, jax.random.key(0)))


def _same_labels(config: ConfigDict, saved: Saved, source: Source) -> bool:
    """Whether both runs tell the same labels of the same set."""
    now, then = experiment.data_set(config), experiment.data_set(ConfigDict(saved.config))
    names = tuple(getattr(source, "names", ())) or now.classes
    return bool(names) and now.name == then.name and names == then.classes_of(saved.workdir)


def _differing(there: Any, here: Any, path: str) -> Iterator[str]:
    """Where two models differ, and what each has there."""
    are_parts = isinstance(there, Mapping) and isinstance(here, Mapping)
    if are_parts and there.get("kind") == here.get("kind"):
        for name in dict.fromkeys((*there, *here)):
            yield from _differing(there.get(name), here.get(name), f"{path}.{name}")
    elif json.dumps(there) != json.dumps(here):
        yield f"{path} is {_shown(there)} there and {_shown(here)} here"


def _shown(value: Any) -> str:
    return value.get("kind", "a part") if isinstance(value, Mapping) else repr(value)


def _told(config: ConfigDict, params: Any, source: Source) -> np.ndarray:
    """The logits of a few examples, on one device, in float32 whatever the run computes in."""
    config = config.copy_and_resolve_references()
    config.mesh.grid = 1
    set_all(config.model, implementation="dense", dtype="float32")
    task = experiment.make_task(config, source)
    batch = source.batch(np.arange(min(EXAMPLES, len(source))))
    with jax.default_matmul_precision("highest"):
        logits, _ = jax.jit(task.apply)(params, {name: jnp.asarray(array) for name, array in batch.items()})
    return np.asarray(logits)


def _most(there: np.ndarray, here: np.ndarray) -> float:
    """By how much logits differ at most, of logits up to 1."""
    return float(np.abs(here - there).max() / max(1.0, np.abs(there).max()))


def _tell(what: str, arrays: Flat, paths: Collection[Path]) -> None:
    """Prints names and shapes of parameters, those of all layers once."""
    if paths:
        shapes = {path: " ".join(map(str, arrays[path].shape)) for path in paths}
        names = ", ".join(_names(paths, {path: f" [{shape}]" for path, shape in shapes.items()}))
        print(f"  {what}: {names}: {_count({path: arrays[path] for path in paths})} numbers")


def _names(paths: Collection[Path], beside: Mapping[Path, str] | None = None) -> list[str]:
    """Of parameters, with what is beside them; those of all layers once."""
    beside = beside or {}
    return sorted({re.sub(r"blocks_\d+", "blocks_*", "/".join(path)) + beside.get(path, "") for path in paths})


def _count(arrays: Flat) -> str:
    return f"{sum(array.size for array in arrays.values()):,}"
