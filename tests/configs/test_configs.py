"""Every config is traced at full size, and two steps of its :tiny variant run on made data."""

import copy
import functools
import importlib
import json
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from configs import bert, cifar2d_span, nmt, word_order
from configs.lib import common_bert, common_nmt
from configs.lib.common import ATTENTION, ENCODING, SPAN, TERMS
from configs.lib.common_mixers import mixing
from configs.lib.common_vit import VALUES
from configs.studies import question_pooling
from posattn_jax import (
    AxialEncoding,
    Content,
    ConvolutionalProjections,
    DepthwiseConvolution,
    FourierPositions,
    KernelEncoding,
    KeyPositional,
    LearnedEncoding,
    LearnedPositions,
    LinearBias,
    PlusDepthwise,
    PlusRelative,
    Positional,
    RelativeBias,
    RotaryContent,
    ScoreNetwork,
    SinusoidalEncoding,
    SinusoidalPositions,
    WindowSpan,
)
from posattn_jax.analysis.plan import PAPER_SEEDS
from posattn_jax.analysis.runs.run_folders import read_runs
from posattn_jax.config import experiment
from posattn_jax.config.experiment import build_model
from posattn_jax.config.parts import change, leaves, part
from posattn_jax.data.images import ImageSet
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.data.images.image_sets import LabelledImages
from posattn_jax.data.images.user_images import UserImages
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text.characters import ByteSequences, Characters
from posattn_jax.data.text.corpus import SentencePairs
from posattn_jax.data.text.glue import Glue
from posattn_jax.data.text.parallel import ParallelText
from posattn_jax.data.text.sentence_files import SentenceFiles
from posattn_jax.data.text.sequences import Sentences
from posattn_jax.data.text.tagged import Tagged, TaggedSequences
from posattn_jax.data.text.translations import Translations
from posattn_jax.data.text.words import Words, WordSequences
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.data.tokenizers.tokenizer import Tokenizer
from posattn_jax.models.seq2seq import EncoderDecoder
from posattn_jax.nn.energies import FourierWeights
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.reconstruction import EncodingOffsets
from posattn_jax.train.step import make_train_step
from tests.support import shipped
from tests.support.made_params import made_state
from tests.support.made_text import sentences
from tests.support.shipped import FILES, NAMES
from tests.support.slow import slow

# Tiny, as translution and translution_cifar10; and those that
# test_language.py, test_translation.py and test_word_order.py train.
ALIKE = ("translution:mnist", "translution:cifar100", "bert:small", "bert:base", "bert:tiny", "glue")
ALIKE += ("word_order",)
ALIKE += ("compare",)  # test_compare.py
ALIKE += ("image_folder", "arrays", "sentences")  # test_own_data.py
ALIKE += ("nmt:multi30k", "translation", "nmt:iwslt14", "nmt:wmt14_en_de", "nmt:wmt14_en_fr", "nmt:wmt18_en_zh")
# test_main.py trains the first.
NEARLY_ALIKE = ("digits", "cifar2d_span", "moving_clips", "cifar2d_short_span")
NEARLY_ALIKE += ("translution:moving_mnist", "translution:imagenet", "fashion_mnist")
RUN_ELSEWHERE = ("char_lm", "rotation", "tagging")  # in test_generate.py, test_rotation.py and test_tagging.py
RUN_ELSEWHERE += ("translution:cifar10", "translution:points")  # as translution
TRAINED = [name for name in NAMES if not name.startswith("studies")]  # whose models are those of others


def made_source(config):
    """Made images, or text, of the config's size; a task that reads neither has its own source."""
    data = experiment.data_set(config)
    if isinstance(data, EncodingOffsets):
        return experiment.load_sources(config)["train"]
    if isinstance(data, UserImages):
        shape = (data.height, data.width, data.channels) if isinstance(data, ImageFolder) else (4, 3, 6, 1)
        images = np.random.default_rng(0).integers(0, 256, (80, *shape)).astype(np.uint8)
        return data.lay_out(ImageSet(images, np.arange(80) % 2, 2), ("no", "yes"))
    if not isinstance(data, LabelledImages):
        return made_text(data)
    (*sides, channels), classes = data.shape, len(data.classes)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 16, (80, *sides, channels)).astype(np.uint8)
    return data.lay_out(ImageSet(images, rng.integers(0, classes, 80), classes, max_value=16))


