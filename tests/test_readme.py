"""The README's example runs, and its two commands exist."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]


def test_example(unchecked):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(code, names)
    assert names["outputs"].shape == (2, 192, 64)
    assert names["made"]["sigma"].shape == (2,)


def test_commands():
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"launch/\w+\.sh", text):
        assert (ROOT / path).exists(), path
