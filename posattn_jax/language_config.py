"""From a config's fields to text, its tokenizer, and the tasks of language."""

import dataclasses
import json
import pathlib
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.data import corpus, glue, text_files, tokenizer
from posattn_jax.data.corpus import SentencePairs
from posattn_jax.data.glue import Sentences
from posattn_jax.errors import InputError
from posattn_jax.files import flatten
from posattn_jax.model_config import make_bert
from posattn_jax.models.bert import MaskedLanguageModel, SequenceClassifier
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.tasks.masking import Masking
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.train import pretrained

# Of the model's fields, those in which a run may differ from the one it starts from.
MAY_DIFFER = (
    "pretrained",
    "max_length",  # see below
    "dropout_rate",
    "attention_dropout_rate",
    "mlp_dropout_rate",
    "linear_init",
    "projection_init",
    "implementation",
    "remat",
    "dtype",
    "span.bounded",
    "span.penalty",
)


def check_length(config: ConfigDict) -> int:
    """The length of a sequence; InputError where it has no room for two sentences."""
    length: Any = config.data.length
    if length < 5:
        raise InputError(f"data.length={length}: expected at least 5, for [CLS] first [SEP] second [SEP]")
    return length


def load_text(config: ConfigDict, test: bool) -> dict[str, SentencePairs]:
    """Pairs of lines: "train" and, from other files or drawn from the same, "validation"; there is no test part."""
    data, length, cache = config.data, check_length(config), pathlib.Path(config.data.cache_dir)
    if data.vocabulary_size <= tokenizer.MASK + 1:
        raise InputError(f"data.vocabulary_size={data.vocabulary_size}: expected more than the special tokens")
    files = text_files.find(pathlib.Path(data.dir), "data.dir")
    subwords = tokenizer.of_text(files, data.vocabulary_size, cache)
    train = corpus.of_text(files, subwords, length, cache)
    if data.validation_dir:
        held_out = text_files.find(pathlib.Path(data.validation_dir), "data.validation_dir")
        validation = corpus.of_text(held_out, subwords, length, cache)
    else:
        train, validation = corpus.split(train, config.seed)
    parts = {"train": train, "validation": validation}
    for name, pairs in parts.items():
        if pairs.num_cut:
            print(f"{name}: {pairs.num_cut:,} of {len(pairs):,} pairs of lines are cut to data.length={length} tokens")
    return parts


def make_masked_lm(
    config: ConfigDict, source: SentencePairs, trained_with: ConfigDict | None
) -> MaskedLanguageModelling:
    """Masked language modelling of a text."""
    size = source.tokenizer.vocabulary_size
    try:
        masking = Masking(size, len(tokenizer.SPECIALS), tokenizer.MASK, config.data.mask_share)
    except ValueError as error:
        raise InputError(f"data.mask_{error}") from error
    model = MaskedLanguageModel(make_bert(config, size, source.length))
    return MaskedLanguageModelling(model, source.length, masking, tokenizer.PAD)


def pretrained_run(config: ConfigDict) -> pathlib.Path:
    """The folder of the run that a config starts from.

    Raises:
      InputError: none is given, it is no run, or the model of that run is another.
    """
    given, model = config.model.pretrained, config.model.to_dict()
    workdir = pathlib.Path(given.replace("{seed}", str(config.seed)))
    if not given:
        raise InputError("model.pretrained is empty: expected the folder of a run that this one starts from")
    try:
        saved = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
        own, its = flatten(json.loads(json.dumps(model))), flatten(saved["model"])
        positions = saved["model"].get("max_length") or saved["data"]["length"]
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise InputError(f"model.pretrained={given}: no run there ({workdir / 'config.json'})") from error
    differing = [name for name in sorted(own | its) if own.get(name) != its.get(name) and name not in MAY_DIFFER]
    if differing:
        listed = ", ".join(f"model.{name} is {its.get(name)!r} there and {own.get(name)!r} here" for name in differing)
        raise InputError(f"model.pretrained={given}: another model: {listed}")
    wanted = model["max_length"] or config.data.length
    if model["absolute_positions"] and wanted != positions:
        raise InputError(f"model.max_length={wanted}: model.pretrained={given} has {positions} absolute positions")
    return workdir


def start_from_pretrained(config: ConfigDict, params: Any) -> Any:
    """Fresh parameters, with those of the run that the config starts from in their place as far as it has them."""
    workdir = pretrained_run(config)
    trained, step = pretrained.read(workdir)
    print(f"starts from {workdir}, step {step}")
    return pretrained.start_from(params, trained, workdir)


def load_glue(config: ConfigDict, test: bool) -> dict[str, Sentences]:
    """A task of GLUE: "train", its development set as "validation" and, if asked for, "unlabelled", its test set."""
    data: Any = config.data
    glue.check_name(data.name)
    subwords, length = tokenizer.of_run(pretrained_run(config)), check_length(config)
    names: dict[str, glue.Part] = {"train": "train", "validation": "dev"}
    if test:
        names["unlabelled"] = "test"
    parts = {}
    for name, part in names.items():
        parts[name] = glue.load(data.name, pathlib.Path(data.dir), part, subwords, length, data.malformed)
        total = f"of {len(parts[name]):,} examples"
        if parts[name].num_cut:
            print(f"{name}: {parts[name].num_cut:,} {total} are cut to data.length={length} tokens")
        if parts[name].num_skipped:
            print(f"{name}: {parts[name].num_skipped:,} malformed lines are skipped, beside {total[3:]}")
    most = max(len(parts[name]) for name in ("train", "validation"))
    return {name: dataclasses.replace(part, num_ids=most) for name, part in parts.items()}


def make_glue(config: ConfigDict, source: Sentences, trained_with: ConfigDict | None) -> SentencePrediction:
    """What a task of GLUE asks for."""
    task = glue.check_name(config.data.name)
    encoder = make_bert(config, source.tokenizer.vocabulary_size, source.length)
    return SentencePrediction(
        SequenceClassifier(encoder, len(task.labels) or 1), source.length, source.num_ids, task.metric, tokenizer.PAD
    )
