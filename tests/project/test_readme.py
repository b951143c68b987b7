"""The examples of the README and of the pages run, and their commands exist."""

import importlib.util
import math
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "colabs/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
]


def examples(page="README.md"):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_example_of_the_front_pages(unchecked, capsys):
    """Ten lines, and what they print."""
    (example,) = examples()
    assert examples("docs/index.md") == [example] and len(list(filter(str.strip, example.splitlines()))) <= 10
    exec(example, {})
    assert capsys.readouterr().out == "(2, 16, 12, 64) [0.1 0.1]\n"


@pytest.mark.slow
def test_example_of_translution(unchecked):
    names = {}
    exec(examples("docs/translution.md")[0], names)
    assert names["logits"].shape == (2, 10)
    assert names["variables"]["params"]["blocks_0"]["attention"]["values"]["matrices"].shape == (5, 5, 64, 1, 64)


def test_example_of_spans(unchecked):
    names = {}
    exec(examples("docs/span.md")[0], names)
    variables = jax.eval_shape(names["layer"].init, jax.random.key(0), jnp.ones((1, 5, 4)))
    assert variables["params"]["span"]["log_width"].shape == (2, 1)


def test_example_of_convolutions(unchecked):
    names = {}
    exec(examples("docs/convolutions.md")[0], names)
    assert sum(math.prod(array.shape) for array in jax.tree.leaves(names["params"])) == 13_428_196


@pytest.mark.slow
def test_example_of_posnet(unchecked):
    names = {}
    exec(examples("docs/posnet.md")[0], names)
    assert names["outputs"].shape == (2, 20, 64) and names["intermediates"]["weights"].shape == (1, 8, 20, 20)


@pytest.mark.slow
def test_example_of_weights(unchecked, tmp_path, monkeypatch):
    pytest.importorskip("safetensors")  # of the extra "convert", and of "test"
    for kind in ("bert", "vit"):
        shutil.copytree(ROOT / "tests" / "convert" / "made" / kind, tmp_path / kind)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(examples("docs/weights.md")[0], names)
    assert names["features"].shape == (1, 5, 8) and names["logits"].shape == (1, 3)
    assert (tmp_path / "there" / "model.safetensors").exists()


def test_every_example_is_run():
    pages = {str(path.relative_to(ROOT)): len(examples(path)) for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
    once = (
        "README.md",
        "docs/index.md",
        "docs/translution.md",
        "docs/convolutions.md",
        "docs/posnet.md",
        "docs/span.md",
        "docs/weights.md",
    )
    expected = dict.fromkeys(once, 1) | {"docs/data.md": 2}
    assert {page: count for page, count in pages.items() if count and page != "docs/importing.md"} == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_and_links_exist(page):
    text = page.read_text()
    for path in re.findall(r"(?<!tests/)launch/\w+\.(?:sh|py|yaml|txt)|configs/[\w/]+\.py", text):
        assert path == "configs/NAME.py" or (ROOT / path).exists(), path
    for module in re.findall(r"python -m (posattn_jax[\w.]*)", text):
        assert importlib.util.find_spec(module), module
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_pages_are_short():
    """Words as `wc -w` counts them. The claims are as many as the papers have."""
    words = {path.name: len(path.read_text().split()) for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
    assert words.pop("README.md") < 900 and words.pop("claims.md")
    assert {name: count for name, count in words.items() if count > 2500} == {}


@pytest.mark.parametrize("page, count", [("README.md", 6), ("docs/results.md", 22)])
def test_figures_are_those_of_the_linked_pages(page, count):
    """Each number with a decimal point in a row of these tables stands on a page that the row links."""
    figures = lambda text: set(re.findall(r"(?<![\w.])\d*\.\d+", text))
    ends_with_links = r"^\| [^|]*\|.*\| (?:\[[\w ]+\]\([^)]*\.md[^)]*\)(?:, )?)+ \|$"
    rows = re.findall(ends_with_links, (ROOT / page).read_text(), re.MULTILINE)
    found = 0
    for row in rows:
        text, _, links = row.removesuffix(" |").rpartition(" | ")
        pages = [(ROOT / page).parent / path for path in re.findall(r"\]\(([^)#]+)", links)]
        there = set().union(*(figures(path.read_text()) for path in pages))
        assert figures(text) <= there, (row, figures(text) - there)
        found += bool(figures(text))
    assert found == count
