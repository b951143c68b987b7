"""From a config's fields to text, its tokenizer, and the tasks of language."""

import pathlib
from typing import Any

from ml_collections import ConfigDict

from posattn_jax.data import corpus, text_files, tokenizer
from posattn_jax.data.corpus import SentencePairs
from posattn_jax.errors import InputError
from posattn_jax.model_config import make_bert
from posattn_jax.models.bert import MaskedLanguageModel
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.tasks.masking import Masking


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
