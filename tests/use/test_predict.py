"""Images and sentences in, JSON lines out."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from posattn_jax.config.parts import part
from posattn_jax.data.images import GridImages
from posattn_jax.data.images.image_sets import Images
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.reconstruction import Reconstruction
from posattn_jax.train.evaluator import Evaluator
from posattn_jax.use import predict, trained
from tests.support import command, made_data
from tests.support.command import run_forked
from tests.support.made_runs import make_rte, validation_digits
from tests.train.made_run import one_device


def told(*arguments, **options):
    """The answers, and the exit code."""
    output = io.StringIO()
    code = predict.predict(*arguments, **({"inputs": [], "lines": [], "output": output} | options))
    return [json.loads(line) for line in output.getvalue().splitlines()], code


@pytest.mark.slow
def test_the_validation_images_as_files(digits_run, tmp_path):
    """Have the loss that the run's evaluation finds, but for their brightness, which digits have in 16 steps."""
    images = validation_digits(9188)
    write_pngs(images, tmp_path)
    answers, code = told(digits_run, inputs=[str(tmp_path)], top=10)
    assert code == 0
    assert [answer["path"] for answer in answers] == [str(tmp_path / f"{i:03}.png") for i in range(len(images))]
    probabilities = np.zeros((len(images), 10))
    for row, answer in zip(probabilities, answers, strict=True):
        assert {name: answer[name] for name in ("class", "name", "probability")} == answer["top"][0]
        assert answer["name"] == str(answer["class"])
        for each in answer["top"]:
            row[each["class"]] = each["probability"]
    np.testing.assert_array_equal([answer["class"] for answer in answers], probabilities.argmax(1))
    run = trained.of_run(digits_run)
    evaluated = Evaluator(run.task, one_device(), 128)(run.params, GridImages(images, "2d", 2))
    losses = -np.log(probabilities[np.arange(len(images)), images.labels])
    assert losses.mean() == pytest.approx(evaluated["loss"], rel=2e-3)
    assert np.mean(probabilities.argmax(1) == images.labels) == pytest.approx(evaluated["accuracy"], abs=0.02)
    # And exactly the module's, which pools and normalises as here.
    pixels = np.rint(np.asarray(images.images) * (255 / 16)) / 255
    pooled = pixels.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16, 1)
    inputs = jnp.asarray((pooled - 0.5) / 0.5, jnp.float32)
    logits = jax.jit(lambda params: run.task.model.apply({"params": params}, inputs, (4, 4)))(run.params)
    np.testing.assert_allclose(probabilities, jax.nn.softmax(logits), atol=2e-6)


def write_pngs(images, folder):
    for i, image in enumerate(np.asarray(images.images)[..., 0]):
        Image.fromarray(np.rint(image * (255 / 16)).astype(np.uint8)).save(folder / f"{i:03}.png")


@pytest.mark.slow
def test_a_trained_run_tells_what_it_was_judged_by(tmp_path):
    """From the command that trains to the one that predicts."""
    workdir, folder = tmp_path / "run", tmp_path / "images"
    code, _, err = run_forked(f"--workdir={workdir}", "--config.train.total_steps=400")
    assert code == 0, err
    folder.mkdir()
    images = validation_digits(9188)
    write_pngs(images, folder)
    code, out, err = run_forked("--mode=predict", f"--workdir={workdir}", str(folder), config=None)
    assert (code, command.told(err)) == (0, [])
    accuracy = np.mean([json.loads(line)["class"] for line in out.splitlines()] == images.labels)
    best = json.loads((workdir / "summary.json").read_text())["best"]
    assert accuracy == pytest.approx(best["accuracy"], abs=0.01) and accuracy > 0.15


def test_the_command(digits_run, tmp_path):
    """What cannot be read has a line of its own, and the others their answers."""
    good, bad = tmp_path / "good.jpg", tmp_path / "bad.png"
    Image.new("RGB", (40, 30), "white").save(good)
    bad.write_text("nothing")
    arguments = ("--mode=predict", str(bad), str(good), f"--workdir={digits_run}", str(tmp_path / "none.png"))
    code, out, err = run_forked(*arguments, config=None)
    assert code == 2
    (answer,) = map(json.loads, out.splitlines())
    assert answer.keys() == {"path", "class", "name", "probability"} and answer["path"] == str(good)
    assert command.told(err) == [
        f"posattn_jax: error: {bad}: cannot be read as PNG, JPEG or WebP (it is none of them)",
        f"posattn_jax: error: {tmp_path / 'none.png'}: cannot be read as PNG, JPEG or WebP (No such file or directory)",
    ]


