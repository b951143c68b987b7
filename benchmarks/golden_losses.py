"""Whether a change of the code's form changed its numbers: five losses of every config's tiny variant, bit for bit.

python -m benchmarks.golden_losses write FILE   # in a checkout of the commit before
python -m benchmarks.golden_losses check FILE   # in that of the commit after, on the same machine and jax

Every parameter is drawn by its name, with the mean and the standard deviation that it was initialised with in the
commit before; FILE says them. A parameter with another name since is in RENAMED. Dropout is off.
"""

import importlib
import json
import os
import pathlib
import re
import sys
import zlib

os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"

import jax
import jax.numpy as jnp
import numpy as np
import optax

from posattn_jax.build.experiment import make_task
from posattn_jax.build.parts import change
from tests.configs import test_configs
from tests.configs.test_configs import NAMES

STEPS, BATCH = 5, 4
RENAMED: list[tuple[str, str]] = [("/extra_heads/", "/beside/")]  # (pattern of the name after, name before)


def cases():
    """(name, config) of every config, of the treatments that are compared, and of the mixers of a translation."""
    for name in NAMES:
        yield name, lambda name=name: importlib.import_module(f"configs.{name}").get_config("tiny")
    for name in ("compare", "nmt_multi30k", "question_translution", "question_siren", "cifar2d_span"):
        module = importlib.import_module(f"configs.{name}")
        for treatment in module.sweep("tiny").treatments:
            yield f"{name}:{treatment.name}", lambda module=module, treatment=treatment: treated(module, treatment)
    for variant in ("composite", "convbert", "composite_key", "depthwise", "qkv"):
        yield f"bert_tiny:{variant}", lambda variant=variant: small_bert(variant)


def treated(module, treatment):
    config = module.get_config("tiny").lock()
    return change(config, treatment.fields)


def small_bert(variant):
    config = importlib.import_module("configs.bert_tiny").get_config(variant)
    config.model.num_blocks = 1
    config.data.update(vocabulary_size=100, length=12)
    return config


def no_dropout(config):
    with config.unlocked():
        for name, value in config.items():
            if hasattr(value, "items"):
                no_dropout(value)
            elif name.endswith("dropout_rate") and value is not None:
                config[name] = 0.0
    return config


def named(params):
    return {jax.tree_util.keystr(path, simple=True, separator="/"): array for path, array in flat(params)}


def flat(params):
    return jax.tree_util.tree_flatten_with_path(params)[0]


def order_of_terms(names, before):
    """Of each `.../terms_i/` what it was before: the first not yet taken with parameters of the same names."""

    def suffixes(names):
        found = {}
        for name in names:
            if match := re.match(r"(.*/)?(terms_\d+)/(.*)", name):
                found.setdefault((match[1] or "", match[2]), set()).add(match[3])
        return dict(sorted(found.items()))

    own, its, taken = suffixes(names), suffixes(before), set()
    renamed = {}
    for (place, term), parts in own.items():
        old = next(key for key in its if key[0] == place and key not in taken and its[key] == parts)
        taken.add(old)
        renamed[f"{place}{term}/"] = "".join(old) + "/"
    return renamed


def drawn(params, moments):
    """The parameters anew, from their names and moments."""
    terms = order_of_terms(named(params), moments)

    def draw(path, array):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for now, then in terms.items():
            if name.startswith(now):
                name = then + name.removeprefix(now)
                break
        for pattern, before in RENAMED:
            name = re.sub(pattern, before, name)
        shape, mean, std = moments[name]
        assert list(array.shape) == shape, (name, array.shape, shape)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return jnp.asarray(mean + std * rng.standard_normal(shape), array.dtype)

    return jax.tree_util.tree_map_with_path(draw, params)


def run(config, moments=None):
    """(moments of the parameters, losses as hexadecimal floats)."""
    source = test_configs.made_source(config)
    task = make_task(config, source)
    params = jax.jit(task.init)(jax.random.key(0))
    if moments is None:
        moments = {
            name: [list(array.shape), float(np.mean(array)), float(np.std(array))]
            for name, array in named(params).items()
        }
    assert len(moments) == len(named(params)), sorted(set(moments) ^ set(named(params)))
    params = drawn(params, moments)
    optimizer = optax.adam(1e-3)
    state = optimizer.init(params)

    @jax.jit
    def update(params, state, batch, rng):
        (loss, _), grads = jax.value_and_grad(task.loss, has_aux=True)(params, batch, rng)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for step in range(STEPS):
        batch = jax.tree.map(jnp.asarray, source.batch(np.arange(BATCH * step, BATCH * (step + 1))))
        params, state, loss = update(params, state, batch, jax.random.fold_in(jax.random.key(1), step))
        losses.append(float(loss).hex())
    return moments, losses


def main(mode, path, *only):
    golden = {} if mode == "write" else json.loads(pathlib.Path(path).read_text())["cases"]
    differing = []
    for name, make in cases():
        if only and not any(word in name for word in only):
            continue
        if mode == "check" and name not in golden:
            print(name, "is new")
            continue
        moments, before = golden.get(name, (None, None))
        moments, losses = run(no_dropout(make()), moments)
        if mode == "write":
            golden[name] = [moments, losses]
        elif losses != before:
            differing.append(name)
        print(
            name, [float.fromhex(loss) for loss in losses], "" if name not in differing else f"was {before}", flush=True
        )
        jax.clear_caches()
    if mode == "write":
        pathlib.Path(path).write_text(json.dumps({"jax": jax.__version__, "cases": golden}))
    print(f"{len(golden)} cases, {len(differing)} differ: {differing}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
