"""From a config's fields to parallel text, and to the task of translating it."""

import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from posattn_jax.data import parallel, text_files, tfds_translation, tokenizer
from posattn_jax.data.buckets import check_buckets
from posattn_jax.data.parallel import ParallelText
from posattn_jax.data.tokenizer import Tokenizer
from posattn_jax.errors import InputError
from posattn_jax.layer_config import check_sizes, choose, dtype
from posattn_jax.models.seq2seq import EncoderDecoder, StackPositions
from posattn_jax.nn.blocks import SequenceBlock
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, Glu, NormalizedGelu
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.tasks.translation import Translation

# What a stack knows of positions where a mixer is in it, as in the paper; the first that one of its mixers asks for.
POSITIONS = {"learned": ("rposnet",), "none": ("shaw", "relative")}
GATED = ("aposnet", "rposnet", "glinear", "lightconv_gelu", "lightconv_global")
NEIGHBOURS = {"encoder": (-1, 0, 1), "decoder": (-1, 0), "cross": (-1, 0, 1)}  # of GaussianNet's heads


def load_parallel(config: ConfigDict, test: bool, workdir: pathlib.Path | None = None) -> dict[str, ParallelText]:
    """Pairs of sentences: "train", within the limit of length, "validation" and, if asked for, "test".

    A run that is evaluated keeps its tokenizers, whatever the text; one that is trained refuses a text that makes
    others.
    """
    data: Any = config.data
    buckets, prepared = tuple(data.buckets), _prepared(config)
    check_buckets(buckets)
    subwords = _tokenizers(config, workdir, test)
    parts = {}
    for name in ("train", "validation", *(("test",) if test else ())):
        arguments = subwords, buckets, pathlib.Path(data.cache_dir), data.malformed
        part: Any = data[f"{name}_part"]
        if prepared is None:
            parts[name] = parallel.of_text(
                *(_file(config, part, each) for each in (data.source, data.target)), *arguments
            )
        else:
            parts[name] = parallel.of_prepared(prepared, part, data.source, data.target, *arguments)
        if parts[name].num_skipped:
            print(f"{name}: {parts[name].num_skipped:,} lines are left out, one side of them is empty")
    if parts["train"].num_too_long:
        left_out = f"{parts['train'].num_too_long:,} of {len(parts['train']):,}"
        print(f"train: {left_out} pairs are left out, longer than {buckets[-1]} tokens")
    parts["train"] = parts["train"].within_limit()
    if not len(parts["train"]):
        raise InputError(f"data.buckets={buckets}: no pair of the train part is as short as {buckets[-1]} tokens")
    for name in set(parts) - {"train"}:
        if parts[name].num_too_long:
            print(f"{name}: {parts[name].num_too_long:,} pairs are longer than {buckets[-1]} tokens, and kept")
    if data.validation_limit:
        parts["validation"] = parts["validation"].first(data.validation_limit)
    parts["validation"] = parts["validation"].by_length()
    return parts


def sentences(config: ConfigDict, source: ParallelText, name: str) -> tuple[list[str], list[str]]:
    """The text of the examples of "validation" or "test", and their translations, as they are in the files."""
    data: Any = config.data
    prepared, part = _prepared(config), data[f"{name}_part"]
    sides = []
    for language in (data.source, data.target):
        if prepared is None:
            lines = list(text_files.lines([_file(config, part, language)]))
        else:
            lines = list(tfds_translation.lines(prepared, part, language))
        sides.append([lines[number] for number in source.numbers])
    return sides[0], sides[1]


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
        return parallel.tokenizers_of_run(workdir)
    groups = {(data.source, data.target): ("vocabulary_size", data.vocabulary_size)}
    if data.source_vocabulary_size:
        own = ("source_vocabulary_size", data.source_vocabulary_size)
        groups = {(data.source,): own, (data.target,): ("vocabulary_size", data.vocabulary_size)}
    for name, size in groups.values():
        if size <= tokenizer.MASK + 1:
            raise InputError(f"data.{name}={size}: expected more than the special tokens")
    found = [_tokenizer(config, languages, size) for languages, (_, size) in groups.items()]
    if workdir is not None:
        parallel.check_tokenizers(found[0], found[-1], workdir)
    return found[0], found[-1]


def _tokenizer(config: ConfigDict, languages: tuple[str, ...], size: int) -> Tokenizer:
    """Byte pairs of the train part in some languages together."""
    data, prepared, cache = config.data, _prepared(config), pathlib.Path(config.data.cache_dir)
    if prepared is None:
        files = [_file(config, data.train_part, language) for language in languages]
        return tokenizer.of_text(files, size, cache, "bpe", data.fold_case)
    lines = itertools.chain.from_iterable(
        tfds_translation.lines(prepared, data.train_part, language) for language in languages
    )
    part = "/".join((data.train_part, *languages))
    return tokenizer.of_lines(lines, tfds_translation.files(prepared), size, cache, "bpe", data.fold_case, part)


def make_translation(config: ConfigDict, source: ParallelText, trained_with: ConfigDict | None) -> Translation:
    """Translation of a source's sentences."""
    train: Any = config.train
    if not 0 <= train.label_smoothing < 1:
        raise InputError(f"train.label_smoothing={train.label_smoothing}: expected at least 0 and less than 1")
    return translation(config, source.source_tokenizer, source.tokenizer, source.length_ratio)