class MadeTokenizer(Tokenizer):
    """Of a size, and no more."""

    vocabulary_size = 0

    def __init__(self, vocabulary_size):
        self.vocabulary_size = vocabulary_size
        self.begins_word = np.arange(vocabulary_size) >= 4


def made_text(data):
    """Pairs of lines, or of sentences, of random tokens, as many as images."""
    if isinstance(data, Characters):
        return ByteSequences(
            np.random.default_rng(0).integers(0, 256, 80 * data.length + 1).astype(np.uint8), data.length
        )
    # a task of GLUE has the tokenizer of another run
    vocabulary_size = (50 if data.length < 20 else 30_004) if isinstance(data, Glue) else data.vocabulary_size
    ids = np.random.default_rng(0).integers(4, vocabulary_size, 1600).astype(np.uint16)
    pairs = np.array([(line, 2) for line in range(0, 160, 2)])
    tokenizer = MadeTokenizer(vocabulary_size)
    if isinstance(data, Glue | SentenceFiles):
        labels = data.task.labels if isinstance(data, Glue) else ("no", "yes")
        targets = np.arange(80, dtype=np.int32 if labels else np.float32) % 2
        groups, examples = np.zeros(80, np.int32), list(zip(*ids.reshape(2, 80, 10).astype(np.int32), strict=True))
        told = {"num_ids": 80, "names": labels, "metric": data.task.metric if isinstance(data, Glue) else "accuracy"}
        return Sentences(examples, targets, groups, data.length, tokenizer, **told)
    if isinstance(data, Translations):
        starts = np.arange(0, 1601, 10)
        source = MadeTokenizer(data.source_vocabulary_size) if data.source_vocabulary_size else tokenizer
        return ParallelText(ids, starts, ids, starts, np.arange(160), data.buckets, tokenizer, source)
    if isinstance(data, Tagged):
        examples = [(each.astype(np.int32), np.arange(20, dtype=np.int32) % 3 - 1) for each in ids.reshape(80, 20)]
        return TaggedSequences(examples, ("no", "yes"), data.length, tokenizer)
    if isinstance(data, Words):
        return WordSequences(ids, np.arange(0, 1601, 10), np.arange(80), data.length, tokenizer)
    return SentencePairs(ids, np.arange(0, 1601, 10), pairs, data.length, tokenizer)


# Parameters of BERT-small beyond those without convolutions, a block: kernels of 17 by 4 heads, by 64 features, ...
KERNELS = {"none": 0, "fixed": 68, "dynamic": 1088, "composite": 1156, "composite_key": 2244, "depthwise": 4608}
KERNELS |= {"qk": 9216, "value": 4608, "qkv": 13824}
KERNELS |= {f"composite_{name}": 1156 + KERNELS[name] for name in ("depthwise", "qk", "value", "qkv")}
SMALL = {name: 13_414_324 + 12 * more for name, more in KERNELS.items()}
SMALL |= {"": 13_430_708, "absolute": 13_430_708, "convbert": 13_094_540}
BASE = {"": 108_821_044, "fixed": 108_725_188, "dynamic": 108_735_796, "composite": 108_738_244}
SIZES = [("bert:small", *each) for each in SMALL.items()] + [("bert:base", *each) for each in BASE.items()]
COUNTED = (("bert:small", "composite"), ("bert:base", ""))


@pytest.mark.parametrize("name, variant, expected", [each if each[:2] in COUNTED else slow(*each) for each in SIZES])
def test_parameters_of_bert(unchecked, name, variant, expected):
    """Chang 2021, Tables 1 to 3, 6 and 7; the paper prints 13.53 million for qk, and the others as they are here."""
    config = shipped.get_config(name, variant)
    config.model.scan_layers = True
    task = experiment.make_task(config, made_source(config))
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert sum(array.size for array in jax.tree.leaves(params)) == expected


SCHMIDT = [("nmt:wmt14_en_de", size, 27_200, {"base": 0.1, "big": 0.3}[size], 100) for size in ("base", "big")]
SCHMIDT += [("nmt:wmt14_en_fr", "base", 27_200, 0.1, 1333), ("nmt:wmt18_en_zh", "base", 27_200, 0.1, 1333)]
SCHMIDT += [("nmt:iwslt14", "small", 16_384, 0.3, 23)]


