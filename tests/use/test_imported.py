"""Weights of others as a run: fine-tuned, asked, explained, and written again."""

import io
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from configs import glue, image_folder, sentences, word_order
from configs.lib import common_grafts
from posattn_jax import Bert, Content, KernelEncoding, Positional, RelativeBias, bert_block, convert
from posattn_jax.config import experiment
from posattn_jax.config.parts import change
from posattn_jax.nn.terms import renamed
from posattn_jax.run.train import train
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.train import pretrained
from posattn_jax.use import explain, predict, trained
from posattn_jax.use.export_weights import export_weights
from posattn_jax.use.imported import import_weights
from tests.support import made_own, shipped
from tests.support.command import run_forked
from tests.support.made_params import made_params
from tests.support.made_runs import make_masked_lm
from tests.support.made_text import write_rte, write_text

safetensors = pytest.importorskip("safetensors.numpy")  # of the extra "convert", and of "test"
MADE = pathlib.Path(__file__).parents[1] / "convert" / "made"
PAIRS = (MADE / "bert" / "pairs.tsv").read_bytes().splitlines()
CLOSE = {"rtol": 0, "atol": 1e-5}


def imported(folder, kind, num_heads=None):
    import_weights(folder, [str(MADE / kind)], num_heads)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return imported(tmp_path_factory.mktemp("runs") / "bert", "bert")


@pytest.mark.slow
def test_a_masked_language_model(bert):
    """As transformers tells it, through the run's own tokenizer."""
    run = trained.of_run(bert, (MaskedLanguageModelling,))
    batch = run.examples([tuple(line.decode().split("\t")) for line in PAIRS]).batch(np.arange(3))
    batch = {name: jnp.asarray(array) for name, array in batch.items()}
    logits, _ = jax.jit(run.task.apply)(run.params, batch)
    with np.load(MADE / "bert" / "outputs.npz") as expected:
        kept = np.asarray(batch["tokens"] != run.task.pad_id)[:, :14]
        np.testing.assert_allclose(logits[:, :14][kept], expected["logits"][kept], **CLOSE)
    assert run.step == 0 and run.source.length == 16


@pytest.mark.slow
def test_fine_tuned_with_its_tokenizer_and_written_again(bert, tmp_path, capsys):
    """From its encoder and pooler."""
    config = glue.get_config(f"rte,tiny,from={bert}")
    config.data.update(dir=str(write_rte(tmp_path)), length=12)
    config.cache_dir, config.train.batch_size = str(tmp_path / "cache"), 8
    config.optimizer.learning_rate = 1e-9  # as good as none: what was taken is told from what was drawn
    train(config, tmp_path / "rte")
    assert f"starts from {bert}, step 0" in capsys.readouterr().out
    (before, _), (after, _) = pretrained.read(bert), pretrained.read(tmp_path / "rte")
    for name in ("encoder", "pooler"):
        jax.tree.map(lambda *arrays: np.testing.assert_allclose(*arrays, atol=1e-6), before[name], after[name])
    kept = [(folder / "tokenizer.json").read_bytes() for folder in (MADE / "bert", tmp_path / "rte")]
    assert kept[0] == kept[1]
    folder = export_weights(tmp_path / "rte", "hugging_face")
    _, params = convert.bert(folder)
    jax.tree.map(np.testing.assert_array_equal, params, after)
    about = json.loads((folder / "config.json").read_text())
    assert about["architectures"] == ["BertForSequenceClassification"] and about["pad_token_id"] == 0
    assert about["id2label"] == {"0": "entailment", "1": "not_entailment"}
    assert (folder / "tokenizer.json").read_bytes() == kept[0]


@pytest.mark.slow
def test_another_model_than_the_run_has(bert, tmp_path):
    config = glue.get_config(f"rte,tiny,from={bert}")
    config.data.dir, config.model.block.mlp_dim = str(write_rte(tmp_path)), 13
    with pytest.raises(InputError, match="model.block.mlp_dim is 12 .* 13 "):
        train(config, tmp_path / "rte")
    with pytest.raises(InputError, match="from=nowhere: no run there"):
        glue.get_config("rte,from=nowhere")
    config = glue.get_config(f"rte,from={bert}")
    assert config.optimizer.learning_rate == 5e-5 and config.task.pretrained == str(bert)


