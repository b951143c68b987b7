"""The page on what attention attends to: its numbers are the module's."""

import base64
import functools
import io
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from configs.lib.common import SPAN
from configs.lib.common_vit import VALUES
from posattn_jax import Translution
from posattn_jax.config.parts import part
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.use import explain, trained
from tests.support.command import run_forked
from tests.support.made_runs import make_digits, make_masked_lm, make_rte, patches
from tests.support.pages import Parsed, needs_browser, visit
from tests.support.slow import slow

LINES = [b"The cat sees a dog.\n", b"A ship.\tThe bird finds no tree.\n"]


def page_of(workdir, inputs=(), lines=(), layers=(), heads=()):
    """What the page has, and the exit code."""
    code = explain.explain(workdir, inputs, lines, layers, heads)
    return json.loads(Parsed((workdir / "attention.html").read_text()).scripts["data"]), code


def floats(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


def weights_of(page, example, layer):
    """As the page's script reads them."""
    heads, size = len(page["heads"]), page["examples"][example]["size"]
    made = page["examples"][example]["layers"][layer]
    largest = floats(made["largest"]).reshape(heads, size, 1)
    return np.frombuffer(base64.b64decode(made["shares"]), np.uint8).reshape(heads, size, size) / 255 * largest


def kernel_of(page, layer, name):
    (kernel,) = [each for each in page["layers"][layer]["kernels"] if each["name"] == name]
    shares = np.frombuffer(base64.b64decode(kernel["values"]), np.uint8).reshape(len(page["heads"]), -1)
    low, high = np.array(kernel["ranges"]).T[..., None]
    return (low + shares / 255 * (high - low)).reshape(-1, *(2 * size - 1 for size in page["grid"]))


def close(read, expected, largest):
    excess = np.abs(read - expected) - largest / 510
    assert excess.max() < 1e-6


@pytest.fixture(scope="module")
def explained(digits_run):
    page, code = page_of(digits_run)
    assert code == 0
    return page


def test_weights_are_the_modules(digits_run, explained):
    run = trained.of_run(digits_run)
    with np.load(digits_run / "positions.npz") as file:
        image = np.rint(file["image"] * 255) / 255
    inputs = jnp.asarray((image.reshape(1, 16, 1) - 0.5) / 0.5, jnp.float32)
    apply = functools.partial(run.task.model.apply, grid_shape=(4, 4), return_weights=True)
    logits, made = jax.jit(apply)({"params": run.params}, inputs)
    for i in range(2):
        weights = np.asarray(made[f"block_{i}"]["weights"][0])
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        close(weights_of(explained, 0, i), weights, weights.max(-1, keepdims=True))
        np.testing.assert_allclose(weights_of(explained, 0, i).sum(-1), 1, atol=0.03)
    assert explained["examples"][0]["prediction"].startswith(
        f"The model predicts: {int(jnp.argmax(logits))}, with probability"
    )
    assert (explained["kind"], explained["grid"], explained["shown"], explained["heads"]) == (
        "image",
        [4, 4],
        [4, 4],
        [1, 2],
    )


def test_the_picture_is_the_input(digits_run, explained):
    picture = explained["examples"][0]["picture"]
    assert picture.startswith("data:image/png;base64,")
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.split(",")[1]))))
    with np.load(digits_run / "positions.npz") as file:
        np.testing.assert_array_equal(drawn[::2, ::2], np.rint(file["image"][..., 0] * 255))
    np.testing.assert_array_equal(drawn[::2, ::2], drawn[1::2, 1::2])


def test_spans_and_kernels(digits_run, explained):
    run, offsets = trained.of_run(digits_run), np.arange(-3, 4)
    encodings = jax.jit(run.task.describe)(run.params)
    for i, layer in enumerate(explained["layers"]):
        params = run.params[f"blocks_{i}"]["attention"]
        sigma = np.abs(np.asarray(params["span"]["sigma"], float))
        half = np.minimum(np.ceil(math.sqrt(-2 * math.log(0.1)) * sigma * 3), 3)
        np.testing.assert_array_equal(layer["halfSpans"], half)
        y, x = offsets[:, None] / 3, offsets / 3
        expected = np.stack([np.exp(-0.5 * ((y / a) ** 2 + (x / b) ** 2)) for a, b in sigma])
        close(kernel_of(explained, i, "Gaussian of the span"), expected, 1)
        encoding = np.asarray(encodings[f"block_{i}"]["relative_encoding"], float)
        v = np.asarray(params["terms_positional_bias"]["v"], float)
        scores = np.einsum("yxhd,hd->hyx", encoding, v) / 2  # the square root of 4 features a head
        close(kernel_of(explained, i, "Scores of positions alone"), scores, np.ptp(scores))
        weights, expected = weights_of(explained, 0, i), np.zeros((2, 7, 7))
        for dy in range(-3, 4):
            for dx in range(-3, 4):
                pairs = [
                    (4 * row + column, 4 * (row + dy) + column + dx)
                    for row in range(4)
                    for column in range(4)
                    if 0 <= row + dy < 4 and 0 <= column + dx < 4
                ]
                expected[:, dy + 3, dx + 3] = np.mean([weights[:, t, s] for t, s in pairs], axis=0)
        close(kernel_of(explained, i, "Mean weight"), expected, 2)


