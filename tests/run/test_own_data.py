"""A user's own images, volumes and sentences: trained, evaluated and predicted, by the command line."""

import itertools
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.support import made_own
from tests.support.command import run_forked, told

pytestmark = pytest.mark.slow  # CPU seconds: 20 to 30 each


def story(workdir, config, *fields):
    """What training refuses and then, without what is malformed, prints; and the evaluation."""
    given = [f"--config={config}", f"--workdir={workdir}", f"--config.cache_dir={workdir}_cache"]
    given += [f"--config.{field}" for field in ("optimizer.learning_rate=.01", *fields)]
    code, _, err = run_forked(*given, config=None)
    assert code == 2 and len(told(err)) == 1, err
    (refused,) = told(err)
    given.append("--config.data.malformed=skip")
    code, trained, err = run_forked(*given, config=None)
    assert code == 0, err
    code, _, err = run_forked(*given, "--mode=evaluate", config=None)
    assert code == 0, err
    return refused, trained, json.loads((workdir / "evaluation.json").read_text())


def predict(workdir, *inputs, **options):
    code, out, err = run_forked("--mode=predict", f"--workdir={workdir}", *inputs, config=None, **options)
    return [json.loads(line) for line in out.splitlines()], code, "\n".join(told(err))


def test_images(tmp_path):
    folder, workdir = made_own.write_images(tmp_path / "images"), tmp_path / "run"
    fields = f"data.dir={folder}", "train.total_steps=40"
    refused, trained, evaluation = story(workdir, "configs/image_folder.py:tiny", *fields)
    broken = f"{folder}/across/broken.png: cannot be read as PNG, JPEG or WebP ("
    assert refused.startswith(f"posattn_jax: error: {broken}")
    assert f"train: left out: {broken}" in trained
    assert "left out: 1, next to 304" in trained
    assert evaluation["validation"]["accuracy"] > 0.9
    larger = f"--workdir={workdir}", "--mode=evaluate", "--config.data.height=16", "--config.data.width=16"
    code, out, err = run_forked(*larger, config=None)
    assert code == 0 and "grid (4, 4)" in out, err
    shutil.rmtree(folder)  # which a prediction does not need
    Image.fromarray(made_own.stripes(1, 24, 16)).save(tmp_path / "new.webp", lossless=True)
    Image.fromarray(made_own.stripes(0)).save(tmp_path / "new.png")
    answers, code, err = predict(workdir, str(tmp_path / "new.png"), str(tmp_path / "new.webp"), "--top=2")
    assert (code, err) == (0, "")
    assert [answer["name"] for answer in answers] == ["across", "along"]
    assert [each["name"] for each in answers[0]["top"]] == ["across", "along"]


def test_volumes(tmp_path):
    path, workdir = made_own.write_volumes(tmp_path / "volumes.npz"), tmp_path / "run"
    fields = f"data.dir={path}", "train.total_steps=30"
    refused, trained, evaluation = story(workdir, "configs/arrays.py:tiny", *fields)
    assert f"{path}: row 3: has values that are not finite" in refused
    assert "train: 39 arrays of 4 x 3 x 6" in trained
    assert evaluation["grid_shape"] == [4, 3, 6] and evaluation["validation"]["accuracy"] == 1
    answers, code, err = predict(workdir, str(path), "a.png")
    assert code == 2 and err.splitlines() == [
        f"posattn_jax: error: {path}: row 3: has values that are not finite",
        "posattn_jax: error: a.png: this run reads arrays, in files whose names end with .npz",
    ]
    assert [answer["row"] for answer in answers] == [row for row in range(40) if row != 3]
    assert [answer["name"] for answer in answers] == [("ill", "well")[answer["row"] % 2] for answer in answers]


@pytest.mark.parametrize("suffixes", [("tsv", "csv", "jsonl"), ("jsonl", "tsv", "csv")], ids=["tsv", "jsonl"])
def test_sentences(tmp_path, suffixes):
    """In each format."""
    folder, workdir = tmp_path / "sentences", tmp_path / "run"
    names = [f"{part}.{suffix}" for part, suffix in zip(("train", "val", "test"), suffixes, strict=True)]
    lines = {name: number + 2 - name.endswith("jsonl") for name, number in zip(names, (200, 40, 40), strict=True)}
    for seed, (name, number) in enumerate(zip(names, (200, 40, 40), strict=True)):
        rows = [*made_own.labelled(number, seed), ("", "true")]
        made_own.write_table(folder / name, ("sentence", "label"), rows)
    fields = f"data.dir={folder}", "train.batch_size=32", "train.total_steps=100", "train.eval_steps=50"
    refused, trained, evaluation = story(workdir, "configs/sentences.py:tiny", *fields)
    told = f'{folder}/{names[0]}: line {lines[names[0]]}: "sentence" is empty: expected a text'
    assert refused.startswith(f"posattn_jax: error: {told} (malformed rows: 1, ")
    for part, name in zip(("train", "validation", "test"), names, strict=True):
        assert f'{part}: left out: {folder}/{name}: line {lines[name]}: "sentence" is empty' in trained
    assert min(evaluation[part]["accuracy"] for part in ("validation", "test")) > 0.9
    rows = made_own.labelled(20, seed=9)
    answers, code, err = predict(workdir, given="".join(f"{sentence}\n" for sentence, _ in rows))
    assert (code, err) == (0, "")
    assert np.mean([answer["name"] == label for answer, (_, label) in zip(answers, rows, strict=True)]) > 0.9


def test_numbers_of_pairs(tmp_path):
    """A number is told, and judged by its correlation."""
    rng, workdir = np.random.default_rng(0), tmp_path / "run"
    sentences = [row[0] for row in made_own.labelled(80)]
    rows = [(one, two, round(float(rng.random()), 2)) for one, two in itertools.pairwise(sentences)]
    path = made_own.write_table(tmp_path / "pairs.jsonl", ("first", "second", "alike"), [*rows, ("a", "b", "much")])
    fields = f"data.dir={path}", "data.sentences='first','second'", "data.label=alike", "data.target=number"
    refused, _, evaluation = story(workdir, "configs/sentences.py:tiny", *fields)
    assert f'{path}: line 80: label "much"' in refused
    assert {"score", "pearson", "spearman"} < set(evaluation["validation"])
    answers, code, err = predict(workdir, given="The cat sees a dog.\tA dog.\nAlone.\n")
    assert code == 2 and err == "posattn_jax: error: input: line 2: expected 2 sentences, a tab between them"
    assert [answer.keys() for answer in answers] == [{"line", "score"}]