@pytest.mark.slow
def test_arrays_are_as_files(digits_run, tmp_path, capsys):
    """A row of a .npz has the answer of the image that it is."""
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "rows.npz", images=images)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    paths = [str(tmp_path / f"{number}.png") for number in range(3)]
    answers, code = told(digits_run, inputs=[*paths, str(tmp_path / "rows.npz")])
    assert code == 0
    of_rows = [{"path": str(tmp_path / "rows.npz"), "row": row} for row in range(3)]
    assert answers[3:] == [answer | name for answer, name in zip(answers, of_rows, strict=False)]
    np.savez(tmp_path / "rows.npz", images=images[:, 1:])
    assert told(digits_run, inputs=[str(tmp_path / "rows.npz")]) == ([], 2)
    assert "rows.npz: arrays of uint8 [7, 8]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--mode=predict", "--top=0", "a.png"], "--top=0: expected at least 1"),
        (["--mode=predict"], "--mode=predict: "),
        (
            ["--mode=predict", "--config=configs/digits.py", "a.png"],
            "--config: expected none",
        ),
        (["--mode=evaluate", "--config=configs/digits.py:tiny", "--top=3"], "--top is for --mode=predict"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_commands(digits_run, arguments, message):
    code, out, err = run_forked(f"--workdir={digits_run}", *arguments, config=None)
    assert (code, out) == (2, "")
    assert message in err and len(command.told(err)) == 1, err


def test_folders_that_are_no_such_run(digits_run, tmp_path):
    with pytest.raises(InputError, match="no run there"):
        told(tmp_path / "none", inputs=["a.png"])
    config = json.loads((digits_run / "config.json").read_text())

    def write(config):
        (tmp_path / "config.json").write_text(json.dumps(config))

    write(config)
    with pytest.raises(InputError, match="no checkpoint of a finished epoch"):
        told(tmp_path, inputs=["a.png"])
    write(config | {"task": part(Reconstruction).to_dict()})
    with pytest.raises(InputError, match="Reconstruction: .*Classification or Sentence"):
        told(tmp_path, inputs=["a.png"])
    write(config | {"model": {}})
    with pytest.raises(InputError, match="earlier version: model has no kind$"):
        told(tmp_path, inputs=["a.png"])
    write(config | {"train": config["train"] | {"eval_batch_size": 0}})
    with pytest.raises(InputError, match="eval_batch_size=0: expected at least 1"):
        told(tmp_path, inputs=["a.png"])
    write({name: group for name, group in config.items() if name != "mesh"})
    with pytest.raises(InputError, match="^mesh: expected a part"):
        told(tmp_path, inputs=["a.png"])


def test_sentences(rte_run, capsys, told_at_once):
    """A pair a line; lines that are none have a line of their own on stderr."""
    lines = ["The cat sees a dog.\tA dog likes the cat.", "Alone.", "A ship.\tThe tree finds no bird.", "\t", "a\tb\tc"]
    answers, code = told(rte_run, lines=[*(f"{line}\n".encode() for line in lines), b"\xff\ta\n"], top=2)
    assert code == 2
    expected = "expected 2 sentences, a tab between them"
    errors = [f"posattn_jax: error: input: line {number}: {expected}" for number in (2, 4, 5)]
    err = capsys.readouterr().err
    assert command.told(err) == [*errors, "posattn_jax: error: input: line 6 is no UTF-8"]
    assert {"reading the run ...", "predicting 2 inputs ..."} < set(err.splitlines())
    assert [answer["line"] for answer in answers] == [1, 3]
    run = trained.of_run(rte_run)
    batch = run.examples([tuple(lines[i].split("\t")) for i in (0, 2)]).batch(np.arange(2))
    tokens, segments = map(jnp.asarray, (batch["tokens"], batch["segments"]))
    apply = jax.jit(run.task.model.apply)
    logits = apply({"params": run.params}, tokens, segments=segments, key_mask=tokens != 0)
    for answer, row in zip(answers, np.asarray(jax.nn.softmax(logits)), strict=True):
        names = np.array(["entailment", "not_entailment"])[np.argsort(-row)]
        assert [each["name"] for each in answer["top"]] == names.tolist()
        assert answer["probability"] == pytest.approx(row.max(), abs=2e-6)
    with pytest.raises(InputError, match=r'"a.png": .*sentences'):
        told(rte_run, inputs=["a.png"])


@pytest.mark.slow
def test_a_number(tmp_path):
    """Of STS-B."""
    workdir = make_rte(tmp_path / "stsb", "stsb")
    answers, code = told(workdir, lines=[b"The cat sees a dog.\tA dog likes the cat."])
    assert code == 0
    assert answers == [{"line": 1, "score": answers[0]["score"]}]
    with pytest.raises(InputError, match="--top=2: .* 1, "):
        told(workdir, lines=[], top=2)


def test_records_are_those_of_the_sets(tmp_path):
    """What is known without reading a set is what is read."""
    made_data.write_mnist(tmp_path)
    for name in ("digits", "mnist"):
        data = Images(name, str(tmp_path))
        images = data.read("train")
        assert data.shape == images.images.shape[1:] and len(data.classes) == images.num_classes
    assert [len(set(Images(name, str(tmp_path)).classes)) for name in ("cifar10", "cifar100")] == [10, 100]
    with pytest.raises(InputError, match='data.name="none": .*digits'):
        _ = Images("none").classes
    with pytest.raises(InputError, match='tfds set "none" is not prepared'):
        _ = Images("tfds/none", str(tmp_path)).classes
