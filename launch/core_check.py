"""What the core of setup.py is enough for, in an environment that has nothing else: python launch/core_check.py

Runs the example in the docstring of every public name, each Linen module with the gradient of every parameter too, and
the examples of docs/importing.md but Equinox's; then sees that the command helps, and says in a line what it lacks.
"""

import contextlib
import doctest
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
# Programs run once: they are compiled quickly, not well.
jax.config.update("jax_disable_most_optimizations", True)


@contextlib.contextmanager
def with_gradients():
    """Inside, a Linen module that is initialised is differentiated as well."""
    original, differentiated = nn.Module.init_with_output, []

    def init_with_output(self, rngs, *args, **kwargs):
        variables = jax.jit(lambda: original(self, rngs, *args, **kwargs)[1])()

        def total(params):
            leaves = jax.tree.leaves(self.apply({**variables, "params": params}, *args, **kwargs))
            return sum(jnp.sum(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact))

        gradient = jax.jit(jax.grad(total))(variables.get("params", {}))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient)), self
        differentiated.append(type(self).__name__)
        return self.apply(variables, *args, **kwargs), variables

    nn.Module.init_with_output = init_with_output
    try:
        yield differentiated
    finally:
        nn.Module.init_with_output = original


def run_docstrings() -> None:
    """The examples of all public names."""
    for package in (posattn_jax, posattn_jax.nnx):
        for name in package.__all__:
            for test in doctest.DocTestFinder(recurse=False).find(getattr(package, name), name, globs={}):
                assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, name


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
    assert "jax.experimental.pallas" not in sys.modules, "Pallas is imported before it is asked for"
    with with_gradients() as differentiated:
        run_docstrings()
    run_page()
    try_command()
    public = f"{len(posattn_jax.__all__)} public names, {len(posattn_jax.nnx.__all__)} of NNX"
    print(
        f"core alone: {public}, gradients of {len(set(differentiated))} Linen modules, docs/importing.md, the command"
    )


if __name__ == "__main__":
    main()
