"""The page to play with: its formulas are the package's, its figures those of the committed runs, its table a run's."""

import base64
import json
import math
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.cpu.rivals import CASES
from configs.lib.common_vit import VALUES
from docs.figures import playground
from posattn_jax import Translution
from posattn_jax.config.parts import part
from posattn_jax.ops import grid, span
from posattn_jax.ops.attention.api import relative_attention
from posattn_jax.ops.attention.cpu import kernel
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json, write_json
from posattn_jax.use import trained
from tests.support.command import ROOT
from tests.support.made_runs import make_digits
from tests.support.pages import needs_browser, visit

# Grid, standard deviations, correlation, threshold.
SPANS = [
    ((8, 8), (0.3, 0.2), 0.0, 0.1),
    ((7, 12), (0.15, 0.4), 0.6, 0.1),
    ((1, 19), (0.5, 0.12), -0.95, 0.3),
    ((13, 2), (0.07, 1.0), 0.5, 0.95),
    ((9, 6), (0.2, 0.2), -0.7, 0.0),
    ((17, 33), (0.12, 0.05), 0.8, 0.1),
]
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node here")


def ask_page(expression, cases):
    """What the page's functions make of each case, of which the expression knows the fields."""
    source = (playground.PARTS / "span.js").read_text()
    script = (
        f"{source}console.log(JSON.stringify({json.dumps(cases)}.map(({{ {', '.join(cases[0])} }}) => ({expression}))))"
    )
    result = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(result.stdout)


def make_sigma(deviations, correlation):
    """[1 p p]: the Cholesky factor of the covariance."""
    a, b = deviations
    covariance = [[a * a, correlation * a * b], [correlation * a * b, b * b]]
    return jnp.asarray(np.linalg.cholesky(covariance)[None], jnp.float32)


def of_package(sigma, threshold, shape):
    """The half-span, G at every offset, and which offsets are inside."""
    (half,), (gaussian,) = span.half_span(sigma, threshold, shape), span.gaussian(shape, sigma)
    return half, gaussian, span.inside_span(grid.relative_offsets(shape), half)


def counted(shape, inside):
    """How many pairs of places are so far apart that it is `inside` [*R]."""
    places = grid.positions(shape)
    offsets = places[None] - places[:, None] + np.array(shape) - 1
    return int(np.asarray(inside)[tuple(np.moveaxis(offsets, -1, 0))].sum())


@needs_node
def test_spans_and_pairs_are_the_packages():
    cases = [
        {
            "grid": shape,
            "deviations": deviations,
            "correlation": correlation,
            "threshold": threshold,
            "all": grid.positions(shape).tolist(),
        }
        for shape, deviations, correlation, threshold in SPANS
    ]
    for case in cases:
        case["offsets"] = np.asarray(grid.relative_offsets(case["grid"])).reshape(-1, 2).tolist()
    expression = """(L => (half => ({ half, gaussian: offsets.map(offset => Math.exp(logGaussian(offset, grid, L))),
        boxes: pairsInBoxes(half, grid), ellipses: pairsInEllipses(L, threshold, grid),
        computed: pairsComputed(half, grid), tiles: all.map(query => tileOf(query, half, grid)) })
        )(halfSpan(L, threshold, grid)))(factor(deviations, correlation))"""
    for (shape, deviations, correlation, threshold), found in zip(SPANS, ask_page(expression, cases), strict=True):
        half, gaussian, inside = jax.jit(of_package, static_argnums=(1, 2))(
            make_sigma(deviations, correlation), threshold, shape
        )
        half, gaussian = half.astype(int).tolist(), np.asarray(gaussian)
        assert found["half"] == half
        np.testing.assert_allclose(np.reshape(found["gaussian"], gaussian.shape), gaussian, rtol=2e-4, atol=1e-30)
        assert (
            found["boxes"]
            == counted(shape, inside)
            == round(span.pair_share(tuple(half), shape) * math.prod(shape) ** 2)
        )
        assert found["ellipses"] == counted(shape, gaussian >= threshold) <= found["boxes"]
        assert found["computed"] == kernel.pairs(shape, tuple(half)) >= found["boxes"]
        for (row, column), tile in zip(grid.positions(shape), found["tiles"], strict=True):
            near = range(column - column % 8, min(column - column % 8 + 8, shape[1]))
            keys = {key for query in near for key in range(shape[1]) if abs(key - query) <= half[1]}
            rows = {key for key in range(shape[0]) if abs(key - row) <= half[0]}
            assert set(range(*tile["columns"])) >= keys and set(range(*tile["rows"])) == rows
            assert len(keys) * len(rows) <= tile["keys"] < (len(keys) + 16) * len(rows)


@pytest.mark.slow
@needs_node
@pytest.mark.parametrize("mode", ["multiply", "log_add"])
def test_weights_of_equal_scores_are_the_packages(mode):
    (shape, deviations, correlation, threshold), query, score = SPANS[1], (2, 10), 3.5
    case = {"grid": shape, "deviations": deviations, "correlation": correlation, "threshold": threshold}
    case |= {"mode": mode, "query": query, "score": score}
    (found,) = ask_page("weightsOf(query, score, mode, factor(deviations, correlation), threshold, grid)", [case])
    ones = jnp.ones((1, math.prod(shape), 1, 1))
    options = {
        "sigma": make_sigma(deviations, correlation),
        "threshold": threshold,
        "span_mode": mode,
        "scale": 1.0,
    } | {"implementation": "reference"}
    _, weights = relative_attention(ones, score * ones, ones, grid_shape=shape, return_weights=True, **options)
    row = np.ravel_multi_index(query, shape)
    np.testing.assert_allclose(found, weights[0, 0, row], rtol=1e-4, atol=1e-9)


