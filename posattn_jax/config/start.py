"""Starts a run from the parameters of another. Added parts must leave the model's function the same."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from posattn_jax.config import experiment
from posattn_jax.config.experiment import Saved
from posattn_jax.config.parts import change, set_all
from posattn_jax.config.saved import completed
from posattn_jax.data.pipeline.batches import Source
from posattn_jax.data.pipeline.user_data import normalised
from posattn_jax.nn.grafts import Flat, Path, begin_as
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.task import Task
from posattn_jax.train import pretrained
from posattn_jax.train.step import init_params

# Besides the head, a run's model may differ in these fields from the one it starts from, ...
MAY_DIFFER = ("num_classes", "dropout_rate", "mlp_dropout_rate", "kernel_init", "implementation", "remat", "dtype")
MAY_GO = "absolute_positions"  # ... and in this one, which changes the logits: a message says so.
EXAMPLES = 8  # the number of examples on which both models are compared, ...
CLOSE = 1e-5  # ... and the largest allowed difference of their logits, if these are up to 1


def beginning(config: ConfigDict, task: Task, source: Source) -> Callable[[Any], Any] | None:
    """A function from fresh parameters to those that a run starts with; None if it starts from no other run.

    It prints which parameters are taken over. If the model differs from the other, for example in added parts, both are
    applied to a few examples. Their logits must be equal up to rounding, but absolute positions may be removed.

    Raises:
      InputError: there is no such run, its parameters have other shapes, or the logits differ.
    """
    saved = experiment.pretrained_run(config)
    if saved is None:
        return None
    trained, step = pretrained.read(saved.workdir)
    whole = _Other.of(config, saved, trained, source)
    its = whole.its
    other = whole.without(MAY_GO) if config.model.get(MAY_GO) is False else whole
    differing = list(_differing(other.config.model.to_dict(), config.model.to_dict(), "model"))
    fresh: Any = jax.jit(lambda: init_params(task, jax.random.key(config.seed)))()
    own: dict[Any, Any] = dict(flatten_dict(fresh))
    if any(own[path].shape != array.shape for path, array in other.drawn.items()):  # a head of another width
        raise InputError(f"{saved.name}: another model: {'; '.join(differing)}")
    found = begin_as(task.model, fresh, other.task.model, other.params(fresh))
    print(f"starts from {saved.workdir}, step {step}: {_count(other.taken)} of its {_count(its)} parameters")
    _tell("left out", its, (its.keys() - other.taken.keys()) | found.left_out)
    _tell("drawn anew", own, other.drawn)
    _tell("made of its projections", own, found.made)
    _tell("added", own, found.added)
    if differing or other.taken.keys() != whole.taken.keys():
        there, here = other.logits(fresh), _logits(config, found.params, source)
        most = _most(there, here)
        if not most <= CLOSE:
            drawn = f" ({', '.join(_names(found.added))} begin as they are drawn)" if found.added else ""
            what = f"logits differ by {most:.2g}, expected at most {CLOSE}{drawn}"
            raise InputError(f"{saved.name}: another model: {'; '.join(differing)}: {what}")
        print(f"  the same function: logits of {len(there)} examples differ by {most:.1g} at most")
        if other.taken.keys() != whole.taken.keys():
            most = _most(whole.logits(fresh), here)
            print(f"  but without {MAY_GO}: with them the logits differ by {most:.2g} at most")
    return lambda fresh: begin_as(task.model, fresh, other.task.model, other.params(fresh)).params


class _Other(NamedTuple):
    """The model that a run starts from.

    Attributes:
      its: the parameters of the other run, by their paths.
      config: the config of the run, with the model of the other.
      task: the task of this config.
      taken: the parameters that are taken over from the other run, by their paths.
      drawn: the shapes of the parameters that are not, which are drawn anew.
      source: the source of the run's examples.
    """

    its: Flat
    config: ConfigDict
    task: Any
    taken: dict[Path, np.ndarray]
    drawn: Flat
    source: Source

    @classmethod
    def of(cls, config: ConfigDict, saved: Saved, trained: Any, source: Source) -> "_Other":
        """The model of the saved run. Fields that may differ have the values of this run."""
        here = flatten_dict(config.model.to_dict())
        model = {
            path: here[path] if path in here and path[-1] in MAY_DIFFER else value
            for path, value in flatten_dict(completed(saved.config["model"])).items()
        }
        own = config.copy_and_resolve_references()
        with own.unlocked(), own.ignore_type():
            own.model = ConfigDict(unflatten_dict(model))
        task, shapes = _made(own, source)
        its = flatten_dict(pretrained.named(trained, task))
        taken = pretrained.taken_over(shapes, its, _same_labels(config, saved, source), saved.name)
        drawn = {path: array for path, array in shapes.items() if path not in taken}
        return cls(its, own, task, taken, drawn, source)

    def without(self, field: str) -> "_Other":
        """The same model with `field` set to False."""
        own = change(self.config.copy_and_resolve_references(), {f"model.{field}": False})
        task, shapes = _made(own, self.source)
        taken = {path: array for path, array in self.taken.items() if path in shapes}
        return self._replace(config=own, task=task, taken=taken)

    def params(self, fresh: Any) -> Any:
        """The parameters taken over, completed by `fresh` ones, which are those of a model with the same head."""
        own = flatten_dict(fresh)
        return unflatten_dict(self.taken | {path: own[path] for path in self.drawn})

    def logits(self, fresh: Any) -> np.ndarray:
        """The logits of a few examples: see `_logits`."""
        return _logits(self.config, self.params(fresh), self.source)


def _made(config: ConfigDict, source: Source) -> tuple[Any, Flat]:
    """The task of a config, and the shapes of its parameters."""
    task = experiment.make_task(config, source)
    return task, flatten_dict(jax.eval_shape(task.init, jax.random.key(0)))


def _same_labels(config: ConfigDict, saved: Saved, source: Source) -> bool:
    """Whether both runs predict the same labels of the same data set."""
    now, then = experiment.data_set(config), experiment.data_set(ConfigDict(saved.config))
    names = tuple(getattr(source, "names", ())) or now.classes
    here, there = ([*map(normalised, each)] for each in (names, then.classes_of(saved.workdir)))
    return bool(names) and now.name == then.name and here == there


def _differing(there: Any, here: Any, path: str) -> Iterator[str]:
    """Describes each field in which two models differ."""
    are_parts = isinstance(there, Mapping) and isinstance(here, Mapping)
    if are_parts and there.get("kind") == here.get("kind"):
        for name in dict.fromkeys((*there, *here)):
            yield from _differing(there.get(name), here.get(name), f"{path}.{name}")
    elif json.dumps(there) != json.dumps(here):
        yield f"{path} is {_shown(there)} there and {_shown(here)} here"


def _shown(value: Any) -> str:
    return value.get("kind", "a part") if isinstance(value, Mapping) else repr(value)


def _logits(config: ConfigDict, params: Any, source: Source) -> np.ndarray:
    """The logits of a few examples, on one device, always in float32."""
    config = config.copy_and_resolve_references()
    config.mesh.grid = 1
    set_all(config.model, implementation="dense", dtype="float32")
    task = experiment.make_task(config, source)
    batch = source.batch(np.arange(min(EXAMPLES, len(source))))
    with jax.default_matmul_precision("highest"):
        logits, _ = jax.jit(task.apply)(params, {name: jnp.asarray(array) for name, array in batch.items()})
    return np.asarray(logits)


def _most(there: np.ndarray, here: np.ndarray) -> float:
    """The largest difference of logits, relative to the largest logit if that is above 1."""
    return float(np.abs(here - there).max() / max(1.0, np.abs(there).max()))


def _tell(what: str, arrays: Flat, paths: Collection[Path]) -> None:
    """Prints the names and shapes of parameters. The same parameter of all layers is printed once."""
    if paths:
        shapes = {path: " ".join(map(str, arrays[path].shape)) for path in paths}
        names = ", ".join(_names(paths, {path: f" [{shape}]" for path, shape in shapes.items()}))
        print(f"  {what}: {names}: {_count({path: arrays[path] for path in paths})} numbers")


def _names(paths: Collection[Path], texts: Mapping[Path, str] | None = None) -> list[str]:
    """The names of parameters, each with its text in `texts`. The same parameter of all layers is named once."""
    texts = texts or {}
    return sorted({re.sub(r"blocks_\d+", "blocks_*", "/".join(path)) + texts.get(path, "") for path in paths})


def _count(arrays: Flat) -> str:
    return f"{sum(array.size for array in arrays.values()):,}"
