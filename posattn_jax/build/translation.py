"""From a config's fields to parallel text, and to the task of translating it."""

import dataclasses
import itertools
import pathlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from posattn_jax.build.model import build_model, check_kind
from posattn_jax.data import parallel, text_files, tfds_translation, tokenizer
from posattn_jax.data.buckets import check_buckets
from posattn_jax.data.parallel import ParallelText
from posattn_jax.data.tokenizer import Tokenizer
from posattn_jax.models.seq2seq import EncoderDecoder
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.translation import Translation


def load_parallel(config: ConfigDict, test: bool, workdir: pathlib.Path | None = None) -> dict[str, ParallelText]:
    """Pairs of sentences: "train", within the limit of length, "validation" and, if asked for, "test".

    A run that is evaluated keeps its tokenizers, whatever the text; one that is trained refuses a text that makes
    others.
    """
    check_kind(config, (EncoderDecoder,))
    data: Any = config.data
    buckets, prepared, every = tuple(data.buckets), _prepared(config), data.validation_every
    check_buckets(buckets)
    if every < 0 or every == 1:
        raise InputError(f"data.validation_every={every}: expected 0, or at least 2")
    subwords = _tokenizers(config, workdir, test)
    parts = {}
    for name in ("train", "validation", *(("test",) if test else ())):
        arguments = subwords, buckets, pathlib.Path(data.cache_dir), data.malformed
        part = _part(config, name)
        if prepared is None:
            parts[name] = parallel.of_text(
                *(_file(config, part, each) for each in (data.source, data.target)), *arguments
            )
        else:
            parts[name] = parallel.of_prepared(prepared, part, data.source, data.target, *arguments)
        if parts[name].num_skipped:
            print(f"{name}: {parts[name].num_skipped:,} lines are left out, one side of them is empty")
        if every and name != "test":
            held_out = (parts[name].numbers + 1) % every == 0
            parts[name] = parts[name].select(np.flatnonzero(held_out == (name == "validation")))
            if not len(parts[name]):
                raise InputError(f"data.validation_every={every}: it leaves no pair for {name}")
    if parts["train"].num_too_long:
        left_out = f"{parts['train'].num_too_long:,} of {len(parts['train']):,}"
        print(f"train: {left_out} pairs are left out, longer than {buckets[-1]} tokens")
    parts["train"] = dataclasses.replace(parts["train"].within_limit(), batch_unit=config.train.batch_unit)
    if not len(parts["train"]):
        raise InputError(f"data.buckets={buckets}: no pair of the train part is as short as {buckets[-1]} tokens")
    for name in set(parts) - {"train"}:
        if parts[name].num_too_long:
            print(f"{name}: {parts[name].num_too_long:,} pairs are longer than {buckets[-1]} tokens, and kept")
    if workdir is not None and (workdir / parallel.RATIO_FILE).exists():
        parts["train"] = dataclasses.replace(parts["train"], known_ratio=parallel.ratio_of_run(workdir))
    _check_tables(config, parts)
    if data.validation_limit:
        parts["validation"] = parts["validation"].first(data.validation_limit)
    parts["validation"] = parts["validation"].by_length()
    if not test:
        _tell_padding(config, parts["train"])
    return parts


def max_length(config: ConfigDict) -> int:
    """The places that the tables of positions have."""
    model: Any = config.model
    return min(model.encoder_positions.max_length, model.decoder_positions.max_length)


def _check_tables(config: ConfigDict, parts: dict[str, ParallelText]) -> None:
    """Leaves out of the validation what a mixer with a weight for every pair of places has no place for.

    Raises:
      InputError: such pairs in another part.
    """
    model: Any = config.model
    mixings = [model[f"{stack}_block"][mixing] for stack in ("encoder", "decoder") for mixing in ("mixing", "cross")]
    sizes = [each.energies.key_shape[0] for each in mixings if each is not None and "key_shape" in each.energies]
    if not sizes:
        return
    most = min(sizes)
    for name, part in parts.items():
        fitting = np.flatnonzero(part.lengths <= most)
        if len(fitting) == len(part):
            continue
        too_long = f"{len(part) - len(fitting):,} pairs of {name} are longer than the {most} places of a PairTable"
        if name != "validation":
            raise InputError(f"energies.key_shape=({most},): {too_long}")
        print(f"{too_long}, and left out")
        parts[name] = part.select(fitting)


def _tell_padding(config: ConfigDict, train: ParallelText) -> None:
    order = train.order(config.train.batch_size, config.train.accumulation_steps, config.seed)
    padding = order.padding_share(train.source_lengths, train.target_lengths)
    tokens = f"{order.examples_per_step:,.0f} target tokens each"
    print(f"train: {len(train):,} pairs, {order.steps_per_epoch:,} updates an epoch, {tokens}, {padding:.1%} padding")


