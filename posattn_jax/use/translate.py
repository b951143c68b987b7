"""Translates with a trained run: text from a stream, and the sentences of an evaluation."""

import dataclasses
import io
import itertools
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from posattn_jax.analysis import translation_scores
from posattn_jax.config import experiment
from posattn_jax.config.parts import change
from posattn_jax.data.pipeline.buckets import padded_length
from posattn_jax.data.text import parallel, text_files
from posattn_jax.data.text.parallel import ParallelText
from posattn_jax.data.text.translations import Translations
from posattn_jax.data.tokenizers.tokenizer import BEGIN, END, PAD, Tokenizer
from posattn_jax.models.seq2seq import precomputed
from posattn_jax.nn.energies import OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, NormalizedGelu, latent_weights
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import cache_folder
from posattn_jax.tasks.translation import Translation
from posattn_jax.train import pretrained
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.use.trained import read_config

CHUNK_BATCHES = 8  # the batches that are read, sorted by length and written at a time


class Translator:
    """Translates sentences.

    Args:
      task: the task with its model.
      params: the parameters of the model.
      source, target: the tokenizers of the source and of the target.
      buckets: the lengths to which sources are padded.
    """

    def __init__(self, task: Translation, params: Any, source: Tokenizer, target: Tokenizer, buckets: Sequence[int]):
        decoding, model = task.decoding, task.model
        self.task, self.params, self.source, self.target = task, jax.device_put(params), source, target
        self.buckets, self.extra_length = tuple(buckets), decoding.extra_length
        self.beam_size, self.batch_size = decoding.beam_size, decoding.batch_size
        # the number of places in the model's tables
        self.max_length = min(model.encoder_positions.max_length, model.decoder_positions.max_length)
        model, tables = precomputed(task.model, self.params, self.max_length)
        self._within = dataclasses.replace(task, model=model), tables  # for sentences that fit the tables
        self._has_tables = any(
            isinstance(mixing.energies, PairTable | OffsetTable) and getattr(mixing.energies, "query_shape", None)
            for block in (*task.model.encoder_blocks, *task.model.decoder_blocks)
            for mixing in (block.mixing, block.cross)
            if mixing is not None
        )
        self._has_vectors = "learned" in (task.model.encoder_positions.form, task.model.decoder_positions.form)
        self.num_beyond = 0  # sentences with more tokens than learned position vectors

    def __call__(self, lines: Sequence[str], numbers: Sequence[int] | None = None) -> list[str]:
        """The translations, in the order of the lines. An empty line stays empty.

        Args:
          lines: the sentences.
          numbers: the numbers of the lines, for errors; None: 1, 2, ...

        Raises:
          InputError: a line is longer than the model's tables, whose last entry cannot stand for later positions.
        """
        ids = [np.append(each, END).astype(np.int32) if len(each) else each for each in self.source.encode(lines)]
        order = sorted((i for i in range(len(ids)) if len(ids[i])), key=lambda i: len(ids[i]))
        for i in reversed(order):
            if len(ids[i]) <= self.max_length:
                break
            if self._has_tables:
                number = i + 1 if numbers is None else numbers[i]
                places = f"expected at most {self.max_length} (model.encoder_positions.max_length)"
                raise InputError(f"line {number} has {len(ids[i])} tokens: {places}")
            self.num_beyond += self._has_vectors
        translated = [""] * len(lines)
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            for i, tokens in zip(numbers, self._translate([ids[i] for i in numbers]), strict=True):
                translated[i] = self.target.decode(tokens)
        return translated

    def _translate(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """The ids [n m] of the translations of a batch of sentences, which are padded to one length."""
        length = padded_length(max(map(len, ids)), self.buckets)
        max_steps = length + self.extra_length
        fits = max(length, max_steps) <= self.max_length
        if self._has_tables and not fits:
            length, max_steps, fits = min(length, self.max_length), min(max_steps, self.max_length), True
        task, params = self._within if fits else (self.task, self.params)
        source = np.full((self.batch_size, length), PAD, np.int32)
        source[len(ids) :, 0] = END  # the rows of a last batch that is not full
        for row, own in zip(source, ids, strict=False):
            row[: len(own)] = own
        lengths = (source != PAD).sum(1) + self.extra_length
        lengths[len(ids) :] = 1
        tokens, _ = task.translate(params, jnp.asarray(source), jnp.asarray(lengths), self.beam_size, max_steps)
        return np.asarray(tokens)[: len(ids)]


def of_run(workdir: pathlib.Path, changes: ConfigDict | None = None) -> tuple[Translator, ConfigDict]:
    """The translator with the average of a run's checkpoints, and the config of the run.

    Args:
      workdir: the run folder.
      changes: a config whose `task.decoding` replaces that of the run.

    Raises:
      InputError: there is no run of translation, or it has no checkpoint.
    """
    config = read_config(workdir, (Translation,))
    if changes is not None:
        change(config, {"task.decoding": changes.task.decoding})
    data: Any = experiment.data_set(config)
    source, target = data.tokenizers(workdir)
    ratio = parallel.ratio_of_run(workdir)
    task = experiment.task_of(config, parallel.known(source, target, ratio, data.buckets))
    checkpoints = Checkpoints(workdir, read_only=True)
    steps = checkpoints.steps_to_average(config.train.keep_checkpoints)
    if not steps:
        raise InputError(f"--workdir={workdir}: the run has no checkpoint of an evaluation yet")
    with doing("reading the run"):
        params = pretrained.named(pretrained.average(checkpoints, steps), task)
        checkpoints.close()
        check_vocabulary(params, source, target, workdir)
        translator = Translator(task, params, source, target, buckets=data.buckets)
    print(f"average of the checkpoints {', '.join(map(str, steps))}", file=sys.stderr)
    return translator, config


def check_vocabulary(params: Any, source: Tokenizer, target: Tokenizer, workdir: pathlib.Path) -> None:
    """Raises InputError if a run's tokenizers and its parameters have vocabularies of different sizes."""
    for name, subwords in (("embedding", target), ("source_embedding", source)):
        if name in params and len(params[name]["embedding"]) != subwords.vocabulary_size:
            has, knows = subwords.vocabulary_size, len(params[name]["embedding"])
            raise InputError(
                f"--workdir={workdir}: its tokenizer has {has} tokens, expected {knows} as in its checkpoint"
            )


def translate(workdir: pathlib.Path, changes: ConfigDict | None, lines: Iterable[bytes], output: io.TextIOBase) -> None:
    """Translates text line by line, a few batches at a time, in order. Empty lines stay empty.

    Raises:
      InputError: a line is not UTF-8, or is too long for a model with tables.
    """
    translator, _ = of_run(workdir, changes)
    experiment.keep_programs(cache_folder())
    sentences, number = text_files.sentences(lines, "input"), 0
    while chunk := list(itertools.islice(sentences, translator.batch_size * CHUNK_BATCHES)):
        numbers = range(number + 1, number + len(chunk) + 1)
        with doing(f"translating lines {numbers[0]:,} to {numbers[-1]:,}"):
            translations = translator(chunk, numbers)
        print(*translations, sep="\n", file=output, flush=True)
        number += len(chunk)
    _tell_beyond(translator, number)


def _tell_beyond(translator: Translator, number: int) -> None:
    if translator.num_beyond:
        beyond = f"{translator.num_beyond:,} of {number:,} lines are longer than {translator.max_length} tokens"
        print(f"{beyond}: positions beyond that use the last position's vector", file=sys.stderr)


def evaluate(
    translator: Translator, data: Translations, workdir: pathlib.Path, sources: dict[str, ParallelText]
) -> dict[str, dict[str, Any]]:
    """BLEU and chrF of "validation" and "test". The translations are written to `WORKDIR/translations`.

    It also writes the input files of COMET and BLEURT there, and prints the commands of these.
    """
    folder, results = workdir / "translations", {}
    tokenize = translation_scores.tokenize_of(data.target)
    for name in ("validation", "test"):
        if name in sources:
            originals, references = data.sentences(sources[name], name)
            with doing(f"translating {len(originals):,} sentences"):
                translations = translator(originals, [int(number) + 1 for number in sources[name].numbers])
            _tell_beyond(translator, len(originals))
            translation_scores.write_for_outside_metrics(folder / name, originals, translations, references)
            results[name] = translation_scores.corpus_scores(translations, references, tokenize, data.fold_case)
            print(f"{name}: BLEU {results[name]['bleu']:.2f}  chrF {results[name]['chrf']:.2f}")
            print(f"  {results[name]['bleu_signature']}, {results[name]['chrf_signature']}")
    middle = sources["validation"].select(np.array([len(sources["validation"]) // 2]))  # they are ordered by length
    draw_attention(translator, data.sentences(middle, "validation")[0][0], workdir / "figures")
    if "test" in sources:
        print("COMET and BLEURT, where they are installed:")
        for command in translation_scores.outside_commands(folder / "test"):
            print(f"  {command}")
    return results


def draw_attention(translator: Translator, sentence: str, folder: pathlib.Path) -> None:
    """Draws the weights of every mixer of the last blocks, for a sentence and its translation.

    For a gated mixer it also draws alpha and beta of Schmidt 2023, section 3; beta is the mean size over the features
    of a head.
    """
    from posattn_jax.analysis.position_figures import alpha_and_beta, attention_of_a_sentence  # late: takes a second
    from posattn_jax.system.plot_style import save

    ids = np.append(translator.source.encode([sentence])[0], END)[None]
    prediction = np.append(translator.target.encode(translator([sentence]))[0], END)
    made: Any = translator.task.model.apply(
        {"params": translator.params},
        jnp.asarray(ids, jnp.int32),
        jnp.asarray([[BEGIN, *prediction[:-1]]], jnp.int32),
        capture_intermediates=lambda module, method: method == "mix" or module.name in ("value", "linear"),
        mutable=["intermediates"],
    )
    source = [*translator.source.pieces(ids[0, :-1]), "END"]
    target = ["BEGIN", *translator.target.pieces(prediction[:-1])]
    last = len(translator.task.model.encoder_blocks) - 1
    model = translator.task.model
    num_heads = model.encoder_blocks[0].mixing.num_heads
    for name, stack, slot, *tokens in (
        ("encoder", "encoder", "mixing", source, source),
        ("decoder", "decoder", "mixing", target, target),
        ("cross", "decoder", "cross", target, source),
    ):
        layer = made[1]["intermediates"][f"{stack}_blocks_{last}"][slot]
        ((_, weights),) = layer["mix"]
        weights = np.broadcast_to(weights[0], (num_heads, *weights.shape[2:])).astype(float)
        save(attention_of_a_sentence(weights, *tokens), folder / f"attention_{name}_{last}.png")
        mixing = getattr(getattr(model, f"{stack}_blocks")[last], slot)
        if isinstance(mixing.gate, GeluGate) and isinstance(mixing.values, NormalizedGelu):
            gate = mixing.gate.activation(layer["gate"]["linear"]["__call__"][0])
            beta = latent_weights(gate, layer["value"]["__call__"][0], mixing.values)
            size = np.moveaxis(np.asarray(jnp.abs(beta).mean(-1)[0], float), -1, 0)
            save(alpha_and_beta(weights, size, *tokens), folder / f"gating_{name}_{last}.png")
