"""Every public name has an example in its docstring, and the examples run."""

import doctest

import pytest

import posattn_jax
from tests.support.slow import slow


def example_of(name, package=posattn_jax):
    found = doctest.DocTestFinder(recurse=False).find(getattr(package, name), name, globs={})
    (test,) = [each for each in found if each.examples]
    return test


def run(test):
    told: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed == 0, "".join(told)


# Parts whose examples are a layer with one of them, as those of the other parts are.
ALIKE = ("BucketedBias", "ContentBias", "ConvolutionalProjections", "GeluGate", "KeyPositional", "LearnedDecay")
ALIKE += ("LinearBias", "LinearProjections", "LowRankTranslution", "PlusDepthwise", "PlusRelative", "PositionalBias")
ALIKE += ("RelativeContent", "RotaryContent", "ScoreNetwork", "SpanConvolution", "WindowSpan", "PairTable")
ALIKE += ("AxialEncoding", "DotProducts", "FourierWeights", "GaussianWeights", "GeneralTranslution", "OffsetTable")


@pytest.mark.parametrize("name", posattn_jax.__all__)
def test_there_is_an_example(name):
    test = example_of(name)
    assert any(name in example.source for example in test.examples)
    assert any(example.want for example in test.examples)


@pytest.mark.parametrize("name", [slow(name) if name in ALIKE else name for name in posattn_jax.__all__])
def test_example(name):
    run(example_of(name))
