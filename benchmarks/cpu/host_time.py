"""How long the host works for an update: the ids, their copy to the device, and the dispatch. Not the update itself.

  python -m benchmarks.cpu.host_time [--seeds=12] [--dispatch_steps=16] [--updates=800]

The data are on the device, as they are on accelerators, so a batch is ids. They are 50,000 random images of 32 x 32;
the updates are those of configs/cifar2d_span.py:quick. A dispatch of no update measures what the host does for it,
since the device has nothing to do. CPU milliseconds of the host's thread for each update, of all seeds together.
"""

import argparse
import dataclasses
import time
from typing import Any

import jax

from configs import cifar2d_span
from posattn_jax.benchmarks.table import markdown, number
from posattn_jax.config import experiment
from posattn_jax.train.clock import Clock
from posattn_jax.train.program import Program
from posattn_jax.train.seed_map import SeedData

EXAMPLES = 50_000


def host_ms(num_seeds: int, dispatch_steps: int, updates: int) -> dict[str, float]:
    """The milliseconds for each update: to read and stack the ids, with their copy; and to dispatch."""
    config = cifar2d_span.get_config("quick")
    config.train.bounded_spans, config.train.dispatch_steps = "no", dispatch_steps
    config.train.resident_mib = 200 * num_seeds
    images: Any = experiment.data_set(config)
    source = images.random(EXAMPLES)
    task, optimizer, mesh, settings = experiment.prepare(config, source, num_seeds=num_seeds)
    settings = dataclasses.replace(settings, bounded_spans="no")
    data = [SeedData(seed, source, source) for seed in range(num_seeds)]
    program = Program(task, optimizer, data, mesh, settings)
    batches = [program.batches(i) for i in range(num_seeds)]
    states = [program.init(each.seed) for each in data]
    state, clock = states[0] if num_seeds == 1 else program.stack(states), Clock(0)
    state, _ = program.update(state, batches, 1, None, clock)  # compiles
    jax.block_until_ready(state)
    read = dispatch = 0.0
    with jax.set_mesh(mesh):
        for _ in range(updates // dispatch_steps):
            started = time.thread_time()
            state, placed, _, arrays = program.arguments(state, batches, dispatch_steps, clock)
            done = time.thread_time()
            state, _ = program.updates(None)(state, placed, 0, arrays)
            read, dispatch = read + done - started, dispatch + time.thread_time() - done
            jax.block_until_ready(state)
    made = updates // dispatch_steps * dispatch_steps
    return {"ids": 1e3 * read / made, "dispatch": 1e3 * dispatch / made, "together": 1e3 * (read + dispatch) / made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--dispatch_steps", type=int, default=16)
    parser.add_argument("--updates", type=int, default=800)
    options = parser.parse_args()
    if options.seeds < 1 or options.dispatch_steps < 2 or options.updates < options.dispatch_steps:
        parser.error("expected --seeds of at least 1, --dispatch_steps of at least 2, and as many --updates")
    took = host_ms(options.seeds, options.dispatch_steps, options.updates)
    print(markdown([[*took], [number(each) for each in took.values()]]))


if __name__ == "__main__":
    main()
