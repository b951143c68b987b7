"""Every field of every config is one of its part's class, and the run reads it."""

import dataclasses
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

import posattn_jax
from configs import arrays, bert, digits, glue, image_folder, nmt, reconstruction, tagging, translution, word_order
from configs import sentences as own_sentences_config
from posattn_jax.config import experiment
from posattn_jax.config.names import class_of
from posattn_jax.data.pipeline.batches import order_of
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.run.train import train
from posattn_jax.tasks.task import FROM_DATA
from tests.configs.test_configs import made_source
from tests.support import made_data, shipped
from tests.support.made_own import labelled, write_images, write_table, write_volumes
from tests.support.made_text import LANGUAGES, sentences, write_columns, write_parallel, write_rte, write_text
from tests.support.shipped import NAMES
from tests.support.slow import slow

# What another field of the same part leaves nothing to say.
OFF = {
    ("Adam", "clips_spans"): lambda part: not part.clip_norm,
    ("Bert", "max_length"): lambda part: not part.absolute_positions,
    ("LinearProjections", "bias_init"): lambda part: not part.use_bias,
    ("VisionTransformer", "embedding_init"): lambda part: not part.absolute_positions and part.pooling != "class",
}
OFF |= dict.fromkeys(
    [
        ("PositionalSelfAttention", name)
        for name in ("kernel_init", "bias_init", "use_bias", "precision", "dot_general", "param_dtype")
    ],
    lambda part: not part.use_output,
)
PACKAGE = str(pathlib.Path(posattn_jax.__file__).parent)


def parts_of(config, path):
    """(path, part) of a part and of all parts within it."""
    if "kind" in config:
        yield path, config
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from parts_of(value, f"{path}.{name}")


@pytest.mark.parametrize("name", NAMES)
def test_every_part_has_the_fields_of_its_class_and_no_others(name):
    config = shipped.get_config(name, "tiny")
    assert set(config) == {"seed", "cache_dir", "data", "task", "model", "train", "optimizer", "mesh"}
    for group in ("data", "task", "model", "train", "optimizer", "mesh"):
        for path, part in parts_of(config[group], group):
            fields = {
                field.name for field in dataclasses.fields(class_of(part.kind, "kind")) if field.metadata != FROM_DATA
            }
            fields -= {"parent", "name"} - set(part)  # Flax's own
            for several in [field for field in fields if field.endswith("blocks") and field not in part]:
                fields = fields - {several} | {several.removesuffix("s"), f"num_{several}"}
            assert set(part) - {"kind"} == fields, path


@pytest.fixture
def reads(monkeypatch):
    """What the package's code reads of objects of the classes that a config names, but to check it: (class, field)."""
    found, watched = set(), set()

    def watch(config):
        for _, part in parts_of(config, ""):
            cls = class_of(part.kind, "kind")
            if cls in watched:
                continue
            watched.add(cls)
            fields = frozenset(field.name for field in dataclasses.fields(cls))

            def spy(self, name, original=cls.__getattribute__, fields=fields):
                if name in fields and (type(self).__name__, name) not in found:
                    code = sys._getframe(1).f_code
                    checks = code.co_name == "__post_init__" or code.co_filename.endswith("nn/checks.py")
                    if code.co_filename.startswith(PACKAGE) and not checks:
                        found.add((type(self).__name__, name))
                return original(self, name)

            monkeypatch.setattr(cls, "__getattribute__", spy)
        return found

    return watch


def unread(config, found):
    """The leaves of a part, and of those within it, that are not among what was read."""
    leaves = set()
    for path, part in parts_of(config, ""):
        cls = class_of(part.kind, "kind").__name__
        for name in set(part) - {"kind"}:
            asked = f"{name}s" if name.endswith("block") else name
            asked = name.removeprefix("num_") if name.endswith("blocks") else asked
            is_off = OFF.get((cls, name), lambda _: False)(part)
            if (cls, asked) not in found and not is_off:
                leaves.add(f"{path}.{name}")
    return leaves


