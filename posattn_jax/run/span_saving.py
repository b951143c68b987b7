"""What learned spans saved: times the updates of a run and those of the same model without a span, alternately."""

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from posattn_jax.config import experiment
from posattn_jax.config.names import class_of
from posattn_jax.config.parts import change, set_all
from posattn_jax.nn.span import LEARNED
from posattn_jax.train.program import SpanBounds
from posattn_jax.train.settings import Settings
from posattn_jax.train.step import TrainState, init_state, make_train_step

LEAST_UPDATES = 100  # of a run that is worth measuring
SECONDS = 6.0  # for all turns
TURNS = (3, 20)  # at least and at most


def measure(config: ConfigDict, state: TrainState, source: Any) -> dict[str, float] | None:
    """Updates per second "with_span", at the spans of this state, and "without_span". Both are medians over turns.

    Returns None for a run that is too short, that has no learned span, or that uses several devices.
    """
    paths = _paths_of_spans(config, ())
    if not paths or int(state.step) < LEAST_UPDATES or jax.device_count() > 1:
        return None
    plain = config.copy_and_resolve_references()
    set_all(change(plain, dict.fromkeys(paths)), span_penalty=0.0, span_penalty_warmup_steps=0)
    runs = {"with_span": _updates(config, source, state), "without_span": _updates(plain, source)}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for update in runs.values():
        update()  # the first compiles
    least, most = TURNS
    start = time.perf_counter()
    for turn in range(most):
        if turn >= least and time.perf_counter() - start > SECONDS:
            break
        for name, update in runs.items():
            before = time.perf_counter()
            update()
            taken[name].append(time.perf_counter() - before)
    return {name: 1 / statistics.median(seconds) for name, seconds in taken.items()}


def first_batch(source: Any, settings: Settings) -> dict[str, jax.Array]:
    """The first examples of a source as the batch of an update, [micro-batches, examples, ...]."""
    size = settings.batch_size
    parts = [source.batch(np.arange(size) + i * size) for i in range(settings.accumulation_steps)]
    return {name: jnp.stack([part[name] for part in parts]) for name in parts[0]}


def _updates(config: ConfigDict, source: Any, state: TrainState | None = None) -> Any:
    """A function that computes an update of a state, by default a fresh one, and waits for it."""
    task, optimizer, _, settings = experiment.prepare(config, source)
    if state is None:
        state = jax.jit(lambda rng: init_state(task, optimizer, rng))(jax.random.key(config.seed))
    elif settings.bounds_spans:
        task = task.within(SpanBounds(task, state.params).value)
    step = jax.jit(make_train_step(task, optimizer, settings.accumulation_steps))
    batch = first_batch(source, settings)

    def update() -> None:  # always of the same state, so that spans do not change
        jax.block_until_ready(step(state, batch))

    return update


def _paths_of_spans(config: ConfigDict, above: tuple[str, ...]) -> list[str]:
    """The paths of all learned spans in a config."""
    found = []
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            path = (*above, name)
            is_span = "kind" in value and issubclass(class_of(value["kind"], ".".join(path)), LEARNED)
            found += [".".join(path)] if is_span else _paths_of_spans(value, path)
    return found
