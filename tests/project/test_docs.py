"""The pages under docs/: their examples run, the API has every public name, and they build without a warning."""

import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import posattn_jax
from tests.project.test_readme import examples
from tests.support.command import ROOT, environment


def test_examples_of_importing(unchecked):
    names = {}
    for example in examples("docs/importing.md"):  # each goes on where the one before it ends
        exec(example, names)
    assert names["denoised"].shape == names["images"].shape
    assert names["intermediates"]["intermediates"]["sigma"][0].shape == (2,)
    assert names["contrasts"].shape == (1, 48, 16)
    parts = {"terms_0", "terms_1", "projections", "gate", "output"}
    assert names["own_variables"]["params"].keys() == parts
    alike = jnp.ones((1, 48, 16))  # a neighbourhood has nothing more than its centre
    np.testing.assert_allclose(names["own"].apply(names["own_variables"], alike, (6, 8)), 0, atol=1e-5)
    assert names["features"].shape == (2, 48, 16)
    assert names["gradient"]["block"]["attention"]["values"]["matrices"].shape == (3, 3, 16, 1, 16)
    assert names["outputs"].shape == (4, 48, 16)
    assert (names["of_layer"].log_sigma != 0).all()


def test_every_page_is_in_the_index():
    docs = ROOT / "docs"
    trees = re.findall(r"```{toctree}\n(.*?)```", (docs / "index.md").read_text(), re.DOTALL)
    listed = {line for tree in trees for line in tree.split() if not line.startswith(":")}
    found = {page for name in listed for page in docs.glob(f"{name}.*") if page.suffix in (".md", ".rst")}
    pages = {page for page in docs.rglob("*") if page.suffix in (".md", ".rst")}
    assert found == pages - {docs / "index.md"}


@pytest.mark.slow
def test_pages_build_without_a_warning(tmp_path):
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "docs", tmp_path]
    result = subprocess.run(build, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "api.html").read_text()
    assert all(f'id="posattn_jax.{name}"' in page for name in posattn_jax.__all__)
