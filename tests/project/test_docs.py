"""The pages under docs/: their examples run, the API has every public name, and they build without a warning."""

import json
import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import posattn_jax
import posattn_jax.nnx
from posattn_jax.run.train import train
from tests.project.test_readme import examples
from tests.support.command import ROOT, environment


@pytest.mark.slow
def test_examples_of_importing(unchecked):
    names = {}
    for example in examples("docs/importing.md"):  # each goes on where the one before it ends
        exec(example, names)
    assert names["denoised"].shape == names["images"].shape
    assert names["intermediates"]["intermediates"]["sigma"][0].shape == (2,)
    assert names["contrasts"].shape == (1, 48, 16)
    assert names["cache"].length == 4 and int(names["cache"].step) == 64
    assert names["looked"].shape == names["decoded"].shape
    assert names["look_variables"]["params"]["projections"]["key_value_kernel"].shape == (32, 2, 2, 8)
    parts = {"terms_0", "terms_1", "terms_2", "projections", "gate", "output"}
    assert names["own_variables"]["params"].keys() == parts
    alike = jnp.ones((1, 48, 16))  # a neighbourhood has nothing more than its centre
    np.testing.assert_allclose(names["own"].apply(names["own_variables"], alike, (6, 8)), 0, atol=1e-5)
    assert names["mixed"].shape == (2, 6, 8, 16)
    assert (names["of_mixed"]["attention"]["span"]["sigma"][...] != 0).all()
    kernel = names["params"]["projections"]["kernel"]
    np.testing.assert_array_equal(names["native"].attention.projections.kernel[...], kernel)
    assert names["features"].shape == (2, 48, 16)
    assert names["gradient"]["attention"]["values"]["matrices"].shape == (3, 3, 16, 1, 16)
    assert names["outputs"].shape == (4, 48, 16)
    assert (names["of_layer"].log_sigma != 0).all()


@pytest.mark.slow
def test_a_data_set_and_a_task_of_your_own(tmp_path, monkeypatch):
    module, config_file = examples("docs/data.md")
    (tmp_path / "bars.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    names = {}
    exec(config_file, names)
    config = names["get_config"]()
    config.model.update(num_blocks=1, width=16, dropout_rate=0.0)
    config.model.block.dropout_rate, config.cache_dir = 0.0, str(tmp_path / "cache")
    config.train.update(total_epochs=20.0, eval_steps=1000)
    config.optimizer.learning_rate, config.task.smoothing = 3e-3, 0.2
    train(config, tmp_path / "run")
    final = json.loads((tmp_path / "run" / "summary.json").read_text())["final"]
    assert final["accuracy"] > 0.8
    least = -0.9 * np.log(0.9) - 0.1 * np.log(0.1)  # of labels that are smoothed
    assert least < final["loss"] < least + 0.2


def test_every_page_is_in_the_index():
    docs = ROOT / "docs"
    trees = re.findall(r"```{toctree}\n(.*?)```", (docs / "index.md").read_text(), re.DOTALL)
    listed = {page for tree in trees for page in re.findall(r"^(?:.+<)?([\w/]+)>?$", tree, re.MULTILINE)}
    found = {page for name in listed for page in docs.glob(f"{name}.*") if page.suffix in (".md", ".rst")}
    pages = {page for page in docs.rglob("*") if page.suffix in (".md", ".rst")}
    assert found == pages - {docs / "index.md"}


@pytest.mark.slow
def test_pages_build_without_a_warning(tmp_path):
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going"]
    build += ["-D", "html_baseurl=https://host/pages/", "docs", tmp_path]
    result = subprocess.run(build, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    front = (tmp_path / "index.html").read_text()
    assert 'href="playground.html"' in front and (tmp_path / "playground.html").exists()
    assert '<ul class="doors' in front and "pages.css" in front
    titles = re.findall(r'toctree-l1"><a class="reference internal" href="[^"]*">(.*?)</a>', front)
    assert len(titles) == len(set(titles)) > 20
    listed = re.findall("<loc>https://host/pages/(.*?)</loc>", (tmp_path / "sitemap.xml").read_text())
    pages = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html") if path.parent.name != "_static"}
    assert set(listed) == pages - {"genindex.html", "py-modindex.html", "search.html"}
    for path in tmp_path.rglob("*.html"):  # so they work in whatever folder they are put
        links = re.findall('(?:href|src)="([^"#?:]+)["#?]', path.read_text())
        assert not [link for link in links if not (path.parent / link).exists()], path
    page = (tmp_path / "api.html").read_text()
    assert all(f'id="posattn_jax.{name}"' in page for name in posattn_jax.__all__)
    assert all(f'id="posattn_jax.nnx.{name}"' in page for name in posattn_jax.nnx.__all__)