def measured(name):
    """Milliseconds of the implementation "native", by case, features a head, and pass."""
    points = read_json(ROOT / "benchmarks" / "results" / "cpu" / "rivals" / name)["points"]
    return {(p["case"], p["head_dim"], p["pass"]): p["rivals"]["native"]["median_ms"] for p in points}


@needs_node
def test_predictions_are_what_the_committed_runs_bear_out():
    """Rounded outwards to tenths."""
    windows, all_pairs = measured("windows.json"), measured("all_pairs.json")
    shares, ratios = [], []
    for (case, *rest), milliseconds in windows.items():
        shape, half, *_ = CASES[case]
        shares.append(kernel.pairs(shape, half) / math.prod(shape) ** 2)
        ratios.append(milliseconds / all_pairs[(case.split("_")[0], *rest)] / shares[-1])
    least, most = math.floor(10 * min(ratios)) / 10, math.ceil(10 * max(ratios)) / 10
    (found,) = ask_page("predicted(share)", [{"share": 0.5}])
    assert found == pytest.approx([least * 0.5, most * 0.5])
    text = " ".join((playground.PARTS / "page.html").read_text().split())
    assert f"by {least} to {most}." in text
    assert f"computed {min(shares):.2f} to {max(shares):.2f} of all pairs".replace("0.", ".") in text
    assert {case for case, *_ in windows} == {"2d64_half8", "1d1024_half51", "2d32_half4", "2d32_half2"}, "as it says"


def test_the_page_is_made_of_its_parts():
    """After a change: `python -m docs.figures.playground`."""
    page = playground.compose()
    assert page == (ROOT / "docs" / "playground.html").read_text()
    for path in playground.PARTS.iterdir():
        assert path.name == "page.html" or path.read_text() in page, path
    assert (playground.PARTS / "displacements.json").stat().st_size < 60_000


def decode(text, kind):
    return np.frombuffer(base64.b64decode(text), kind).astype(float)


def test_a_table_is_off_by_half_a_step_at_most():
    matrices = np.random.default_rng(0).normal(size=(2, 3, 5, 4, 2))  # [h *R c d]
    made = playground.quantise(matrices)
    singular = decode(made["singular"], np.uint8).reshape(2, 3, 5, 2) / 255 * made["largest"]
    cosine = decode(made["cosine"], np.int8).reshape(2, 3, 5) / 127
    for at in np.ndindex(2, 3, 5):
        matrix, centre = matrices[at], matrices[at[0], 1, 2]
        squares = np.linalg.eigvalsh(matrix.T @ matrix)[::-1]
        np.testing.assert_allclose(singular[at], np.sqrt(squares), atol=made["largest"] / 509)
        expected = (matrix * centre).sum() / math.sqrt((matrix**2).sum() * (centre**2).sum())
        assert cosine[at] == pytest.approx(expected, abs=1 / 253)


@pytest.mark.slow
def test_the_table_of_a_run(tmp_path):
    workdir = make_digits(tmp_path / "run", {VALUES: part(Translution)})
    write_json(workdir / "summary.json", {"best": {"epoch": 3.0, "accuracy": 0.875}})
    made = playground.describe(workdir)
    assert (made["grid"], made["heads"], made["features"]) == ([4, 4], 2, 4)
    assert "Layers: 1, heads: 2, matrices of 8 x 4" in made["about"] and "accuracy 0.875" in made["about"]
    assert "a norm of about 0.41" in made["about"]  # of U(+-1 / sqrt(c h d)): 1 / sqrt(3 h)
    table = np.asarray(trained.of_run(workdir).params["blocks_0"]["attention"]["values"]["matrices"])
    assert table.shape == (7, 7, 8, 2, 4)
    assert made["layers"] == [playground.quantise(np.stack([table[..., head, :] for head in range(2)]))]


def test_a_run_without_such_a_table_is_named(digits_run, monkeypatch, capsys):
    assert playground.run(["", f"--workdir={digits_run}"]) == 2
    assert capsys.readouterr().err.endswith("digits: not finished (it has no summary.json)\n")
    monkeypatch.setattr(playground, "read_json", lambda path: {"best": {}})
    with pytest.raises(InputError, match="images with Translution"):
        playground.describe(digits_run)


@needs_browser
def test_what_the_page_tells():
    """Of the span that it begins with, and of the centre of the first head's table."""
    dom, console = visit(ROOT / "docs" / "playground.html")
    assert console == []
    shape, half = (32, 32), (8, 8)
    assert "17 x 17 of 63 x 63 offsets" in dom
    assert f"<td>{kernel.pairs(shape, half):,}</td>" in dom
    made = json.loads((playground.PARTS / "displacements.json").read_text())
    layer, middle = made["layers"][0], math.prod(2 * size - 1 for size in made["grid"]) // 2
    singular = decode(layer["singular"], np.uint8).reshape(-1, made["features"])[middle] / 255 * layer["largest"]
    norm = float(f"{np.linalg.norm(singular):.3g}")
    assert f"Norm {norm:g}, cosine to the centre's 1.00" in dom