@pytest.mark.parametrize("name, size, tokens, rate, every", [*(slow(*each) for each in SCHMIDT[:-1]), SCHMIDT[-1]])
def test_recipes_of_schmidt(name, size, tokens, rate, every):
    """Those of the authors' YAML files and scripts: 16 x 1,700 and 8 x 2,048 target tokens, dropout, validation, K.

    The rate is that of weights in every place, of FourierNet's sums instead of its weights, and of positions.
    """
    for mixer in common_nmt.MIXERS:
        config = shipped.get_config(name, f"{mixer},{size}")
        train = config.train
        assert (train.batch_size * train.accumulation_steps, config.data.batch_unit) == (tokens, "target_tokens")
        assert config.data.validation_part == f"train/{every}"
        contexts = {8 if mixer.startswith("shaw") and size == "big" else 16}
        assert set(leaves(config.model, "context")) <= contexts
        model = build_model(config, (EncoderDecoder,), vocabulary_size=60, length_ratio=1.0)
        for block in (*model.encoder_blocks, *model.decoder_blocks):
            for each in filter(None, (block.mixing, block.cross)):
                fourier = isinstance(each.energies, FourierWeights)
                assert (each.sum_dropout_rate, each.dropout_rate) == ((rate, 0) if fourier else (0, rate))
        assert {model.encoder_positions.dropout_rate, model.decoder_positions.dropout_rate} == {rate}


@pytest.mark.parametrize("table, size", [*((table, "base") for table in common_nmt.COMPARED), ("", "big")])
def test_the_tables_of_schmidt_are_sweeps(table, size):
    """As many treatments as the table has rows, and each treatment's fields make the config of its mixer."""
    variant = f"wmt14_en_de,{table},{size}"
    config, plan = nmt.get_config(variant), nmt.sweep(variant)
    assert len(plan.treatments) == {"": 9, "placements": 8, "features": 5, "gates": 10}[table]
    assert plan.seeds == PAPER_SEEDS[:1] and plan.hypotheses
    assert set(plan.baselines) == {"transformer", "shaw"} & {each.name for each in plan.treatments}
    for treatment in plan.treatments:
        changed = change(copy.deepcopy(config), treatment.fields)
        assert changed.model.to_dict() == nmt.get_config(f"wmt14_en_de,{treatment.name},{size}").model.to_dict()
    with pytest.raises(ValueError, match='"wmt14_en_de,table4": .*features, gates'):
        nmt.get_config("wmt14_en_de,table4")


def test_the_recipe_of_the_runs_on_multi30k():
    """Of the committed runs the config says again what they were made with."""
    run = read_runs(pathlib.Path("docs/results/multi30k")).runs["transformer"][0]
    config = nmt.get_config("multi30k,transformer").to_dict()
    made, now = flatten_dict(run.config, sep="."), flatten_dict(config, sep=".")
    later = set(now) - set(made)  # fields that came later
    assert now["data.batch_unit"] == "places"
    differing = {name for name in set(now) - later if json.loads(json.dumps(now[name])) != made.get(name)}
    assert differing <= {"seed"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [slow(name) if name in (*ALIKE, *NEARLY_ALIKE) else name for name in TRAINED])
def test_traces_at_full_size(unchecked, name):
    config = shipped.get_config(name)
    if config.model.kind == "EncoderDecoder":  # one layer is traced for all
        config.model.update(num_encoder_blocks=1, num_decoder_blocks=1)
    elif config.model.kind != "Siren":
        config.model.scan_layers = True
    source = made_source(config)
    task = experiment.make_task(config, source)
    batch = jax.tree.map(jnp.asarray, source.batch(np.arange(2)))
    loss, _ = jax.eval_shape(lambda rng: task.loss(task.init(rng), batch, rng), jax.random.key(0))
    assert loss.shape == ()
    json.dumps(config.to_dict())


@pytest.mark.parametrize(
    "name", [slow(name) if name in (*NEARLY_ALIKE, *RUN_ELSEWHERE) else name for name in TRAINED if name not in ALIKE]
)
def test_two_steps_of_the_tiny_variant(name):
    config = shipped.get_config(name, "tiny")
    source = made_source(config)
    task, optimizer, _, settings = experiment.prepare(config, source)
    assert settings.total_steps == 2
    state = made_state(task, optimizer)
    train_step = jax.jit(make_train_step(task, optimizer, settings.accumulation_steps))
    shape = 2, settings.accumulation_steps, settings.batch_size
    for ids in np.arange(math.prod(shape)).reshape(shape):
        parts = [source.batch(part) for part in ids]
        batch = {name: jnp.stack([part[name] for part in parts]) for name in parts[0]}
        state, figures = train_step(state, batch)
        assert np.isfinite(figures["loss"]) and figures["gradient_norm/all"] > 0
    assert state.step == 2


