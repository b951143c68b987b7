"""A run that starts from another and adds parts to its model: what is told of it, and what is refused."""

import pathlib

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from configs import glue, image_folder
from configs.lib import common, common_grafts
from configs.lib.common import ATTENTION, SPAN, TERMS
from posattn_jax import (
    Content,
    GaussianSpan,
    KernelEncoding,
    Positional,
    RelativeBias,
    RotaryContent,
    Translution,
)
from posattn_jax.config import experiment
from posattn_jax.config.parts import change, part
from posattn_jax.config.start import _same_labels, beginning
from posattn_jax.data.images import ImageSet
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.data.pipeline import user_data
from posattn_jax.run.train import train
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json
from posattn_jax.train import pretrained
from posattn_jax.use.imported import import_weights
from tests.support.made_own import CLASSES, write_images
from tests.support.made_runs import make_digits
from tests.support.made_text import write_rte
from tests.support.slow import slow

MADE = pathlib.Path(__file__).parents[1] / "convert" / "made"
pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
KERNEL = {"kernel_shape": (3,)}
COMPOSITE = {
    "content": part(Content),
    "fixed": part(RelativeBias, **KERNEL),
    "dynamic": part(Positional, encoding=part(KernelEncoding, embedding_init="zeros", **KERNEL)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An imported BERT and vision transformer, sentences for the one, and images for the other."""
    folder = tmp_path_factory.mktemp("files")
    for kind in ("bert", "vit"):
        import_weights(folder / kind, [str(MADE / kind)])
    write_images(folder / "images", 20)
    return write_rte(folder)


def of_bert(files, fields):
    config = glue.get_config(f"rte,tiny,from={files / 'bert'}")
    config.data.update(dir=str(files), length=12)
    config.cache_dir, config.train.batch_size = str(files / "cache"), 8
    return change(config, fields)


def of_vit(files, fields):
    config = image_folder.get_config(f"from={files / 'vit'}")
    config.data.update(dir=str(files / "images"), malformed="skip")
    config.cache_dir = str(files / "cache")
    config.train.update(total_steps=2, total_epochs=0.0, batch_size=8)
    config.optimizer.schedule.warmup_epochs = 0.0
    return change(config, fields)


def begin(config):
    """Fresh parameters, and those to begin with."""
    source = experiment.load_sources(config)["train"]
    task = experiment.make_task(config, source)
    start, fresh = beginning(config, task, source), jax.jit(task.init)(jax.random.key(0))
    assert start is not None
    return fresh, start(fresh)


@pytest.mark.slow
def test_composite_terms_in_the_place_of_absolute_positions(files, capsys):
    """Each parameter is told of, those of all layers together."""
    fresh, begun = begin(of_bert(files, {TERMS: COMPOSITE, "model.absolute_positions": False}))
    told = capsys.readouterr().out
    block = "encoder/blocks_*/attention"
    assert "1,496 of its 1,752 parameters" in told
    assert "left out: bias [40], encoder/position_embedding/embedding [16 8]" in told
    assert "drawn anew: head/bias [2], head/kernel [8 2]: 18" in told
    dynamic, fixed = f"{block}/terms_dynamic/encoding/table", f"{block}/terms_fixed/beta"
    assert f"added: {dynamic} [3 1 4], {fixed} [3 2]: 36" in told
    assert "logits of 8 examples differ by 0 " in told
    assert "without absolute_positions: with them the logits differ by 0.0" in told
    trained, _ = pretrained.read(files / "bert")
    np.testing.assert_array_equal(
        begun["encoder"]["token_embedding"]["embedding"], trained["encoder"]["token_embedding"]["embedding"]
    )
    np.testing.assert_array_equal(begun["head"]["kernel"], fresh["head"]["kernel"])


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {TERMS: {"content": part(RotaryContent)}},
            f"{TERMS}.content is Content .*RotaryContent",
        ),
        slow({SPAN: part(GaussianSpan)}, r"span/sigma begin as they are drawn"),
        slow({f"{ATTENTION}.num_heads": 1}, f"{ATTENTION}.num_heads is 2 .*1 here"),
        ({"task.pretrained": "FILE"}, "run folder; --mode=import"),
    ],
    ids=["rotary", "narrow span", "heads", "file"],
)
def test_what_changes_the_function_is_refused(files, fields, message):
    config = of_bert(files, {name: value for name, value in fields.items() if value != "FILE"})
    if "FILE" in fields.values():
        config.task.pretrained = str(files / "bert" / "config.json")
    with pytest.raises(InputError, match=message):
        begin(config)


@pytest.mark.slow
def test_translution_in_an_imported_vision_transformer(files, capsys):
    """Of pixels as it was trained on; with a head for other classes."""
    config = of_vit(files, {f"{ATTENTION}.values": part(Translution)})
    assert config.data.deviation == (0.5,) and config.model.patch_shape == (4, 4)
    _, begun = begin(config)
    told = capsys.readouterr().out
    assert f"drawn anew: head/bias [{len(CLASSES)}]" in told and "blocks_*/attention/values/class_matrices [3 8" in told
    assert begun["blocks_1"]["attention"]["values"]["matrices"].shape == (3, 5, 8, 2, 4)


@pytest.mark.slow
def test_a_head_of_the_same_labels_is_taken_over(tmp_path, capsys):
    start = make_digits(tmp_path / "digits")
    config = change(common.of_run(str(start)), {"task.pretrained": str(start)})
    _, begun = begin(config)
    trained, _ = pretrained.read(start)
    jax.tree.map(np.testing.assert_array_equal, begun, trained)
    assert "drawn anew" not in capsys.readouterr().out


@pytest.mark.parametrize("name", common_grafts.LABELS)
def test_treatments_of_the_sweep_add_what_begins_at_0(files, name):
    """Whether they leave the function the same is measured as each run begins."""
    plan = glue.sweep(f"from={files / 'bert'}")
    treatment = next(each for each in plan.treatments if each.name == f"mrpc_{name}")
    config = change(glue.get_config(f"mrpc,from={files / 'bert'}"), treatment.fields)
    task = experiment.task_of(
        config, {"num_outputs": 2, "num_examples": 1, "input_shape": (12,), "vocabulary_size": 40}
    )
    shapes = flatten_dict(jax.eval_shape(task.init, jax.random.key(0)), sep="/")
    first = {path.removeprefix("encoder/blocks_0/attention/") for path in shapes if "/blocks_0/attention/" in path}
    common = {"output/bias", "output/kernel", "projections/bias", "projections/kernel"}
    dynamic, beta = "terms_dynamic_convolution/encoding/table", "terms_fixed_convolution/beta"
    kernel = {f"values/convolution/convolution/{each}" for each in ("bias", "kernel")}
    added = {"composite": {dynamic, beta}, "dynamic": {dynamic}, "span": {"span/precision"}, "depthwise": kernel}
    assert first - common == added.get(name.removeprefix("bare_"), set())
    assert ("encoder/position_embedding/embedding" in shapes) != name.startswith("bare")
    assert config.train.total_epochs == 2 and config.data.length == 64


def test_a_sweep_of_some_tasks(files):
    plan = glue.sweep(f"rte,mrpc,from={files / 'bert'}")
    assert {each.name.split("_")[0] for each in plan.treatments} == {"rte", "mrpc"}
    assert len(plan.treatments) == 2 * len(common_grafts.LABELS)
    assert len(plan.hypotheses) == 3 * len(common_grafts.CLAIMS)  # of the mean of both tasks, and of each
    assert plan.hypotheses[0].names == ("mrpc_composite", "mrpc_unchanged", "rte_composite", "rte_unchanged")
    with pytest.raises(InputError, match='sweep of "wnli" .*cola, mrpc'):
        glue.sweep(f"wnli,from={files / 'bert'}")


@pytest.mark.slow
@pytest.mark.slow
def test_runs_with_added_parts(files, tmp_path):
    """Sentences, and images with two seeds at once."""
    train(of_bert(files, {TERMS: COMPOSITE}), tmp_path / "bert")
    wide = part(GaussianSpan, covariance="precision", initial_sigma=1e3)
    train(of_vit(files, {SPAN: wide}), tmp_path / "vit", seeds=(1, 2))
    for folder in ("bert", "vit/1", "vit/2"):
        assert read_json(tmp_path / folder / "summary.json")["final"]["step"] == 2


def test_names_in_another_unicode_form_are_the_same_labels(tmp_path):
    """So the head of a run of an earlier version, which saved names as they were in its data, is taken over."""
    config = ConfigDict({"data": part(ImageFolder)})
    user_data.save(tmp_path, {"classes": ["cafe\u0301", "tea"]})
    saved = experiment.Saved("task.pretrained", tmp_path, config.to_dict())
    for names, same in ((("caf\u00e9", "tea"), True), (("caf\u00e9", "Tea"), False)):
        images = ImageSet(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.int64), 2)
        assert _same_labels(config, saved, ImageFolder().lay_out(images, names)) is same