@pytest.mark.slow
def test_word_order_with_a_part_added(bert, tmp_path, capsys):
    """The tokenizer is that of the start, also when the run goes on after its start has gone."""
    start = shutil.copytree(bert, tmp_path / "bert")
    config = word_order.get_config(f"from={start}")
    change(config, word_order.sweep(f"from={start}").treatment("order_composite").fields)
    config.data.update(dir=str(write_text(tmp_path / "text")), validation_limit=8, length=14)
    config.train.update(batch_size=8, total_steps=2, eval_batch_size=8)
    config.cache_dir = str(tmp_path / "cache")
    train(config, tmp_path / "order")
    out = capsys.readouterr().out
    assert f"starts from {start}, step 0" in out and "the same function: logits of 8 examples" in out
    kept = (start / "tokenizer.json").read_bytes()
    shutil.rmtree(start)
    sources = experiment.load_sources(config, workdir=tmp_path / "order")
    assert [sources[part].tokenizer.model for part in ("train", "validation")] == [kept, kept]
    with pytest.raises(InputError, match="bert: no run there"):
        experiment.load_sources(config, workdir=tmp_path / "another")


@pytest.mark.slow
def test_masked_language_modelling_goes_on(bert, tmp_path, capsys):
    """On other text, with a part added, with all parameters and the tokenizer of the start."""
    config = shipped.get_config("bert:tiny", f"from={bert}")
    assert config.data.length == 16 and len(shipped.sweep("bert:tiny", f"from={bert}").treatments) == 7
    change(config, common_grafts.fields("composite"))
    config.data.update(dir=str(write_text(tmp_path / "text")), validation_limit=8, length=14)
    config.train.update(batch_size=8, total_steps=2, eval_steps=2, eval_batch_size=8)
    config.cache_dir = str(tmp_path / "cache")
    train(config, tmp_path / "run")
    out = capsys.readouterr().out
    assert f"starts from {bert}, step 0" in out and "the same function: logits of 8 examples" in out
    assert "drawn anew" not in out and "left out: pooler/" in out
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (bert / "tokenizer.json").read_bytes()


@pytest.mark.slow
def test_own_sentences(bert, tmp_path, capsys):
    """With the model and the tokenizer of the start; a head of another width is one line."""
    path = made_own.write_table(tmp_path / "a.tsv", ("sentence", "label"), made_own.labelled(40))
    config = sentences.get_config(f"from={bert}")
    assert config.data.length == 16 and sentences.get_config(f"pairs,from={bert}").data.sentences[1] == "sentence2"
    config.data.dir, config.cache_dir = str(path), str(tmp_path / "cache")
    config.train.update(batch_size=8, total_epochs=0.0, total_steps=1, eval_batch_size=8)
    config.optimizer.schedule.warmup_epochs = 0.0
    train(config, tmp_path / "run")
    out = capsys.readouterr().out
    assert f"starts from {bert}, step 0" in out and "drawn anew: head/bias [2], head/kernel [8 2]" in out
    assert answers(tmp_path / "run", lines=[b"The cat sees a dog."], top=1)[0]["name"] in ("false", "true")
    plan = sentences.sweep(f"from={bert}")
    assert len(plan.treatments) == 7 and {each.fields["task.pretrained"] for each in plan.treatments} == {str(bert)}
    with pytest.raises(InputError, match='sweep of "pairs": expected from=RUN'):
        sentences.sweep("pairs")
    with pytest.raises(InputError, match="from=: no run there"):
        sentences.get_config("from=")
    config.model.width, config.model.embedding_dim = 12, 8
    with pytest.raises(InputError, match=r"model.width is 8 .* 12 "):
        train(config, tmp_path / "another")


def test_a_composite_bert(bert, tmp_path):
    """Of the code of Chang 2021, with a tokenizer next to it. The order of the terms is that of their parameters."""
    terms = Content(), RelativeBias((3,)), Positional(KernelEncoding((3,)))
    model = Bert(40, 8, (bert_block(2, 12, terms=terms),), max_length=16, absolute_positions=False)
    params = made_params(lambda: model.init(jax.random.key(0), jnp.zeros((1, 5), int))["params"])
    convert.save_composite_bert(tmp_path / "theirs", model, {"encoder": params})
    shutil.copy(MADE / "bert" / "vocab.txt", tmp_path / "theirs")
    import_weights(tmp_path / "run", [str(tmp_path / "theirs")])
    run = trained.of_run(tmp_path / "run", (MaskedLanguageModelling,))
    found = run.task.model.encoder.blocks[0].attention.terms.values()
    assert [type(term).__name__ for term in found] == ["Content", "RelativeBias", "Positional"]
    jax.tree.map(np.testing.assert_array_equal, run.params["encoder"], renamed(params, run.params["encoder"]))
    assert explain.explain(tmp_path / "run", (), PAIRS[:1], (), ()) == 0