@pytest.mark.parametrize("name, evaluations", [("bert:small", 25), ("bert:base", 200)])
@pytest.mark.parametrize("variant", ["", "composite", "convbert"])
def test_bert_is_evaluated_every_5000_updates(name, evaluations, variant):
    """Of 31 million pairs the small model's training ends before an epoch does."""
    config = shipped.get_config(name, variant)
    assert config.train.eval_steps * evaluations == config.train.total_steps
    assert config.data.validation_limit == 10_000
    if name == "bert:small":
        assert config.train.total_steps < 0.95 * 31e6 / config.train.batch_size
    tiny = shipped.get_config(name, "tiny").train
    assert (tiny.total_steps, tiny.eval_steps) == (2, 0)


@pytest.mark.parametrize("folder, name, variant", [("bert_tiny", "bert:tiny", ""), ("compare_text", "compare", "text")])
def test_committed_runs_of_bert_are_trained_as_their_configs_say(folder, name, variant):
    config = shipped.get_config(name, variant)
    for run in read_runs(pathlib.Path("docs/results", folder)).all:
        # Fields that came later; none of these models has a span, and no micro-batches of theirs can be merged.
        later = {"span_learning_rate": 0.0, "terms_learning_rate": 0.0, "clips_spans": True}
        for group, own in (("train", {"merged_batches": "auto"}), ("optimizer", later)):
            assert config[group].to_dict() == own | run.config[group]


SWEPT = [name for name in NAMES if hasattr(shipped.find(name)[0], "sweep")]
SWEPT = [name for name in SWEPT if name not in ("translution:points", "translution:imagenet")]  # which have none
SWEPT.remove("sentences")  # its sweep needs a run: test_imported.py
SWEPT_ALIKE = [
    name
    for name in SWEPT
    if name.startswith(("char", "cifar", "compare", "nmt:", "studies", "reconstruction", "translution:", "bert:"))
]


@pytest.mark.parametrize("name", [slow(name) if name in SWEPT_ALIKE else name for name in SWEPT])
def test_every_treatment_of_a_sweep_is_another_model_grid_or_optimizer(unchecked, name):
    """Its fields are the config's, and no two treatments train the same; of those with an axis the first.

    Of bert_small too, whose others are counted above.
    """
    plan, made = shipped.sweep(name, "tiny"), []
    for treatment in plan.treatments[: 5 if plan.axis or name == "bert:small" else None]:
        config = shipped.get_config(name, "tiny").lock()
        change(config, treatment.fields)
        task = experiment.make_task(config, made_source(config))  # which traces it
        made.append((repr(config.data), repr(config.optimizer), repr(task)))
    assert len(set(made)) == len(made) > 1
    assert plan.hypotheses
    for field in plan.evaluate:
        assert field in flatten_dict(shipped.get_config(name).to_dict(), sep=".")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, variant", [("char_lm", "tiny,forms"), ("cifar2d_short_span", "tiny,forms"), ("digits", "short_span")]
)
def test_every_form_of_a_span_is_another_model_or_training(unchecked, name, variant):
    plan, made = shipped.sweep(name, variant), set()
    for treatment in plan.treatments:
        config = change(shipped.get_config(name, variant).lock(), treatment.fields)
        made.add((repr(config.optimizer), repr(experiment.make_task(config, made_source(config)))))
    assert len(made) == len(plan.treatments) > 3


@pytest.mark.slow
def test_every_mixer_of_word_order_is_another_model(unchecked):
    plan = word_order.sweep("mixers")
    assert {each.name for each in plan.treatments} <= {"absolute", *word_order.MIXERS}
    made = set()
    for name in word_order.MIXERS:
        config = change(word_order.get_config("tiny").lock(), word_order.fields(name))
        source = made_source(config)
        task = experiment.make_task(config, source)
        batch = jax.tree.map(jnp.asarray, source.batch(np.arange(2)))
        loss, _ = jax.eval_shape(lambda rng: task.loss(task.init(rng), batch, rng), jax.random.key(0))  # noqa: B023
        assert loss.shape == ()
        made.add(repr(task))
    assert len(made) == len(word_order.MIXERS)