# Whose tiny variants have the parts of another's.
SAME_PARTS = ("nmt:iwslt14", "nmt:wmt14_en_de", "nmt:wmt14_en_fr", "nmt:wmt18_en_zh", "bert:small", "bert:base")
SAME_PARTS += ("translution:mnist", "translution:cifar10", "translution:cifar100", "translution:moving_mnist")
SAME_PARTS += tuple(f"studies.question_{name}" for name in ("cross", "grid", "siren", "span", "translution"))
SAME_PARTS += ("studies.question_grafts", "studies.question_pooling", "fashion_mnist", "arrays", "cifar2d_short_span")
SAME_PARTS += ("cifar2d_span", "compare", "digits", "image_folder", "moving_clips", "sentences", "translution")


@pytest.mark.parametrize("name", [slow(name) if name in SAME_PARTS else name for name in NAMES])
def test_the_task_reads_every_leaf_of_model_task_and_optimizer(unchecked, reads, name):
    config = shipped.get_config(name, "tiny")
    for group in ("model", "task", "optimizer"):
        found = reads(config[group])
    source = made_source(config)
    task = experiment.prepare(config, source).task
    batch = jax.tree.map(jnp.asarray, source.batch(np.arange(2)))

    def trace(rng):
        params = task.init(rng)
        return task.at(jnp.array(1)).loss(params, batch, rng), task.describe(params)

    jax.eval_shape(trace, jax.random.key(0))
    # read by what comes before and after: see build/test_start.py and run/test_translation.py
    starting = ("Classification", "Rotation", "SentencePrediction", "WordOrder", "Tagging", "MaskedLanguageModelling")
    found |= {(task, "pretrained") for task in starting}
    found |= {("Translation", "decoding")}
    found |= {("Decoding", each) for each in ("beam_size", "batch_size", "extra_length")}
    assert not {leaf for group in ("model", "task", "optimizer") for leaf in unread(config[group], found)}


@pytest.mark.slow
def test_training_reads_every_leaf_of_train_and_mesh(reads, tmp_path):
    config = digits.get_config("tiny")
    config.cache_dir = str(tmp_path / "cache")
    found = reads(config.train) | reads(config.mesh)
    found = reads(config.data)
    train(config, tmp_path / "run")
    assert not unread(config.train, found) | unread(config.mesh, found)


def moving(folder):
    made_data.write_mnist(folder)
    return translution.get_config("moving_mnist,tiny")


def points(folder):
    made_data.write_mnist(folder)
    return translution.get_config("points,tiny")


def text(folder):
    write_text(folder)
    return bert.get_config("tiny,test")


def words(folder):
    write_text(folder)
    return word_order.get_config("tiny")


def rte(folder):
    write_rte(folder)
    config = glue.get_config("tiny")
    config.data.name = "rte"
    return config


def parallel(folder):
    write_parallel(folder)
    config = nmt.get_config("multi30k,tiny")
    config.data.update(source=LANGUAGES[0], target=LANGUAGES[1], test_part="test")
    return config


def siren(_):
    return reconstruction.get_config("tiny")


def own_images(folder):
    write_images(folder, 20)
    config = image_folder.get_config("tiny")
    config.data.malformed = "skip"
    return config


def own_arrays(folder):
    write_volumes(folder / "train.npz")
    config = arrays.get_config("tiny")
    config.data.malformed = "skip"
    return config


def own_sentences(folder):
    write_table(folder / "train.tsv", ("sentence", "label"), labelled(200))
    return own_sentences_config.get_config("tiny")


def made_up(_):
    return tagging.get_config("tiny")


def tagged(folder):
    write_columns(folder / "train.txt", 200)
    return tagging.get_config("tiny,files")


@pytest.mark.parametrize(
    "make",
    [moving, points, text, words, rte, parallel, own_images, own_arrays, own_sentences, siren, made_up, tagged],
)
def test_reading_reads_every_leaf_of_data(reads, tmp_path, make):
    config = make(tmp_path)
    if "dir" in config.data:
        config.data.dir = str(tmp_path)
    found = reads(config.data)
    kept = tmp_path / "pretrained"
    tokenizer.save(tokenizer.train(sentences(0, 300), 50), kept)
    data = experiment.data_set(config)
    start = None if "vocabulary_size" in config.data else kept
    sources = data.load(Reading(1, tmp_path / "cache", evaluates=True, pretrained=start))
    data.files()
    train_part, settings = sources["train"], config.train
    order_of(train_part, settings.batch_size, settings.accumulation_steps, 1)
    train_part.batch(np.arange(2))
    assert not unread(config.data, found)