def sentences(config: ConfigDict, source: ParallelText, name: str) -> tuple[list[str], list[str]]:
    """The text of the examples of "validation" or "test", and their translations.

    They are as in the files, in lower case where the model reads and writes that.
    """
    data: Any = config.data
    prepared, part = _prepared(config), _part(config, name)
    sides = []
    for language in (data.source, data.target):
        if prepared is None:
            lines = list(text_files.lines([_file(config, part, language)]))
        else:
            lines = list(tfds_translation.lines(prepared, part, language))
        side = [lines[number] for number in source.numbers]
        sides.append([line.lower() for line in side] if data.fold_case else side)
    return sides[0], sides[1]


def _part(config: ConfigDict, name: str) -> Any:
    """Where the examples of "train", "validation" or "test" are."""
    data: Any = config.data
    return data["train_part" if name == "validation" and data.validation_every else f"{name}_part"]


def _prepared(config: ConfigDict) -> pathlib.Path | None:
    """The set that tensorflow-datasets has prepared, where one is asked for; None: there are files."""
    name, folder = config.data.name, pathlib.Path(config.data.dir)
    if not name.startswith("tfds/"):
        return None
    found = tfds_translation.find(name.removeprefix("tfds/"), folder)
    if found is None:
        raise InputError(f"data.name={name}: tensorflow-datasets has prepared no such set in data.dir={folder}")
    return found


def _file(config: ConfigDict, part: str, language: str) -> pathlib.Path:
    return parallel.find(pathlib.Path(config.data.dir), part, language, "data.dir")


def _tokenizers(config: ConfigDict, workdir: pathlib.Path | None, test: bool) -> tuple[Tokenizer, Tokenizer]:
    """Of the source and of the target; the same where the vocabulary is joint."""
    data: Any = config.data
    if test and workdir is not None:
        return parallel.tokenizers_of_run(workdir, joint=not data.source_vocabulary_size)
    groups = {(data.source, data.target): ("vocabulary_size", data.vocabulary_size)}
    if data.source_vocabulary_size:
        own = ("source_vocabulary_size", data.source_vocabulary_size)
        groups = {(data.source,): own, (data.target,): ("vocabulary_size", data.vocabulary_size)}
    for name, size in groups.values():
        if size <= tokenizer.MASK + 1:
            raise InputError(f"data.{name}={size}: expected more than the special tokens")
    found = [_tokenizer(config, languages, f"data.{name}", size) for languages, (name, size) in groups.items()]
    if workdir is not None:
        parallel.check_tokenizers(found[0], found[-1], workdir)
    return found[0], found[-1]


def _tokenizer(config: ConfigDict, languages: tuple[str, ...], field: str, size: int) -> Tokenizer:
    """Byte pairs of what is trained on, in some languages together."""
    data, prepared, cache = config.data, _prepared(config), pathlib.Path(config.data.cache_dir)
    options = {"kind": "bpe", "fold_case": data.fold_case, "normalization": data.normalization, "field": field}
    if prepared is None:
        part, files = "", [_file(config, data.train_part, language) for language in languages]
        sides = [text_files.lines([file]) for file in files]
    else:
        part, files = "/".join((data.train_part, *languages)), tfds_translation.files(prepared)
        sides = [tfds_translation.lines(prepared, data.train_part, language) for language in languages]
    if every := data.validation_every:
        part += f"/{every}"
        sides = [(line for number, line in enumerate(side, 1) if number % every) for side in sides]
    return tokenizer.of_lines(itertools.chain.from_iterable(sides), files, size, cache, part=part, **options)


def make_translation(config: ConfigDict, source: ParallelText, trained_with: ConfigDict | None) -> Translation:
    """Translation of a source's sentences."""
    train: Any = config.train
    if not 0 <= train.label_smoothing < 1:
        raise InputError(f"train.label_smoothing={train.label_smoothing}: expected at least 0 and less than 1")
    return translation(config, source.source_tokenizer, source.tokenizer, source.length_ratio)


def translation(config: ConfigDict, source: Tokenizer, target: Tokenizer, length_ratio: float) -> Translation:
    """The task, of tokenizers and a ratio of lengths that a run has measured."""
    return Translation(
        model=build_model(
            config,
            (EncoderDecoder,),
            vocabulary_size=target.vocabulary_size,
            source_vocabulary_size=source.vocabulary_size if config.data.source_vocabulary_size else None,
            length_ratio=length_ratio,
        ),
        begin_id=tokenizer.BEGIN,
        end_id=tokenizer.END,
        pad_id=tokenizer.PAD,
        batch_tokens=config.train.batch_size,
        label_smoothing=config.train.label_smoothing,
        length=min(config.data.buckets[-1], 32),
    )