@pytest.mark.slow
def test_chosen_layers_heads_and_files(digits_run, tmp_path, capsys, told_at_once):
    """Titles are text, whatever they are."""
    name = tmp_path / "<script>alert(1)<!--.png"
    Image.new("L", (30, 20), "white").save(name)
    (tmp_path / "bad.png").write_text("no")
    page, code = page_of(digits_run, [str(tmp_path / "bad.png"), str(name)], layers=["2"], heads=["2"])
    assert code == 2
    assert capsys.readouterr().err.splitlines() == [
        "reading the run ...",
        f"posattn_jax: error: {tmp_path / 'bad.png'}: cannot be read as PNG, JPEG or WebP (it is none of them)",
        "looking at 1 inputs ...",
    ]
    assert [layer["number"] for layer in page["layers"]] == [2] and page["heads"] == [2]
    assert [each["title"] for each in page["examples"]] == [str(name)]
    whole, code = page_of(digits_run, [str(name)])
    assert code == 0
    np.testing.assert_array_equal(weights_of(page, 0, 0)[0], weights_of(whole, 0, 1)[1])
    assert (digits_run / "attention.html").read_text().count("<script") == 2


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_masked_lm, slow(make_rte)])
def test_sentences(tmp_path, make):
    """Without their padding."""
    workdir = make(tmp_path / "run")
    lines = LINES if make is make_masked_lm else LINES[1:]
    page, code = page_of(workdir, lines=lines)
    run = trained.of_run(workdir, (MaskedLanguageModelling, SentencePrediction))
    assert code == 0 and page["kind"] == "text" and len(page["examples"]) == len(lines)
    for i, line in enumerate(lines):
        sentences = tuple(line.decode().strip().split("\t"))
        batch = run.examples([sentences]).batch(np.arange(1))
        tokens = jnp.asarray(batch["tokens"])
        example, size = page["examples"][i], int((tokens != 0).sum())
        assert example["title"] == " | ".join(sentences)
        assert example["size"] == len(example["tokens"]) == size
        assert example["tokens"][0] == "[CLS]" and example["tokens"].count("[SEP]") == len(sentences)
        apply = jax.jit(functools.partial(run.task.model.apply, return_weights=True))
        segments = jnp.asarray(batch["segments"])
        _, made = apply({"params": run.params}, tokens, segments=segments, key_mask=tokens != 0)
        weights = np.asarray(made["block_0"]["weights"][0])[:, :size, :size]
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        close(weights_of(page, i, 0), weights, weights.max(-1, keepdims=True))
        assert bool(example["prediction"]) == (make is make_rte)
    beta = np.asarray(run.params["encoder"]["blocks_0"]["attention"]["terms_fixed_convolution"]["beta"], float)
    kernel = kernel_of(page, 0, "Scores of positions alone")
    close(kernel[:, 9:14], beta.T, np.ptp(beta, axis=0)[:, None])  # of 23 offsets the five in the middle
    assert page["layers"][0]["halfSpans"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields, shown, class_tokens",
    [
        ({"data.layout": "1d"}, [4, 4], 0),
        ({"model": patches("class")}, [2, 2], 1),
        ({"model.num_blocks": 2, "model.scan_layers": True, f"{SPAN}.mode": "log_add"}, [4, 4], 0),
        ({VALUES: part(Translution)}, [4, 4], 0),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_other_models(tmp_path, fields, shown, class_tokens):
    page, code = page_of(make_digits(tmp_path / "run", fields))
    assert code == 0 and page["shown"] == shown and page["classTokens"] == class_tokens
    assert page["examples"][0]["size"] == math.prod(shown) + class_tokens
    for i in range(len(page["layers"])):
        np.testing.assert_allclose(weights_of(page, 0, i).sum(-1), 1, atol=0.03)


@pytest.mark.slow
def test_wrong_input(digits_run, tmp_path, monkeypatch):
    for options, message in (
        ({"layers": ["3"]}, "--layers=3: expected numbers from 1 to 2"),
        ({"heads": ["0", "1"]}, "--heads=0,1: expected numbers from 1 to 2"),
        ({"heads": ["x"]}, "--heads=x: expected numbers from 1 to 2"),
    ):
        with pytest.raises(InputError, match=message):
            page_of(digits_run, **options)
    assert explain.explain(digits_run, [str(tmp_path / "none.png")], (), (), ()) == 2
    monkeypatch.setattr(explain, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="2 layers and 2 heads of 16 tokens .* 0"):
        page_of(digits_run)
    code, out, err = run_forked("--mode=explain", f"--workdir={tmp_path}", config=None)
    assert (code, out) == (2, "") and "no run there" in err and len(err.splitlines()) == 1


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("kind", ["image", "text"])
def test_in_a_browser(tmp_path, kind):
    """The script runs: what it writes is what the numbers say."""
    workdir = make_digits(tmp_path / "run") if kind == "image" else make_masked_lm(tmp_path / "run")
    page, _ = page_of(workdir, lines=LINES)
    dom, console = visit(workdir / "attention.html")
    assert console == []
    query = 1 if kind == "text" else 10  # the second token; row 3 and column 3
    row = weights_of(page, 0, 0).mean(0)[query]
    strongest = re.findall(r"<li>([\d.]+) %", dom)
    assert [float(each) for each in strongest] == pytest.approx(np.sort(row)[::-1][:5] * 100, abs=0.06)
    assert ("row 3, column 3" if kind == "image" else "Query: 2 ") in dom
    scale = re.findall(r"([\d.]+) %", re.search('id="scale">(.*?)</p>', dom)[1])
    assert [float(tick) for tick in scale] == pytest.approx(np.array([0, 0.5, 1]) * row.max() * 100, abs=0.06)
