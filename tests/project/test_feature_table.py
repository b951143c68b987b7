"""The table of features in docs/parts.md: ours are names that exist, and each row has its test."""

import dataclasses
import inspect
import re

import pytest

import posattn_jax
from posattn_jax import PositionalCrossAttention, PositionalSelfAttention, relative_attention
from tests.support.command import ROOT

# Of each row the file under tests/ that has the test, and its name.
TESTS = {
    "dimensions of the grid": ("ops/attention/attention_suite", "test_values_and_gradients"),
    "mask of pairs": ("ops/attention/test_api", "test_without_positions_it_is_jaxs"),
    "bias of pairs": ("ops/attention/test_api", "test_without_positions_it_is_jaxs"),
    "lengths, padding": ("ops/attention/test_api", "test_without_positions_it_is_jaxs"),
    "packed sequences": ("ops/attention/test_api", "test_segments_are_sentences_one_by_one"),
    "causal": ("nn/test_elsewhere", "test_without_positions_it_is_flaxs"),
    "causal in some dimensions": ("ops/attention/test_definitions", "test_interior_windows_are_nattens"),
    "window": ("ops/attention/test_definitions", "test_interior_windows_are_nattens"),
    "learned window": ("nn/test_attention", "test_values_and_gradients_of_every_parameter"),
    "steps between keys": ("ops/attention/test_definitions", "test_interior_windows_are_nattens"),
    "steps between windows": None,
    "vectors of offsets, q.E": ("nn/test_attention", "test_values_and_gradients_of_every_parameter"),
    "bias of offsets": ("ops/attention/test_definitions", "test_a_bias_of_buckets"),
    "rotary positions": ("nn/test_position_methods", "test_values_and_gradients_of_a_layer"),
    "fewer heads of keys": ("ops/attention/test_api", "test_without_positions_it_is_jaxs"),
    "normalised queries and keys": ("nn/test_elsewhere", "test_without_positions_it_is_flaxs"),
    "keys of other tokens": ("nn/test_cross_attention", "test_values_and_gradients_of_every_parameter"),
    "two grids in one extent": ("nn/test_cross_attention", "test_values_and_gradients_of_every_parameter"),
    "decoding with a cache": ("nn/test_elsewhere", "test_a_cache_of_fewer_heads_goes_on_step_by_step"),
    "dropout of weights": ("ops/attention/attention_suite", "test_dropout"),
    "the weights themselves": ("ops/attention/attention_suite", "test_weights_are_a_distribution_over_attended_keys"),
    "of linear maps": ("nn/test_elsewhere", "test_linear_maps_have_flaxs_fields"),
}


def rows():
    page = (ROOT / "docs/parts.md").read_text()
    table = page[page.index("| | ours |") :].split("\n\n")[0].splitlines()[2:]
    return {name: cells for name, *cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in table)}


@pytest.mark.parametrize("name", rows())
def test_a_row(name):
    ours, *others = rows()[name]
    assert len(others) == 4
    known = set(posattn_jax.__all__) | {field.name for field in dataclasses.fields(PositionalSelfAttention)}
    for function in (relative_attention, PositionalSelfAttention.__call__, PositionalCrossAttention.__call__):
        known |= set(inspect.signature(function).parameters)
    names = re.findall(r"`(\w+)`", ours)
    assert set(names) <= known and (names or ours == "-")
    if TESTS[name] is None:
        assert ours == "-"
        return
    file, test = TESTS[name]
    assert f"def {test}(" in (ROOT / f"tests/{file}.py").read_text()


def test_every_row_has_its_test():
    assert rows().keys() == TESTS.keys()