@pytest.mark.parametrize("name", FILES)
def test_head_says_command_hardware_time_and_score(name):
    head = importlib.import_module(f"configs.{name}").__doc__
    assert f"python -m posattn_jax.main --config=configs/{name.replace('.', '/')}.py" in head
    for word in ("Hardware and time:", "xpected"):
        assert word in head
    for each in filter(None, shipped.FAMILIES.get(name, ())):
        assert f"\n- {each}: " in head and "xpected" in head.partition(f"\n- {each}: ")[2].partition("\n- ")[0]


PAGES = [pathlib.Path("README.md"), *sorted(pathlib.Path("docs").glob("*.md"))]
TEXTS = [f"configs.{name}" for name in FILES] + [str(page) for page in PAGES]


def training_commands(text):
    """The commands that train or sweep a config of ours, each in one line. "..." stands for the rest of another one."""
    for line in text.replace("\\\n", " ").splitlines():
        trains = "--mode=" not in line or "--mode=sweep" in line
        if "posattn_jax.main" in line and "--config=configs/" in line and trains and "..." not in line:
            yield line.strip()


@functools.cache
def needs_files(name, words, folder):
    """Whether the data of a config cannot be read in an empty folder."""
    config = importlib.import_module(f"configs.{name}").get_config(",".join(words))
    if "dir" not in config.data:  # made, not read
        return False
    data = experiment.data_set(change(config, {"data.dir": str(folder / "empty")}))
    try:
        data.load(Reading(1, folder / "cache", pretrained=folder if isinstance(data, Glue) else None))
    except InputError:
        return True
    return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("folder")
    (made / "empty").mkdir()
    tokenizer.save(tokenizer.train(sentences(0, 300), 50), made)
    return made


@pytest.mark.parametrize("text", TEXTS)
def test_commands_say_where_the_data_are_if_these_are_files(folder, text):
    if text.startswith("configs."):
        lines = list(training_commands(importlib.import_module(text).__doc__))
        assert lines
    else:
        blocks = re.findall(r"```bash\n(.*?)```", pathlib.Path(text).read_text(), re.DOTALL)
        lines = [line for block in blocks for line in training_commands(block)]
    for line in lines:
        name, variant = re.search(r"--config=configs/([\w/]+)\.py:?(\S*)", line).groups()
        words = tuple(word for word in variant.split(",") if word and not word.startswith("from="))
        says = "--config.data.dir=" in line or "--config.data.download=True" in line
        assert says == needs_files(name.replace("/", "."), words, folder), line


def traced(config):
    source = made_source(config)
    task = experiment.make_task(config, source)
    batch = jax.tree.map(jnp.asarray, source.batch(np.arange(2)))
    return str(jax.make_jaxpr(lambda rng: task.loss(task.init(rng), batch, rng))(jax.random.key(0)))


@functools.cache
def traced_plain():
    return traced(cifar2d_span.get_config("tiny"))


KERNEL = {"kernel_shape": (3, 3)}
CONTENT = {"content": part(Content)}
FIXED, DYNAMIC = part(RelativeBias, **KERNEL), part(Positional, encoding=part(KernelEncoding, **KERNEL))
SINUSOIDAL = part(SinusoidalEncoding)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {ENCODING: part(LearnedEncoding)},
        {TERMS: CONTENT},
        {f"{ENCODING}.hidden_features": 3},
        {f"{ENCODING}.bias_init": "ckconv", f"{ENCODING}.learn_omega": True},
        {f"{SPAN}.per_head": True, f"{SPAN}.mode": "log_add", "task.span_penalty": 0.1},
        {f"{SPAN}.covariance": "full"},
        {f"{TERMS}.positional_bias": None, f"{TERMS}.content_bias": None},
        {TERMS: CONTENT | {"fixed": FIXED, "dynamic": DYNAMIC}},
        {TERMS: {"dynamic": part(Positional, encoding=part(KernelEncoding, share_heads=False, **KERNEL))}},
        {TERMS: CONTENT | {"key": part(KeyPositional, encoding=part(KernelEncoding, outside="drop", **KERNEL))}},
        {f"{ATTENTION}.projections": part(ConvolutionalProjections, convolved=("query", "value"), **KERNEL)},
        {TERMS: {"rotary": part(RotaryContent)}},
        {TERMS: CONTENT | {"linear": part(LinearBias)}},
        {TERMS: CONTENT | {"linear": part(LinearBias), "fixed": FIXED}},
        {TERMS: {"network": part(ScoreNetwork)}},
        {ENCODING: part(AxialEncoding)},
        {ENCODING: part(AxialEncoding, combine="sum")},
        {f"{TERMS}.content_bias": None, f"{TERMS}.positional_bias": DYNAMIC},
        {ENCODING: part(SinusoidalEncoding, use_bias=False)},
        {SPAN: part(WindowSpan, half_span=(1, 1))},
        {"model.positions": part(LearnedPositions)},
        {"model.positions": part(FourierPositions)},
        {ATTENTION: mixing("lightconv", 2)},
        {VALUES: part(PlusRelative, encoding=part(KernelEncoding, **KERNEL))},
        {VALUES: part(PlusDepthwise, convolution=part(DepthwiseConvolution, **KERNEL))},
        {"model.block.norm": "pre", "model.pooling": "mean", "model.remat": True, "model.scan_layers": True},
        {"model.dtype": "bfloat16", f"{ATTENTION}.dropout_rate": 0.1},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_options_are_read(fields):
    """Each option of a config changes what is traced."""
    assert traced(change(cifar2d_span.get_config("tiny"), fields)) != traced_plain()