def test_an_encoder_alone_is_explained(tmp_path):
    """No head is needed, and none is made up: it is written again as it was."""
    encoder, params = convert.bert(MADE / "bert")
    alone = {name: params[name] for name in ("encoder", "pooler")}
    convert.save_bert(tmp_path / "bare", encoder, alone)
    shutil.copy(MADE / "bert" / "vocab.txt", tmp_path / "bare")
    import_weights(tmp_path / "run", [str(tmp_path / "bare" / "model.safetensors")])
    assert explain.explain(tmp_path / "run", (), PAIRS, (), ()) == 0
    page = (tmp_path / "run" / "attention.html").read_text()
    assert '"[CLS]"' in page and '"##s"' in page
    path = export_weights(tmp_path / "run", "hugging_face") / "model.safetensors"
    assert path.read_bytes() == (tmp_path / "bare" / "model.safetensors").read_bytes()


def answers(workdir, inputs=(), lines=(), top=3):
    output = io.StringIO()
    assert predict.predict(workdir, inputs, lines, output, top) == 0
    return [json.loads(line) for line in output.getvalue().splitlines()]


def as_told(answer, names):
    return [next(each["probability"] for each in answer["top"] if each["name"] == name) for name in names]


@pytest.mark.slow
def test_a_classifier_of_sentences_is_asked(tmp_path):
    """Imported by the command, as one of pairs."""
    options = "--mode=import", f"--workdir={tmp_path / 'run'}", "--num_sentences=2"
    code, out, err = run_forked(*options, str(MADE / "classifier"), config=None)
    assert code == 0 and "imported 1,651 parameters of" in out, err
    told = answers(tmp_path / "run", lines=PAIRS)
    with np.load(MADE / "classifier" / "outputs.npz") as expected:
        probabilities = jax.nn.softmax(expected["logits"])
    np.testing.assert_allclose([as_told(each, ("bad", "so-so", "good")) for each in told], probabilities, atol=1e-5)


def test_a_vision_transformer_is_asked(tmp_path):
    """With pixels scaled as the file next to it says."""
    shutil.copytree(MADE / "vit", tmp_path / "vit")
    scale = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 1.0]}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(scale))
    import_weights(tmp_path / "run", [str(tmp_path / "vit")])
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    Image.fromarray(image).save(tmp_path / "image.png")
    (told,) = answers(tmp_path / "run", [str(tmp_path / "image.png")])
    model, params = convert.vit(MADE / "vit")
    pixels = (image.reshape(1, 96, 3) / 255 - scale["image_mean"]) / scale["image_std"]
    logits = jax.jit(lambda pixels: model.apply({"params": params}, pixels, (8, 12)))(jnp.asarray(pixels, jnp.float32))
    names = [f"LABEL_{i}" for i in range(3)]
    np.testing.assert_allclose(as_told(told, names), jax.nn.softmax(logits)[0], atol=1e-5)
    path = export_weights(tmp_path / "run", "hugging_face") / "model.safetensors"
    theirs, ours = (safetensors.load_file(each) for each in (MADE / "vit" / "model.safetensors", path))
    jax.tree.map(np.testing.assert_array_equal, theirs, ours)
    with pytest.raises(InputError, match=r"timm has no .*layer_norm_epsilon=1e-12"):
        export_weights(tmp_path / "run", "timm")


def test_sides_that_timm_says(tmp_path):
    shutil.copytree(MADE / "timm", tmp_path / "timm")
    with pytest.raises(InputError, match=r"6 positions, .*8 x 8 pixels"):
        import_weights(tmp_path / "run", [str(tmp_path / "timm")], 2)
    about = {"pretrained_cfg": {"input_size": [3, 8, 12], "mean": [0.5] * 3, "std": [0.2] * 3}}
    about |= {"label_names": {"0": "a", "1": "b", "2": "c"}, "architectures": None}
    (tmp_path / "timm" / "config.json").write_text(json.dumps(about))
    import_weights(tmp_path / "run", [str(tmp_path / "timm")], 2)
    run = trained.of_run(tmp_path / "run")
    assert run.names == ("a", "b", "c") and run.source.grid_shape == (8, 12) and run.source.deviation == (0.2,) * 3


def without(folder, *names):
    """A ViT without some tensors."""
    shutil.copytree(MADE / "vit", folder)
    tensors = safetensors.load_file(folder / "model.safetensors")
    safetensors.save_file({n: each for n, each in tensors.items() if n not in names}, folder / "model.safetensors")
    return folder


