"""Every public name has an example in its docstring, and the examples run."""

import doctest

import pytest

import posattn_jax


def example_of(name, package=posattn_jax):
    found = doctest.DocTestFinder(recurse=False).find(getattr(package, name), name, globs={})
    (test,) = [each for each in found if each.examples]
    return test


def run(test):
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed == 0, "".join(told)


@pytest.mark.parametrize("name", posattn_jax.__all__)
def test_there_is_an_example(name):
    test = example_of(name)
    assert any(name in example.source for example in test.examples)
    assert any(example.want for example in test.examples)


@pytest.mark.slow  # launch/core_check.py runs them as well
@pytest.mark.parametrize("name", posattn_jax.__all__)
def test_example(name):
    run(example_of(name))
