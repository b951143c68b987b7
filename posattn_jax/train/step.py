"""The state of a run, and its update."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from posattn_jax.axes import Array
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.task import Batch, Task
from posattn_jax.train.seed_map import ALONE, SeedMap
from posattn_jax.train.sharding import RULES, sharded


class TrainState(flax.struct.PyTreeNode):
    """Everything that the next update depends on, besides the data; or the same tree of shapes or shardings.

    Attributes:
      step: the updates done.
      params: of the model.
      opt_state: of the optimiser.
      rng: key data from which the key of each step is folded.
      totals: of the examples trained on since the epoch began.
    """

    step: Any
    params: Any
    opt_state: Any
    rng: Any
    totals: Any


@functools.partial(jax.jit, static_argnums=0)
def _boxed_params(task: Task, rng: Array) -> Any:
    """`task.init`, traced once for whatever asks for its shapes or its values, with the names of axes."""
    with nn.logical_axis_rules(RULES):
        return task.init(rng)


def init_params(task: Task, rng: Array) -> Any:
    """`task.init`."""
    return nn.unbox(_boxed_params(task, rng))


def init_state(task: Task, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """A fresh state; everything random in it is drawn from the seed."""
    return nn.unbox(_boxed_state(task, optimizer, seed))


def abstract_state(
    task: Task, optimizer: optax.GradientTransformation, seed: int, mesh: Mesh, seeds: SeedMap = ALONE
) -> TrainState:
    """The shapes, dtypes and shardings of a run's state, or of that of vmapped seeds."""
    boxed = jax.eval_shape(lambda: seeds.stack([_boxed_state(task, optimizer, seed)] * seeds.size))
    return sharded(boxed, mesh)


def _boxed_state(task: Task, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """Parameters, and what the optimiser keeps of each, in boxes with the names of their axes."""
    init_rng, rng = jax.random.split(jax.random.key(seed))
    params = _boxed_params(task, init_rng)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        rng=jax.random.key_data(rng),
        totals=task.zero_totals(),
    )


def plan_micro_batches(batch_size: int, accumulation_steps: int, num_shards: int) -> tuple[int, int]:
    """How an update's examples are cut: (micro-batches, examples in each).

    As asked for where the mesh divides `batch_size`; else one micro-batch of them all, whose gradient counts
    `accumulation_steps` times (see `make_train_step`).

    Raises:
      InputError: the mesh divides neither.
    """
    if batch_size % num_shards == 0:
        return accumulation_steps, batch_size
    if batch_size * accumulation_steps % num_shards == 0:
        return 1, batch_size * accumulation_steps
    raise InputError(
        f"train.batch_size={batch_size} x train.accumulation_steps={accumulation_steps}: not divisible by the "
        f"{num_shards} shards of the mesh (data x fsdp)"
    )


def make_train_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    accumulation_steps: int,
    read: Callable[[Array], Batch] | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """One update from a batch whose arrays are [micro-batches, examples, ...].

    With `read` the batch has "ids" alone, of which it makes the examples of a micro-batch. The gradients of the
    micro-batches' mean losses are SUMMED (Alfons 2022). Where the batch has fewer micro-batches than
    `accumulation_steps`, the sum is scaled to what it would have been.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        num_micro_batches = len(jax.tree.leaves(batch)[0])
        step_rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        gradient = jax.value_and_grad(task.at(state.step).loss, has_aux=True)

        def accumulate(carry, xs):
            grads, totals = carry
            micro_batch, index = xs
            if read is not None:
                micro_batch = read(micro_batch["ids"])
            (loss, new_totals), new_grads = gradient(state.params, micro_batch, jax.random.fold_in(step_rng, index))
            return jax.tree.map(jnp.add, (grads, totals), (new_grads, new_totals)), loss

        start = (jax.tree.map(jnp.zeros_like, state.params), state.totals)
        (grads, totals), losses = jax.lax.scan(accumulate, start, (batch, jnp.arange(num_micro_batches)))
        grads = jax.tree.map(lambda g: g * (accumulation_steps / num_micro_batches), grads)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        state = state.replace(step=state.step + 1, params=params, opt_state=opt_state, totals=totals)
        figures = {
            "loss": jnp.mean(losses),
            "gradient_norm": optax.global_norm(grads),
            "parameter_norm": optax.global_norm(state.params),
        }
        return state, figures

    return train_step