@pytest.mark.slow
def test_a_vision_transformer_without_a_head(tmp_path, capsys):
    """`ViTModel`: fine-tuned, explained and written again, but not asked."""
    theirs = without(tmp_path / "vit", "classifier.weight", "classifier.bias")
    import_weights(tmp_path / "run", [str(theirs)])
    images = made_own.write_images(tmp_path / "images", 10)
    config = image_folder.get_config(f"from={tmp_path / 'run'}")
    config.data.update(dir=str(images), malformed="skip")
    config.train.update(total_epochs=0.0, total_steps=1, batch_size=8)
    config.optimizer.schedule.warmup_epochs = 0.0
    config.cache_dir = str(tmp_path / "cache")
    train(config, tmp_path / "tuned")
    out = capsys.readouterr().out
    assert f"starts from {tmp_path / 'run'}, step 0" in out and "drawn anew: head/bias [2], head/kernel [8 2]" in out
    image = str(images / "across" / "000.png")
    assert answers(tmp_path / "tuned", [image], top=1)[0]["name"] in made_own.CLASSES
    with pytest.raises(InputError, match="run: its model has no head"):
        answers(tmp_path / "run", [image])
    assert explain.explain(tmp_path / "run", [image], (), (), ()) == 0
    path = export_weights(tmp_path / "run", "hugging_face") / "model.safetensors"
    tensors = safetensors.load_file(theirs / "model.safetensors")
    assert path.with_name("preprocessor_config.json").exists()
    for name, tensor in safetensors.load_file(path).items():
        np.testing.assert_array_equal(tensor, tensors[f"vit.{name}"])


OTHER_LABELS = [
    ("classifier", {"problem_type": "multi_label_classification"}, 'expected "single_label_classification" with this'),
    ("classifier", {"problem_type": "regression"}, 'problem_type="regression": expected "single_label_classification"'),
    ("vit", {"problem_type": "multi_label_classification"}, 'expected "single_label_classification" with this head'),
    ("classifier", {"architectures": ["BertForMultipleChoice"]}, "multiple choice is not supported"),
    ("vit", {"id2label": "abc"}, "id2label='abc' in its config, but 3 in its tensors"),
]


def test_what_is_no_import(bert, tmp_path):
    def refused(message, *inputs, workdir=tmp_path / "run", **options):
        with pytest.raises(InputError, match=message):
            import_weights(workdir, [str(each) for each in inputs], **options)

    refused("expected one file or folder of weights, and there are 0")
    refused("expected one file or folder of weights, and there are 2", MADE / "bert", MADE / "vit")
    refused("is in use: expected a new folder", MADE / "bert", workdir=bert)
    refused("--num_heads=2: expected none for a BERT, whose config.json contains it", MADE / "bert", num_heads=2)
    refused("no vision transformer", MADE / "t5")
    refused("--num_sentences=1: expected none, as .* has no head for sentences", MADE / "vit", num_sentences=1)
    shutil.copytree(MADE / "bert", tmp_path / "bert")
    (tmp_path / "bert" / "tokenizer.json").unlink()
    with (tmp_path / "bert" / "vocab.txt").open("a") as file:
        file.write("one\ntwo\nthree\n")
    refused("its tokenizer has 41 tokens, and the model 40", tmp_path / "bert")
    for number, (kind, told, message) in enumerate(OTHER_LABELS):
        folder = shutil.copytree(MADE / kind, tmp_path / str(number))
        about = json.loads((folder / "config.json").read_text()) | told
        (folder / "config.json").write_text(json.dumps(about))
        refused(message, folder)
    assert not (tmp_path / "run").exists(), "nothing is left behind"


@pytest.mark.slow
def test_what_is_no_export(bert, digits_run, tmp_path):
    with pytest.raises(InputError, match="--format=timm: .*hugging_face"):
        export_weights(bert, "timm")
    with pytest.raises(InputError, match="expected a BERT, or a vision transformer"):
        export_weights(digits_run, "hugging_face")
    with pytest.raises(InputError, match=r"BERT .*; model.embedding_dim=6, but None"):
        export_weights(make_masked_lm(tmp_path / "run"), "hugging_face")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--mode=import"], "weights, and there are 0"),
        (["--mode=import", "--format=timm", "x"], "--format is for --mode=export"),
        (["--mode=export", "--format=safetensors"], "--format=safetensors: "),
    ],
)
def test_a_wrong_command_is_one_line(tmp_path, arguments, message):
    code, out, err = run_forked(f"--workdir={tmp_path / 'run'}", *arguments, config=None)
    assert (code, out) == (2, "") and message in err and len(err.strip().splitlines()) == 1, err
