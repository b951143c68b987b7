"""A model as one file: it tells what the module tells, with nothing of this package."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

from configs import bert
from configs.lib.common import ATTENTION, ENCODING, SPAN, TERMS
from configs.lib.common_vit import VALUES, general
from posattn_jax import Content, KernelEncoding, Positional, RelativeBias, SinusoidalEncoding
from posattn_jax.config.parts import part
from posattn_jax.data.images.image_sets import PointClouds
from posattn_jax.system import extras
from posattn_jax.system.errors import InputError
from posattn_jax.use import export, trained
from tests.support.command import run_forked
from tests.support.made_runs import make_digits, make_rte, patches
from tests.support.slow import slow

pytest.importorskip("flatbuffers")  # of the extra "export", and of "test"
ROOT = pathlib.Path(__file__).parents[2]
CONTENT = {"content": part(Content)}
CONVOLUTIONS = {
    "dynamic_convolution": part(Positional, encoding=part(KernelEncoding, kernel_shape=(3, 3))),
    "fixed_convolution": part(RelativeBias, kernel_shape=(3, 3)),
}


@pytest.fixture(scope="module")
def folder(digits_run):
    """A run of digits, exported."""
    return export.export(digits_run)


def load(folder):
    """By the loader that lies next to the model."""
    spec = importlib.util.spec_from_file_location("load", folder / "load.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def pixels_and_logits(workdir, number):
    """Random images, and what the module tells of them: pooled and normalised here."""
    run = trained.of_run(workdir)
    pool = run.config.data.pool
    side = 8 // pool
    pixels = np.random.default_rng(number).random((number, 8, 8, 1), np.float32)
    inputs = (pixels.reshape(number, side, pool, side, pool, 1).mean((2, 4)) - 0.5) / 0.5
    grid = (side, side) if run.config.data.layout == "2d" else (side * side,)
    apply = jax.jit(lambda params, x: run.task.model.apply({"params": params}, x, grid))
    return pixels, apply(run.params, jnp.asarray(inputs.reshape(number, -1, 1)))


def test_batches_of_two_sizes(folder):
    model = load(folder)
    pixels, expected = pixels_and_logits(folder.parent, 8)
    for rows in (slice(1), slice(1, 8)):
        np.testing.assert_allclose(model(pixels[rows]), expected[rows], atol=1e-5)
    assert np.ptp(expected) > 0.1


def test_what_is_beside_the_model(folder):
    about = json.loads((folder / "model.json").read_text())
    assert about["platforms"] == ["cpu", "cuda", "tpu"]
    assert [(each["name"], each["shape"], each["dtype"]) for each in about["inputs"]] == [
        ("pixels", ["b", 8, 8, 1], "float32")
    ]
    assert about["outputs"] == [{"name": "logits", "shape": ["b", 10], "dtype": "float32"}]
    assert about["classes"] == list("0123456789")
    files = {path.name for path in folder.iterdir() if path.is_file()}  # not the bytecode of an imported loader
    assert files == {"model.stablehlo", "model.json", "load.py"}


def test_what_knows_positions_alone_is_folded(folder):
    """No sine of the SIREN is left to be computed; one is in the program that is not folded."""
    exported = jax_export.deserialize(bytearray((folder / "model.stablehlo").read_bytes()))
    assert "stablehlo.sine" not in exported.mlir_module()
    run = trained.of_run(folder.parent, implementation="dense")
    pixels = jax.ShapeDtypeStruct((8, 8, 1), jnp.float32)
    assert "stablehlo.sine" in jax.jit(export._logits(run)).lower(pixels).as_text()


def test_the_loader_refuses_what_is_wrong(folder, tmp_path):
    model = load(folder)
    with pytest.raises(ValueError, match=r"pixels is float64 .*float32 \(2, 8, 8, 1\)"):
        model(np.zeros((2, 8, 8, 1)))
    with pytest.raises(ValueError, match=r"pixels is .*\(2, 8, 8\): .*\(2, 8, 8, 1\)"):
        model(np.zeros((2, 8, 8), np.float32))
    with pytest.raises(ValueError, match="2 inputs: expected pixels"):
        model(np.zeros((2, 8, 8, 1), np.float32), 1)
    for path in folder.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = bytearray((tmp_path / "model.stablehlo").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "model.stablehlo").write_bytes(data)
    with pytest.raises(ValueError, match="is not the one that model.json describes"):
        load(tmp_path)


@pytest.mark.parametrize("name", [slow("rte"), slow("stsb")])
def test_sentences(rte_run, tmp_path, name):
    workdir = rte_run if name == "rte" else make_rte(tmp_path / "run", name)
    model, run = load(export.export(workdir)), trained.of_run(workdir)
    pairs = [("The cat sees a dog.", "A ship."), ("The tree finds no bird.", "The child hears the river.")] * 3
    batch = run.examples(pairs).batch(np.arange(6))
    tokens, segments = batch["tokens"], batch["segments"]
    arrays = {"segments": jnp.asarray(segments), "key_mask": jnp.asarray(tokens != 0)}
    expected = jax.jit(run.task.model.apply)({"params": run.params}, jnp.asarray(tokens), **arrays)
    for number in (1, 6):
        np.testing.assert_allclose(model(tokens[:number], segments[:number]), expected[:number], atol=1e-5)
    kept = (workdir / "exported" / model.about["tokenizer"]["file"]).read_bytes()
    assert kept == (workdir / "tokenizer.model").read_bytes()
    assert model.about["tokenizer"]["reads"] == "white space as one space, then NFKC, then lower case"
    assert model.about["classes"] == list(run.names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"data.layout": "1d", ENCODING: part(SinusoidalEncoding), SPAN: None},
        {"model.num_blocks": 2, "model.scan_layers": True, "data.pool": 1},
        {f"{SPAN}.covariance": "full", f"{SPAN}.per_head": True, f"{ATTENTION}.implementation": "patch"},
        {"model": patches("class"), "data.pool": 1},
        {TERMS: CONTENT, SPAN: None, VALUES: general()},
        {TERMS: CONTENT | CONVOLUTIONS},
        {f"{ATTENTION}.implementation": "fused", "data.pool": 1},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_other_models(tmp_path, fields):
    """Whatever implementation the run asks for."""
    workdir = make_digits(tmp_path / "run", fields)
    model = load(export.export(workdir))
    for number in (1, 7):
        pixels, expected = pixels_and_logits(workdir, number)
        np.testing.assert_allclose(model(pixels), expected, atol=1e-5)


@pytest.mark.slow
def test_runs_that_are_not_exported(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(bert.get_config("tiny,test").to_dict()))
    with pytest.raises(InputError, match="MaskedLanguageModelling: .*Classification"):
        export.export(tmp_path)
    code, out, err = run_forked("--mode=export", f"--workdir={tmp_path / 'none'}", config=None)
    assert (code, out) == (2, "") and "no run there" in err and len(err.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(InputError, match=r"pip install posattn_jax\[export\]"), extras.named():
        export.export(tmp_path / "none")


@pytest.mark.slow
def test_points_are_not_exported(tmp_path):
    fields = {"data": part(PointClouds, name="digits", num_points=9)}
    fields |= {"model": patches("mean", (1,)), VALUES: general()}
    with pytest.raises(InputError, match="data.kind=PointClouds is not exported"):
        export.export(make_digits(tmp_path / "run", fields))


PROGRAM = """
import sys
import numpy as np
from load import load
model = load()
for name in sys.argv[1:]:
    np.save(f"{name}.logits.npy", model(np.load(name)))
here = {name.split(".")[0] for name in sys.modules}
assert not here & {"posattn_jax", "flax", "optax", "orbax", "absl", "ml_collections"}, here
"""


@pytest.mark.slow
def test_in_an_environment_of_jax_and_flatbuffers_alone(folder, tmp_path):
    """Made fresh, from a package index."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    install = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"jax=={jax.__version__}", "flatbuffers"], check=True, cwd=ROOT)
    expected = {}
    for number in (1, 7):
        pixels, expected[number] = pixels_and_logits(folder.parent, number)
        np.save(tmp_path / f"{number}.npy", pixels)
    names = [str(tmp_path / f"{number}.npy") for number in expected]
    subprocess.run([venv / "bin" / "python", "-c", PROGRAM, *names], check=True, cwd=folder)
    for number, logits in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{number}.npy.logits.npy"), logits, atol=1e-5)