def translation(config: ConfigDict, source: Tokenizer, target: Tokenizer, length_ratio: float) -> Translation:
    """The task, of tokenizers and a ratio of lengths that a run has measured."""
    return Translation(
        model=make_seq2seq(
            config,
            target.vocabulary_size,
            source.vocabulary_size if config.data.source_vocabulary_size else None,
            length_ratio,
        ),
        begin_id=tokenizer.BEGIN,
        end_id=tokenizer.END,
        pad_id=tokenizer.PAD,
        batch_tokens=config.train.batch_size,
        label_smoothing=config.train.label_smoothing,
        length=min(config.data.buckets[-1], 32),
    )


def max_length(config: ConfigDict) -> int:
    """The places that tables of positions have."""
    return config.model.max_length or config.data.buckets[-1]


def make_seq2seq(
    config: ConfigDict, vocabulary_size: int, source_vocabulary_size: int | None, length_ratio: float
) -> EncoderDecoder:
    """The encoder-decoder.

    Raises:
      InputError: another kind of model, or sizes that do not fit together.
    """
    model: Any = config.model
    if model.kind != "seq2seq":
        raise InputError(f'model.kind="{model.kind}": expected "seq2seq" with task="{config.task}"')
    for name in ("remat", "scan_layers"):
        if model[name]:
            raise InputError(f'model.{name}=True: expected False with model.kind="seq2seq"')
    for name in ("dropout_rate", "attention_dropout_rate", "mlp_dropout_rate"):
        if not 0 <= model[name] < 1 and (name, model[name]) != ("mlp_dropout_rate", -1):
            raise InputError(f"model.{name}={model[name]}: expected at least 0 and less than 1")
    check_sizes(config, "num_blocks", "width", "num_heads", "mlp_dim")
    if not model.head_dim and model.width % model.num_heads:
        raise InputError(f"model.num_heads={model.num_heads} does not divide model.width={model.width}")
    own: dict[str, Any] = {"dtype": dtype(config, "dtype"), "param_dtype": dtype(config, "param_dtype")}
    mixers = {place: _names(config, place) for place in ("encoder", "decoder", "cross")}
    blocks = {}
    for stack in ("encoder", "decoder"):
        blocks[stack] = tuple(
            SequenceBlock(
                make_mixing(config, mixers[stack][i], stack),
                model.mlp_dim,
                make_mixing(config, mixers["cross"][i], "cross") if stack == "decoder" else None,
                model.dropout_rate,
                model.dropout_rate if model.mlp_dropout_rate == -1 else model.mlp_dropout_rate,
                **own,
            )
            for i in range(model.num_blocks)
        )

    def positions(*names: str) -> StackPositions:
        fitting = (kind for kind, asking in POSITIONS.items() if set(asking) & set(names))
        kind = choose(
            config,
            "mixer.positions",
            auto=next(fitting, "sinusoidal"),
            sinusoidal="sinusoidal",
            learned="learned",
            none="none",
        )
        return StackPositions(kind, max_length(config), model.dropout_rate, param_dtype=own["param_dtype"])

    return EncoderDecoder(
        vocabulary_size,
        model.width,
        blocks["encoder"],
        blocks["decoder"],
        positions(*mixers["encoder"]),
        positions(*mixers["decoder"], *mixers["cross"]),
        source_vocabulary_size=source_vocabulary_size,
        length_ratio=length_ratio,
        pad_id=tokenizer.PAD,
        dropout_rate=model.dropout_rate,
        **own,
    )


def _names(config: ConfigDict, place: str) -> tuple[str, ...]:
    """The mixer of every block at a place."""
    given, number = config.model.mixer[place], config.model.num_blocks
    names = (given,) * number if isinstance(given, str) else tuple(given)
    if len(names) != number:
        raise InputError(f"model.mixer.{place}={names}: expected one mixer, or one for each of {number} blocks")
    return names


def make_mixing(config: ConfigDict, name: str, place: str) -> TokenMixing:
    """One mixer, of a stack or across.

    Raises:
      InputError: there is none of the name, or not at this place.
    """
    model: Any = config.model
    own: dict[str, Any] = {"dtype": dtype(config, "dtype"), "param_dtype": dtype(config, "param_dtype")}
    param_dtype, context, places = own["param_dtype"], model.mixer.context, (max_length(config),)
    if context < 0:
        raise InputError(f"model.mixer.context={context}: expected 0 or more")
    dots = functools.partial(DotProducts, context=context, **own)
    kernel = functools.partial(OffsetTable, context, param_dtype=param_dtype)
    table = functools.partial(PairTable, places, places, param_dtype=param_dtype)
    energies: dict[str, Callable[[], nn.Module]] = {
        "attention": dots,
        "shaw": lambda: dots(keys=("content", "relative")),
        "relative": lambda: dots(keys=("relative",)),
        "aposnet": lambda: dots("position", ("position",)),
        "rposnet": lambda: dots("position", ("relative",)),
        "lightconv": kernel,
        "lightconv_plain": kernel,
        "lightconv_gelu": kernel,
        "lightconv_global": lambda: kernel(outside="clip"),
        "linear": table,
        "glinear": table,
        "gaussian": lambda: GaussianWeights(NEIGHBOURS[place]),
        "fourier": FourierWeights,
    }
    if name not in energies:
        raise InputError(f'model.mixer.{place}="{name}": expected one of {", ".join(energies)}')
    if name == "fourier" and place != "encoder":
        raise InputError(f'model.mixer.{place}="fourier": it needs the whole sequence, and cannot decode step by step')
    gated = name in GATED
    if place != "cross":
        gated = choose(config, "mixer.gate", own=gated, yes=True, no=False)
    values = NormalizedGelu(**own) if gated else Glu() if name == "lightconv" else None
    return TokenMixing(
        model.num_heads,
        model.head_dim or None,
        energies[name](),
        values,
        GeluGate(**own) if gated else None,
        model.attention_dropout_rate,
        **own,
    )
