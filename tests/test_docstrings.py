"""Every public name has an example in its docstring, and the examples run."""

import doctest

import pytest

import posattn_jax


@pytest.mark.parametrize("name", posattn_jax.__all__)
def test_example(name):
    (test,) = [
        each
        for each in doctest.DocTestFinder(recurse=False).find(getattr(posattn_jax, name), name, globs={})
        if each.examples
    ]
    assert any(name in example.source for example in test.examples)
    assert any(example.want for example in test.examples)
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed == 0, "".join(told)
