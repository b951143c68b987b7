"""The README's examples run, and its commands exist."""

import math
import pathlib
import re

import jax

ROOT = pathlib.Path(__file__).parents[1]


def examples(page="README.md"):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_example_of_a_layer(unchecked):
    names = {}
    exec(examples()[0], names)
    assert names["outputs"].shape == (2, 192, 64)
    assert names["made"]["sigma"].shape == (2,)


def test_example_of_translution(unchecked):
    names = {}
    exec(examples()[1], names)
    assert names["logits"].shape == (2, 10)
    assert names["variables"]["params"]["blocks_0"]["attention"]["values"]["matrices"].shape == (5, 5, 64, 1, 64)


def test_example_of_convolutions(unchecked):
    names = {}
    exec(examples()[2], names)
    assert sum(math.prod(array.shape) for array in jax.tree.leaves(names["params"])) == 13_428_196


def test_example_of_posnet(unchecked):
    names = {}
    exec(examples()[3], names)
    assert len(examples()) == 4
    assert names["outputs"].shape == (2, 20, 64) and names["made"]["weights"].shape == (1, 8, 20, 20)


def test_commands():
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"launch/\w+\.sh", text):
        assert (ROOT / path).exists(), path
