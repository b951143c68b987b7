"""What the core of setup.py is enough for, in an environment that has nothing else: launch/core_check.py [--gradients]

Runs the example in the docstring of every public name, in which Linen modules are only traced; then sees that the
command helps, and says in a line what it lacks. With --gradients modules are run, with the gradient of every parameter,
and so are the examples of docs/importing.md but Equinox's.
"""

import argparse
import concurrent.futures
import contextlib
import copy
import doctest
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp

import posattn_jax
import posattn_jax.nnx

ROOT = pathlib.Path(__file__).parents[1]
EXACT = {"GaussianSpan", "MixedEnergies", "precompute", "precomputed"}  # whose examples show values that are computed
# Programs run once: they are compiled quickly, not well.
jax.config.update("jax_disable_most_optimizations", True)


@contextlib.contextmanager
def traced():
    """Inside, a Linen module that is initialised is traced alone: its outputs and variables are ones."""
    original = nn.Module.init_with_output

    def init_with_output(self, rngs, *args, **kwargs):
        if any(isinstance(each, posattn_jax.Memory) for each in args):  # which keeps what is computed
            return original(self, rngs, *args, **kwargs)
        shapes = jax.eval_shape(lambda: original(self, rngs, *copy.deepcopy(args), **kwargs))
        return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)

    nn.Module.init_with_output = init_with_output
    try:
        yield []
    finally:
        nn.Module.init_with_output = original


@contextlib.contextmanager
def with_gradients():
    """Inside, a Linen module that is initialised is differentiated as well."""
    original, differentiated = nn.Module.init_with_output, []

    def init_with_output(self, rngs, *args, **kwargs):
        def total(params, others):
            outputs = self.apply({**others, "params": params}, *copy.deepcopy(args), **kwargs)
            leaves = jax.tree.leaves(outputs)
            return sum(jnp.sum(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)), outputs

        @jax.jit  # one program: compiling takes nearly all of the time
        def differentiate():
            variables = original(self, rngs, *copy.deepcopy(args), **kwargs)[1]
            others = {name: each for name, each in variables.items() if name != "params"}
            gradient, outputs = jax.grad(total, has_aux=True)(variables.get("params", {}), others)
            return gradient, (outputs, variables)

        gradient, results = differentiate()
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient)), self
        differentiated.append(type(self).__name__)
        if any(isinstance(each, posattn_jax.Memory) for each in args):  # which keeps what is computed
            return original(self, rngs, *args, **kwargs)
        return results

    nn.Module.init_with_output = init_with_output
    try:
        yield differentiated
    finally:
        nn.Module.init_with_output = original


def run_example(place: tuple[str, str]) -> list[str]:
    """The example of the public name at (package, name). Returns the Linen modules whose gradients it computed."""
    package, name = place
    public = getattr(sys.modules[package], name)
    runs = "--gradients" in sys.argv or name in EXACT  # processes that are started have the same argv
    with with_gradients() if runs else traced() as differentiated:
        for test in doctest.DocTestFinder(recurse=False).find(public, name, globs={}):
            assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, name
    return differentiated


def run_page() -> None:
    """The examples of docs/importing.md, each of which goes on where the one before it ends."""
    names = {}
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "importing.md").read_text(), re.DOTALL):
        if "equinox" not in example:
            exec(example, names)


def try_command() -> None:
    """`posattn` without the extra "train"."""

    def posattn(*arguments):
        command = [sys.executable, "-m", "posattn_jax.main", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    helped = posattn("--help")
    assert helped.returncode == 0 and "--config" in helped.stdout, helped.stderr
    refused = posattn("--config=configs/digits.py:tiny", "--workdir=build/none")
    assert refused.returncode == 2 and not refused.stdout, refused
    expected = r"posattn_jax: error: \w+ is missing: pip install posattn_jax\[train\]\n"
    assert re.fullmatch(expected, refused.stderr), refused


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--gradients", action="store_true")
    parser.parse_args()
    assert "jax.experimental.pallas" not in sys.modules, "Pallas is imported before it is asked for"
    places = [(package.__name__, name) for package in (posattn_jax, posattn_jax.nnx) for name in package.__all__]
    with concurrent.futures.ProcessPoolExecutor(
        min(4, os.cpu_count() or 1), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        page = [pool.submit(run_page)] if "--gradients" in sys.argv else []  # the longest
        differentiated = {module for modules in pool.map(run_example, places) for module in modules}
        for each in page:
            each.result()
    try_command()
    public = f"{len(posattn_jax.__all__)} public names, {len(posattn_jax.nnx.__all__)} of NNX"
    more = f"gradients of {len(differentiated)} Linen modules, docs/importing.md, " if page else ""
    print(f"core alone: {public}, {more}the command")


if __name__ == "__main__":
    main()
