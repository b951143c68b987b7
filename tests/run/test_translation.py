"""From parallel text to a trained encoder-decoder, its evaluation, and translations; wrong input."""

import io
import itertools
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import nmt
from configs.lib import common, common_nmt
from configs.lib.common_mixers import mixing
from posattn_jax.config import experiment
from posattn_jax.config.parts import change
from posattn_jax.data.text import parallel, text_files
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.run.evaluate import evaluate
from posattn_jax.run.train import train
from posattn_jax.system import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_metrics
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.pretrained import average
from posattn_jax.train.program import Program
from posattn_jax.use import translate
from tests.support.command import environment, told
from tests.support.made_text import LANGUAGES, sentences, write_parallel
from tests.support.recorded import figures_of


class Killed(Exception):
    pass


def config_of(files, variant="tiny", **data):
    config = nmt.get_config(f"multi30k,{variant}")
    config.cache_dir = str(files / "cache")
    config.data.update(**{"dir": str(files), "test_part": "test"} | data)
    config.data.update(source=LANGUAGES[0], target=LANGUAGES[1])
    config.train.update(total_steps=4)
    config.data.buckets = (72,)  # one shape, which is compiled once
    return config


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
def test_from_text_to_translations(tmp_path, monkeypatch, capsys):
    """One story, for what comes later needs what was trained before; on one device, whose programs compile faster."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    write_parallel(tmp_path)
    workdir = tmp_path / "run"
    trains(tmp_path, workdir)
    averages(workdir)
    is_evaluated(tmp_path, workdir, capsys)
    translates(workdir, monkeypatch, capsys)
    refuses_wrong_input(tmp_path, workdir, capsys)


def trains(files, workdir):
    train(config_of(files), workdir)
    summary = read(workdir / "summary.json")
    assert set(summary["final"]) == {"step", "epoch", "loss", "log_likelihood", "perplexity", "accuracy"}
    sides = [parallel.of_file(files, "train", language) for language in LANGUAGES]
    subwords = tokenizer.of_run(workdir)
    source = parallel.of_text(*sides, (subwords, subwords), (72,), files / "cache")
    assert parallel.ratio_of_run(workdir) == source.within_limit().length_ratio
    speeds = [row for row in read_metrics(workdir / "metrics.jsonl") if row["name"] == "tokens_per_second"]
    assert [row["step"] for row in speeds] == [2, 3, 4], "an evaluation an update, of which the first is not timed"
    with np.load(workdir / "positions.npz") as positions:
        assert {name: array.shape for name, array in positions.items()} == {
            f"{place}_0/energies": (2, 32, 32) for place in ("encoder", "decoder", "cross")
        }
    assert (workdir / "figures" / "energies_encoder_0.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_killed_and_restarted(tmp_path, monkeypatch, packed):
    """And ends bit for bit the same."""
    files, workdir = write_parallel(tmp_path), tmp_path / "run"
    train(config_of(files, packed=packed), workdir)
    update, done, killed = Program.update, [], files / "killed"

    def update_or_die(program, *arguments):
        if len(done) == 3:
            raise Killed
        done.append(program)
        return update(program, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Program, "update", update_or_die)
        with pytest.raises(Killed):
            train(config_of(files, packed=packed), killed)
    assert not (killed / "summary.json").exists()
    train(config_of(files, packed=packed), killed)
    assert figures_of(killed) == figures_of(workdir)


def averages(workdir):
    """The best and following, where these are as many as asked for; in float64."""
    checkpoints = Checkpoints(workdir, read_only=True)
    best = checkpoints.best_step()
    steps = checkpoints.steps_to_average(2)
    assert len(steps) == 2 and steps == ([best, best + 1] if best < 4 else [3, 4])
    each = [checkpoints.read_params(step) for step in steps]
    mean = average(checkpoints, steps)
    checkpoints.close()
    biases = [np.asarray(params["output_bias"], np.float64) for params in each]
    np.testing.assert_array_equal(mean["output_bias"], ((biases[0] + biases[1]) / 2).astype(np.float32))


def is_evaluated(files, workdir, capsys):
    capsys.readouterr()
    evaluate(config_of(files), workdir)
    (out, err), results = capsys.readouterr(), read(workdir / "evaluation.json")
    for part in ("validation", "test"):
        assert 0 <= results[part]["bleu"] <= 100 and results[part]["perplexity"] > 1
        assert "tok:13a" in results[part]["bleu_signature"]
        folder = workdir / "translations" / part
        lines = {
            name: (folder / f"{name}.txt").read_text().splitlines() for name in ("source", "hypothesis", "reference")
        }
        assert {len(each) for each in lines.values()} == {results[part] and len(lines["source"])}
    assert lines["source"] == (files / "test.qa").read_text().splitlines()
    assert lines["reference"] == (files / "test.qb").read_text().splitlines()
    drawn = {path.name for path in (workdir / "figures").glob("*_0.png")}
    assert {f"{kind}_{place}_0.png" for kind in ("attention", "gating") for place in ("encoder", "cross")} <= drawn
    assert "comet-score" in out and "bleurt" in out and "training a tokenizer" not in err


def translates(workdir, monkeypatch, capsys):
    """As the README's command, in a process of its own: order and empty lines are kept, and what is read at a time
    changes nothing.
    """
    lines = sentences(5, 20)
    lines[3] = lines[11] = ""
    text = "".join(f"{line}\n" for line in lines).encode()
    command = [sys.executable, "-m", "posattn_jax.main", "--mode=translate", f"--workdir={workdir}"]
    command.append("--config.task.decoding.batch_size=8")  # of the run's own config
    done = subprocess.run(command, input=text, capture_output=True, check=True, env=environment())
    whole, output = done.stdout.decode().splitlines(), io.StringIO()
    assert len(whole) == 20 and [i for i in range(20) if not whole[i]] == [3, 11]
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(translate, "CHUNK_BATCHES", 1)
        patch.setattr(doing, "AFTER", 0.0)  # told at once
        translate.translate(workdir, None, io.BytesIO(text), output)
    assert output.getvalue().splitlines() == whole
    (line,) = told(done.stderr.decode())
    assert line.startswith("average of the checkpoints ")
    chunks = [f"translating lines {numbers} ..." for numbers in ("1 to 8", "9 to 16", "17 to 20")]
    assert capsys.readouterr().err.splitlines() == ["reading the run ...", line, *chunks]


def refuses_wrong_input(files, workdir, capsys):
    with pytest.raises(InputError, match="input: line 2 is no UTF-8"):
        translate.translate(workdir, None, io.BytesIO(b"The cat.\n\xff\n"), io.StringIO())
    long = "cat " * 200
    output = io.StringIO()
    translate.translate(workdir, None, io.BytesIO(long.encode()), output)
    assert "1 of 1 lines are longer than 72 tokens" in capsys.readouterr().err and output.getvalue().count("\n") == 1
    config = config_of(files)
    (files / "train.qa").write_text((files / "train.qa").read_text() + "One more.\n")
    with pytest.raises(InputError, match="as many, each the other's translation"):
        train(config, files / "other")
    with pytest.raises(InputError, match="train.qa has changed"):
        write_parallel(files, 90)
        train(config, workdir)
    tokenizer.train(sentences(1, 300), 58, "bpe", fold_case=False).save(workdir / "tokenizer.model")
    with pytest.raises(InputError, match="is not the tokenizer of this run"):
        translate.translate(workdir, None, io.BytesIO(b"The cat.\n"), io.StringIO())


@pytest.mark.slow
def test_a_table_refuses_what_is_longer(tmp_path):
    """LinearNet has no row for places beyond; its error names the line."""
    write_parallel(tmp_path)
    config = config_of(tmp_path)
    change(config, common_nmt.mixer_fields("linear", 2, 0.1, 16, 72))
    config.train.total_steps = 1
    train(config, tmp_path / "run")
    output = io.StringIO()
    translate.translate(tmp_path / "run", None, io.BytesIO(b"The cat.\n"), output)
    assert output.getvalue().count("\n") == 1
    with pytest.raises(InputError, match=r"line 2 has \d+ tokens: .* 72"):
        translate.translate(tmp_path / "run", None, io.BytesIO(b"The cat.\n" + b"cat " * 200), io.StringIO())


def test_a_checkpoint_of_another_vocabulary(tmp_path):
    """Refused, on either side."""
    write_parallel(tmp_path)
    files = [tmp_path / "train.qa", tmp_path / "train.qb"]
    of_58, of_60 = (tokenizer.train(text_files.lines(files), size, "bpe", False) for size in (58, 60))
    params = {name: {"embedding": np.zeros((60, 4))} for name in ("embedding", "source_embedding")}
    translate.check_vocabulary(params, of_60, of_60, tmp_path)
    for source, target in ((of_58, of_60), (of_60, of_58)):
        with pytest.raises(InputError, match="58 tokens, expected 60"):
            translate.check_vocabulary(params, source, target, tmp_path)


@pytest.mark.slow
def test_a_vocabulary_a_language(tmp_path):
    """Three matrices, two tokenizers, which the run keeps."""
    write_parallel(tmp_path)
    config = config_of(tmp_path, source_vocabulary_size=58)
    config.train.total_steps = 1
    train(config, tmp_path / "run")
    source, target = experiment.data_set(config).tokenizers(tmp_path / "run")
    assert (source.vocabulary_size, target.vocabulary_size) == (58, 60)
    params = Checkpoints(tmp_path / "run", read_only=True).read_params(1)
    sizes = [len(params[name]["embedding"]) for name in ("source_embedding", "embedding", "output_embedding")]
    assert sizes == [58, 60, 60]
    evaluate(config, tmp_path / "run")
    assert "bleu" in read(tmp_path / "run" / "evaluation.json")["test"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_parallel(tmp_path_factory.mktemp("parallel"))


def test_a_ratio_that_leaves_no_pair(tmp_path):
    path = write_parallel(tmp_path) / f"train.{LANGUAGES[1]}"
    path.write_text("".join(f"{' '.join([line] * 6)}\n" for line in path.read_text().splitlines()))
    with pytest.raises(InputError, match="data.max_ratio=1.5: .*no pair"):
        experiment.load_sources(config_of(tmp_path, max_ratio=1.5))


@pytest.mark.parametrize("parts", [{}, {"val": "dev"}, {"val": "valid", "test": "test"}])
def test_parts_are_those_that_are_there(files, tmp_path, parts):
    config = config_of(tmp_path, validation_part="", test_part="")
    for (part, name), language in itertools.product({"train": "train", **parts}.items(), LANGUAGES):
        shutil.copy(files / f"{part}.{language}", tmp_path / f"{name}.{language}")
    found = experiment.load_sources(config, test=True)
    assert ("test" in found) == ("test" in parts)
    assert (len(found["train"]), len(found["validation"])) == ((120, 120) if parts else (114, 6))


def test_half_a_part_and_two_parts_are_refused(files, tmp_path):
    """Without an error, the part would be left out, and others be validated on."""
    _, other = LANGUAGES
    for part, language in itertools.product(("train", "val"), LANGUAGES):
        shutil.copy(files / f"{part}.{language}", tmp_path)
    data = experiment.data_set(config_of(tmp_path, validation_part="", test_part=""))
    assert data.every == 0
    (tmp_path / f"val.{other}").rename(tmp_path / "away")
    with pytest.raises(InputError, match=f"data.dir={tmp_path}: no val.{other} or val.{other}.gz there"):
        _ = data.every
    (tmp_path / f"val.{other}").symlink_to("nothing")
    with pytest.raises(InputError, match=f"data.dir: {tmp_path}/val.{other}: is a link to nothing, which is not there"):
        _ = data.every
    (tmp_path / f"val.{other}").unlink()
    (tmp_path / "away").rename(tmp_path / f"val.{other}")
    for language in LANGUAGES:
        shutil.copy(files / f"val.{language}", tmp_path / f"dev.{language}")
    with pytest.raises(InputError, match=f"data.dir={tmp_path}: has val and dev: expected one of them"):
        _ = data.every


def test_every_so_manyth_pair_is_the_validation(files):
    """Lines 7, 14, ..., as the authors' scripts split; byte pairs are learned from the others."""
    config = config_of(files, validation_part="train/7")
    parts = experiment.load_sources(config, test=True)
    sides = [(files / f"train.{language}").read_text().splitlines() for language in LANGUAGES]
    held_out = range(6, 120, 7)
    assert sorted(parts["validation"].numbers) == list(held_out)
    assert parts["train"].numbers.tolist() == [i for i in range(120) if i not in held_out]
    assert len(parts["test"]) == 120
    source, target = experiment.data_set(config).sentences(parts["validation"], "validation")
    for number, *pair in zip(parts["validation"].numbers, source, target, strict=True):
        assert pair == [side[number] for side in sides]
    rest = [line for side in sides for i, line in enumerate(side) if i not in held_out]
    assert parts["train"].tokenizer.sha256 == tokenizer.train(rest, 60, "bpe", False, "nfkc").sha256
    whole = experiment.load_sources(config_of(files))
    assert whole["train"].tokenizer.sha256 != parts["train"].tokenizer.sha256


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"model.decoder_block.mixing": mixing("fourier", 2)}, "model.decoder_blocks: FourierWeights"),
        ({"model.decoder_block.cross": mixing("fourier", 2)}, "model.decoder_blocks: FourierWeights"),
        ({"model.decoder_block.cross": None}, "model.decoder_blocks: .*cross-attention"),
        ({"model": common.classifier()}, 'model.kind="Classifier": .*EncoderDecoder'),
        ({"data.buckets": (72, 24)}, r"data.buckets=\(72, 24\): .*ascending"),
        ({"data.vocabulary_size": 4}, "data.vocabulary_size=4"),
        ({"data.vocabulary_size": 9}, "data.vocabulary_size=9: .*at least"),
        ({"train.batch_size": 570}, "train.batch_size=570: .*data.buckets"),
        ({"task.label_smoothing": 1.0}, "task.label_smoothing=1.0"),
        ({"train.keep_checkpoints": 0}, "train.keep_checkpoints=0"),
        ({"data.source": "xx"}, "no train.xx or train.xx.gz there"),
        ({"optimizer.schedule.warmup_steps": 0}, "optimizer.schedule: InverseSqrt"),
        ({"data.normalization": "nfd"}, 'data.normalization="nfd": .*"nfkc"'),
        ({"data.source_vocabulary_size": 9}, "data.source_vocabulary_size=9: .*at least"),
        ({"data.batch_unit": "words"}, 'data.batch_unit="words": .*"places"'),
        (
            {"data.validation_part": "train/1"},
            'data.validation_part="train/1"',
        ),
        ({"data.validation_part": "val/9"}, 'data.validation_part="val/9"'),
        ({"data.validation_part": "train/121"}, 'data.validation_part="train/121": .*no pair'),
        ({"data.max_ratio": 0.5}, "data.max_ratio=0.5"),
        ({"model.encoder_block.mixing.energies.context": -1}, "context=-1"),
    ],
)
def test_wrong_fields(unchecked, files, tmp_path, fields, message):
    config = config_of(files)
    change(config, fields)
    with pytest.raises(InputError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
