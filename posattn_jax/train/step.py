"""The training state of a run, and one update of it."""

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
from posattn_jax.train.optimizer import gradient_norms
from posattn_jax.train.seed_map import ALONE, SeedMap
from posattn_jax.train.sharding import RULES, sharded


class TrainState(flax.struct.PyTreeNode):
    """Everything besides the data that the next update depends on. Or the same tree with shapes or shardings.

    Attributes:
      step: the number of updates done.
      params: the parameters of the model.
      opt_state: the state of the optimiser.
      rng: the data of the key; the key of an update is this key folded with the step.
      totals: the totals of the examples trained on since the last evaluation.
    """

    step: Any
    params: Any
    opt_state: Any
    rng: Any
    totals: Any


@functools.partial(jax.jit, static_argnums=0)
def _boxed_params(task: Task, rng: Array) -> Any:
    """`task.init` with the parameters boxed with the names of their axes. Jitted, so that it is traced only once."""
    with nn.logical_axis_rules(RULES):
        return task.init(rng)


def init_params(task: Task, rng: Array) -> Any:
    """The fresh parameters of `task.init`, without boxes."""
    return nn.unbox(_boxed_params(task, rng))


def init_state(task: Task, optimizer: optax.GradientTransformation, rng: Array) -> TrainState:
    """A fresh state. Everything random in it is drawn from `rng`."""
    return nn.unbox(_boxed_state(task, optimizer, rng))


def abstract_state(
    task: Task, optimizer: optax.GradientTransformation, mesh: Mesh, seeds: SeedMap = ALONE
) -> TrainState:
    """The shapes, dtypes and shardings of the state of a run, or of vmapped seeds."""
    boxed = jax.eval_shape(lambda: seeds.stack([_boxed_state(task, optimizer, jax.random.key(0))] * seeds.size))
    return sharded(boxed, mesh)


def _boxed_state(task: Task, optimizer: optax.GradientTransformation, rng: Array) -> TrainState:
    """A fresh state whose parameters, and the optimiser's copies of them, are boxed with the names of their axes."""
    init_rng, rng = jax.random.split(rng)
    params = _boxed_params(task, init_rng)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        rng=jax.random.key_data(rng),
        totals=task.zero_totals(),
    )


def kept_bytes(task: Task, batch: Any) -> int:
    """The bytes that the gradient of a loss keeps for its backward pass, for the shapes and dtypes of a batch.

    A compiler leaves some out.
    """

    def pulled_back(rng, batch):
        return jax.vjp(lambda params: task.loss(params, batch, rng)[0], init_params(task, rng))[1]

    kept = jax.eval_shape(pulled_back, jax.random.key(0), batch)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept))


def plan_micro_batches(batch_size: int, accumulation_steps: int, num_shards: int) -> tuple[int, int]:
    """How the examples of an update are split: (number of micro-batches, examples in each).

    If the mesh divides `batch_size`, they are split as asked for. Otherwise all are a single micro-batch, whose
    gradient is multiplied by `accumulation_steps` (see `make_train_step`).

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
    is_merged: bool = False,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """Returns the function of one update. Its batch has arrays [micro-batches, examples, ...].

    With `read`, the batch has only "ids", from which `read` gets the examples of a micro-batch. The gradients of the
    micro-batches' mean losses are SUMMED (Alfons 2022). If the batch has fewer micro-batches than
    `accumulation_steps`, the sum is scaled up to that number. If `is_merged`, the only one is all of them, each with
    the dropout that it would have alone.
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
            key = jax.random.fold_in(step_rng, index)
            if is_merged:
                key = jax.vmap(jax.random.fold_in, (None, 0))(step_rng, jnp.arange(accumulation_steps))
            (loss, new_totals), new_grads = gradient(state.params, micro_batch, key)
            return jax.tree.map(jnp.add, (grads, totals), (new_grads, new_totals)), loss

        start = (jax.tree.map(jnp.zeros_like, state.params), state.totals)
        (grads, totals), losses = jax.lax.scan(accumulate, start, (batch, jnp.arange(num_micro_batches)))
        grads = jax.tree.map(lambda g: g * (accumulation_steps / num_micro_batches), grads)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        state = state.replace(step=state.step + 1, params=params, opt_state=opt_state, totals=totals)
        figures = {"loss": jnp.mean(losses), "parameter_norm": optax.global_norm(state.params)}
        figures |= {f"gradient_norm/{name}": norm for name, norm in gradient_norms(grads).items()}
        return state, figures

    return train_step
