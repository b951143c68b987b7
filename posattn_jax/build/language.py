"""From a config's fields to text, its tokenizer, and the tasks of language."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.build.model import build_model, table_shapes
from posattn_jax.data import corpus, glue, text_files, tokenizer
from posattn_jax.data.corpus import SentencePairs
from posattn_jax.data.glue import Sentences
from posattn_jax.models.bert import Bert, MaskedLanguageModel, SequenceClassifier
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import flatten
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.tasks.masking import Masking
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.train import pretrained

# Of the model's fields, those in which a run may differ from the one it starts from, in whatever part they are;
# for max_length see below.
MAY_DIFFER = ("max_length", "dropout_rate", "mlp_dropout_rate", "kernel_init", "implementation", "remat", "dtype")


def check_length(config: ConfigDict) -> int:
    """The length of a sequence; InputError where it has no room for two sentences, or images are meant."""
    length: Any = config.data.length
    if config.data.validation != "split":
        raise InputError(f'data.validation="{config.data.validation}": expected "split" with task="{config.task}"')
    if length < 5:
        raise InputError(f"data.length={length}: expected at least 5, for [CLS] first [SEP] second [SEP]")
    return length


def load_text(config: ConfigDict, test: bool, workdir: pathlib.Path | None = None) -> dict[str, SentencePairs]:
    """Pairs of lines: "train" and, from other files or drawn from the same, "validation"; there is no test part.

    A run that is evaluated keeps its tokenizer, whatever the text; one that is trained refuses a text that makes
    another.
    """
    data, length, cache = config.data, check_length(config), pathlib.Path(config.data.cache_dir)
    if data.vocabulary_size <= tokenizer.MASK + 1:
        raise InputError(f"data.vocabulary_size={data.vocabulary_size}: expected more than the special tokens")
    files = text_files.find(pathlib.Path(data.dir), "data.dir")
    if test and workdir is not None:
        subwords = tokenizer.of_run(workdir)
    else:
        subwords = tokenizer.of_text(files, data.vocabulary_size, cache)
        if workdir is not None:
            tokenizer.check(subwords, workdir)
    train = corpus.of_text(files, subwords, length, cache)
    if data.validation_dir:
        held_out = text_files.find(pathlib.Path(data.validation_dir), "data.validation_dir")
        validation = corpus.of_text(held_out, subwords, length, cache)
    else:
        train, validation = corpus.split(train, config.seed)
    if not len(train):
        raise InputError(f"data.dir={data.dir}: a single pair of lines, which cannot be split")
    if data.validation_limit:
        validation = validation.first(data.validation_limit)
    parts = {"train": train, "validation": validation}
    _tell_what_is_cut(config, parts, "pairs of lines")
    return parts


def _tell_what_is_cut(config: ConfigDict, parts: Mapping[str, SentencePairs | Sentences], what: str) -> None:
    for name, part in parts.items():
        if num_cut := part.num_cut:
            print(f"{name}: {num_cut:,} of {len(part):,} {what} are cut to data.length={config.data.length} tokens")


def make_masked_lm(
    config: ConfigDict, source: SentencePairs, trained_with: ConfigDict | None
) -> MaskedLanguageModelling:
    """Masked language modelling of a text."""
    size = source.tokenizer.vocabulary_size
    try:
        masking = Masking(size, len(tokenizer.SPECIALS), tokenizer.MASK, config.data.mask_share)
    except ValueError as error:
        raise InputError(f"data.mask_{error}") from error
    model = MaskedLanguageModel(make_bert(config, source))
    return MaskedLanguageModelling(
        model=model,
        length=source.length,
        masking=masking,
        pad_id=tokenizer.PAD,
        span_penalty=config.train.span_penalty,
    )


def make_bert(config: ConfigDict, source: SentencePairs | Sentences) -> Bert:
    """The encoder of a source's token ids."""
    sizes = {"vocabulary_size": source.tokenizer.vocabulary_size, "max_length": source.length}
    longest = config.model.get("max_length") or source.length
    return build_model(config, (Bert,), **sizes, **table_shapes((longest,)))


def pretrained_run(config: ConfigDict) -> pathlib.Path:
    """The folder of the run that a config starts from.

    Raises:
      InputError: none is given, it is no run, or the model of that run is another.
    """
    given, model = config.train.pretrained, config.model.to_dict()
    workdir = pathlib.Path(given.replace("{seed}", str(config.seed)))
    if not given:
        raise InputError("train.pretrained is empty: expected the folder of a run that this one starts from")
    try:
        saved = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
        own, its = flatten(json.loads(json.dumps(model))), flatten(saved["model"])
        positions = saved["model"].get("max_length") or saved["data"]["length"]
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise InputError(f"train.pretrained={given}: no run there ({workdir / 'config.json'})") from error
    differing = [name for name in sorted(own | its) if own.get(name) != its.get(name)]
    differing = [name for name in differing if name.split(".")[-1] not in MAY_DIFFER]
    if differing:
        listed = ", ".join(f"model.{name} is {its.get(name)!r} there and {own.get(name)!r} here" for name in differing)
        raise InputError(f"train.pretrained={given}: another model: {listed}")
    wanted = model["max_length"] or config.data.length
    if model["absolute_positions"] and wanted != positions:
        raise InputError(f"model.max_length={wanted}: train.pretrained={given} has {positions} absolute positions")
    return workdir


def start_from_pretrained(config: ConfigDict) -> Callable[[Any], Any]:
    """From fresh parameters to those of the run that the config starts from, as far as it has them."""
    workdir = pretrained_run(config)
    trained, step = pretrained.read(workdir)
    print(f"starts from {workdir}, step {step}")
    return functools.partial(pretrained.start_from, trained=trained, workdir=workdir)


def load_glue(config: ConfigDict, test: bool, workdir: pathlib.Path | None = None) -> dict[str, Sentences]:
    """A task of GLUE: "train", its development set as "validation" and, if asked for and there, "unlabelled".

    The tokenizer is that of the run, which it has from the one that it starts from.
    """
    data, length, folder = config.data, check_length(config), pathlib.Path(config.data.dir)
    glue.check_name(data.name)
    has_begun = workdir is not None and (workdir / tokenizer.HASH_FILE).exists()
    subwords = tokenizer.of_run(workdir if has_begun else pretrained_run(config))
    names: dict[str, glue.Part] = {"train": "train", "validation": "dev"}
    if test and glue.has_test(data.name, folder):
        names["unlabelled"] = "test"
    parts = {name: glue.load(data.name, folder, part, subwords, length, data.malformed) for name, part in names.items()}
    if data.validation_limit:
        parts["validation"] = parts["validation"].first(data.validation_limit)
    _tell_what_is_cut(config, parts, "examples")
    for name, part in parts.items():
        if part.num_skipped:
            print(f"{name}: {part.num_skipped:,} malformed lines are skipped, beside {len(part):,} examples")
    most = max(len(parts[name]) for name in ("train", "validation"))
    return {name: dataclasses.replace(part, num_ids=most) for name, part in parts.items()}


def make_glue(config: ConfigDict, source: Sentences, trained_with: ConfigDict | None) -> SentencePrediction:
    """What a task of GLUE asks for."""
    task = glue.check_name(config.data.name)
    encoder = make_bert(config, source)
    return SentencePrediction(
        model=SequenceClassifier(encoder, len(task.labels) or 1),
        length=source.length,
        num_examples=source.num_ids,
        metric=task.metric,
        pad_id=tokenizer.PAD,
        span_penalty=config.train.span_penalty,
    )