@pytest.mark.slow
@pytest.mark.parametrize(
    "base, fields",
    [
        ({TERMS: {"rotary": part(RotaryContent)}}, {f"{TERMS}.rotary.base": 100.0}),
        ({"model.positions": part(FourierPositions)}, {"model.positions.num_features": 4}),
        ({"model.positions": part(FourierPositions)}, {"model.positions.hidden_features": 3}),
        ({"model.positions": part(FourierPositions)}, {"model.positions.gamma": 2.0}),
        ({"model.positions": part(LearnedPositions)}, {"model.positions": part(SinusoidalPositions)}),
        ({ENCODING: SINUSOIDAL}, {f"{ENCODING}.use_bias": False}),
        ({ENCODING: SINUSOIDAL}, {f"{ENCODING}.combine": "sum"}),
        ({ATTENTION: mixing("lightconv", 2)}, {ATTENTION: mixing("aposnet", 2)}),
        ({ATTENTION: mixing("lightconv", 2)}, {f"{ATTENTION}.energies.context": 2}),
    ],
    ids=lambda fields: ",".join(fields),
)
def test_options_of_options_are_read(base, fields):
    """Each changes what is traced next to those that it belongs to."""
    first, second = (change(cifar2d_span.get_config("tiny"), given) for given in (base, base | fields))
    assert traced(first) != traced(second)


def test_the_tables_of_chang_are_a_sweep():
    """A row has a claim of the paper, the five of Table 1 have all seeds, and runs are ten times as long."""
    plan, config = bert.sweep("tiny,tables"), bert.get_config("tiny,tables")
    assert {each.name: each.num_seeds for each in plan.treatments} == {
        name: None if name in common_bert.FIVE else 3 for name in common_bert.CONVOLUTIONS
    }
    assert len(plan.seeds) == 5 and config.train.total_steps == 10 * bert.get_config("tiny").train.total_steps
    claimed = {name for each in plan.hypotheses for name in (each.treatment, each.control)}
    assert {each.name for each in plan.treatments} - claimed == {"convbert"}
    assert bert.sweep("tiny").hypotheses == plan.hypotheses[:6]  # those of the committed runs


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_a_class_token_by_depth(name):
    plan, config = question_pooling.sweep(f"quick,deep,{name}"), question_pooling.get_config(f"quick,deep,{name}")
    assert config.data.name == name and config.train.total_epochs == 10
    assert [each.fields["model.num_blocks"] for each in plan.treatments[::2]] == [1, 2, 3, 4, 5, 6]
    assert {each.fields["model.pooling"] for each in plan.treatments} == {"class"}
    assert all(each.fields["model.absolute_positions"] for each in plan.treatments)
    assert len(plan.hypotheses) == 6 and len(plan.seeds) == 5


@pytest.mark.parametrize("table", [table for table in common_nmt.COMPARED if table != "features"])
def test_long_translation_has_five_seeds(table):
    plan, config = nmt.sweep(f"multi30k,long,{table}"), nmt.get_config(f"multi30k,long,{table}")
    assert len(plan.seeds) == 5 and {each.num_seeds for each in plan.treatments} == {None} and plan.hypotheses
    assert config.train.total_epochs == 4 * nmt.get_config(f"multi30k,{table}").train.total_epochs
    assert nmt.get_config("multi30k,long,tiny").train.total_steps == 2
