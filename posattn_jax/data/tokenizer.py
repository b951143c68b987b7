"""Subwords: a SentencePiece model, trained from a run's own text, and four special tokens before its pieces.

0 [PAD]   1 [CLS]   2 [SEP]   3 [MASK]   4 ... the pieces, of which the first is unknown

A run may have another's instead: see `tokenizer_json`.
"""

import functools
import hashlib
import io
import logging
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from posattn_jax.data import text_files
from posattn_jax.data.data_set import Reading
from posattn_jax.system import checksums
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_atomically, write_text

_logger = logging.getLogger(__name__)


class Specials(NamedTuple):
    """The ids of the special tokens."""

    pad: int
    cls: int
    sep: int
    mask: int


SPECIAL_NAMES = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
PAD, CLS, SEP, MASK = SPECIALS = Specials(0, 1, 2, 3)  # beside our own models
BEGIN, END = CLS, SEP  # of a sentence that is translated into
WORD_MARK = "\u2581"  # what SentencePiece writes for white space, at the start of pieces
MODEL_FILE, JSON_FILE, HASH_FILE = "tokenizer.model", "tokenizer.json", "tokenizer.sha256"  # in a run folder
# Of larger texts so many lines are drawn: more change the pieces little, and take memory.
MOST_LINES = 1_000_000

Kind = Literal["unigram", "bpe"]
# Rare characters have a piece too where a text is to be written in pieces. SentencePiece's own defaults are not named:
# a model holds what was, and its hash would be another.
Normalization = Literal["nfkc", "none"]
NORMALIZATIONS = {
    ("nfkc", True): "nmt_nfkc_cf",
    ("nfkc", False): "nmt_nfkc",
    ("none", False): "identity",  # what is written in pieces is written as it was: "…" and not "..."
}
OPTIONS: dict[Kind, dict[str, Any]] = {"unigram": {}, "bpe": {"model_type": "bpe", "character_coverage": 1.0}}


class Tokenizer:
    """A trained model.

    Attributes:
      model: what its file has.
      file: the name of that in a run folder.
      what: it is, for errors.
      specials: the ids of the special tokens.
      num_special: the ids below are special, or mean nothing.
      id_offset: what is added to the ids of the model's own.
      vocabulary_size: how many ids there are.
    """

    file: ClassVar[str]
    what: ClassVar[str]
    id_offset: ClassVar[int]
    specials: Specials = SPECIALS
    vocabulary_size: int

    def __init__(self, model: bytes):
        self.model = model

    @functools.cached_property
    def sha256(self) -> str:
        """Of the model: two runs understand each other's token ids where it is the same."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def num_special(self) -> int:
        return 1 + max(self.specials)

    @functools.cached_property
    def begins_word(self) -> np.ndarray:
        """[vocabulary_size] Whether a token is the first piece of a word, before which there is white space."""
        pieces = self.pieces(np.arange(self.num_special, self.vocabulary_size))
        return np.array([False] * self.num_special + [self._begins_word(piece) for piece in pieces])

    def _begins_word(self, piece: str) -> bool:
        raise NotImplementedError

    def encode(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """The ids of each sentence, without special tokens."""
        raise NotImplementedError

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids; special tokens are left out."""
        raise NotImplementedError

    def pieces(self, ids: np.ndarray) -> list[str]:
        """The piece of each id, or the name of a special token."""
        raise NotImplementedError

    def save(self, path: pathlib.Path) -> None:
        """Writes the model."""
        write_atomically(path, lambda file: file.write(self.model))


class SentencePieces(Tokenizer):
    """A SentencePiece model, with the special tokens before its pieces."""

    file, what, id_offset = MODEL_FILE, "SentencePiece model", len(SPECIALS)

    def __init__(self, model: bytes):
        import sentencepiece

        super().__init__(model)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocabulary_size = self._processor.vocab_size() + len(SPECIALS)

    def encode(self, sentences: Sequence[str]) -> list[np.ndarray]:
        return [np.array(ids, np.int32) + len(SPECIALS) for ids in self._processor.encode(list(sentences))]

    def decode(self, ids: np.ndarray) -> str:
        return self._processor.decode((ids[ids >= len(SPECIALS)] - len(SPECIALS)).tolist())

    def pieces(self, ids: np.ndarray) -> list[str]:
        return [
            SPECIAL_NAMES[i] if i < len(SPECIALS) else self._processor.id_to_piece(i - len(SPECIALS))
            for i in ids.tolist()
        ]

    def _begins_word(self, piece: str) -> bool:
        return piece.startswith(WORD_MARK)


def read(path: pathlib.Path) -> Tokenizer:
    """A model that was saved; InputError where there is none."""
    from posattn_jax.data.tokenizer_json import JsonTokenizer  # which is built on what is here

    kind = JsonTokenizer if path.suffix == ".json" else SentencePieces
    try:
        return kind(path.read_bytes())
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: no {kind.what} can be read there ({error})") from error


def check(tokenizer: Tokenizer, workdir: pathlib.Path) -> None:
    """InputError where a run folder has another tokenizer."""
    kept = of_run(workdir).sha256 if (workdir / HASH_FILE).exists() else tokenizer.sha256
    if kept != tokenizer.sha256:
        raise InputError(
            f"--workdir={workdir}: its tokenizer has the SHA-256 {kept[:12]}..., that of the text is now "
            f"{tokenizer.sha256[:12]}...: the text has changed; choose another folder"
        )


def keep(tokenizer: Tokenizer, folder: pathlib.Path, name: str = "") -> None:
    """Saves a tokenizer, and its hash beside it, in a run folder, or under a name in the cache."""
    path = folder / (name or tokenizer.file)
    tokenizer.save(path)
    write_text(path.with_suffix(".sha256"), f"{tokenizer.sha256}  {path.name}\n")


def of_run(workdir: pathlib.Path) -> Tokenizer:
    """The tokenizer that a run was trained with; InputError where it is not there, or is another."""
    own, path = workdir / (JSON_FILE if (workdir / JSON_FILE).exists() else MODEL_FILE), workdir / HASH_FILE
    tokenizer = read(own)
    kept = path.read_text(encoding="utf-8").split()[0] if path.exists() else "not known"
    if kept != tokenizer.sha256:
        raise InputError(
            f"{own}: is not the tokenizer of this run, whose SHA-256 is {kept[:12]}... (this one has "
            f"{tokenizer.sha256[:12]}...)"
        )
    return tokenizer


def of_reading(reading: Reading, make: Callable[[], Tokenizer], folder: str = "") -> Tokenizer:
    """The run's own, in this folder of its own, where it is evaluated, whatever the text; else what `make` returns.

    InputError where the run that is trained has another.
    """
    if reading.workdir is None:
        return make()
    if reading.evaluates:
        return of_run(reading.workdir / folder)
    tokenizer = make()
    check(tokenizer, reading.workdir / folder)
    return tokenizer


def of_start(reading: Reading) -> Tokenizer | None:
    """That of a run that has begun, or else of the one that it starts from; None: there is neither."""
    workdir = reading.workdir
    has_begun = workdir is not None and (workdir / HASH_FILE).exists()
    kept_in = workdir if has_begun else reading.pretrained
    return None if kept_in is None else of_run(kept_in)


def train(
    sentences: Iterable[str],
    vocabulary_size: int,
    kind: Kind = "unigram",
    fold_case: bool = True,
    normalization: Normalization = "nfkc",
    field: str = "data.vocabulary_size",
) -> Tokenizer:
    """Trains a unigram model (Kudo and Richardson 2018) or byte pairs (Sennrich 2016); the same text gives the same.

    Args:
      sentences: one by one.
      vocabulary_size: the pieces and the special tokens.
      kind: unigram, or byte pairs.
      fold_case: whether upper case is read as lower case.
      normalization: of Unicode, "nfkc" or "none", which folds no case.
      field: of the config, that says how large, for errors.

    Raises:
      InputError: no such normalization, or the text allows no vocabulary as large, or as small.
    """
    if (normalization, fold_case) not in NORMALIZATIONS:
        raise InputError(f'data.normalization="{normalization}": expected "nfkc", or "none" with data.fold_case=False')
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(0)
    failure: list[BaseException] = []

    def watched() -> Iterator[str]:
        try:
            yield from filter(None, sentences)
        except BaseException as error:  # which SentencePiece would tell as one of its own
            failure.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=watched(),
            model_writer=model,
            vocab_size=vocabulary_size - len(SPECIALS),
            normalization_rule_name=NORMALIZATIONS[normalization, fold_case],
            bos_id=-1,
            eos_id=-1,
            unk_id=0,
            input_sentence_size=MOST_LINES,
            shuffle_input_sentence=True,
            num_threads=1,  # with more the sums differ, and the pieces with them
            minloglevel=2,
            **OPTIONS[kind],
        )
    except (RuntimeError, OSError) as error:
        if failure:
            raise failure[0] from None
        reason = " ".join(str(error).split())
        for pattern, bound in ((r"set it to a value <= (\d+)", "most"), (r"required_chars\. \d+ vs (\d+)", "least")):
            if found := re.search(pattern, reason):
                reason = f"the text allows at {bound} {int(found[1]) + len(SPECIALS)}"
        raise InputError(f"{field}={vocabulary_size}: {reason}") from error
    return SentencePieces(model.getvalue())


def of_text(
    lines: Iterable[str],
    files: Sequence[pathlib.Path],
    vocabulary_size: int,
    cache: pathlib.Path,
    kind: Kind = "unigram",
    fold_case: bool = True,
    part: str = "",
    normalization: Normalization = "nfkc",
    field: str = "data.vocabulary_size",
) -> Tokenizer:
    """The tokenizer of lines that are read only if the cache does not have it; for most arguments see `train`.

    The lines come from these files, in whatever format, and are this part of what is in them; "": all.
    """
    import sentencepiece

    options = (kind, fold_case, part, *(() if normalization == "nfkc" else (normalization,)))
    more = () if options == ("unigram", True, "") else options  # what earlier versions kept is found
    key = text_files.fingerprint(files, "tokenizer", vocabulary_size, sentencepiece.__version__, *more)
    path = cache / f"tokenizer-{key[:16]}.model"
    if not _is_as_saved(path):
        with doing(f"training a tokenizer of {vocabulary_size} tokens on {len(files)} files", after=0.0):
            keep(train(lines, vocabulary_size, kind, fold_case, normalization, field), cache, path.name)
    return read(path)


def _is_as_saved(path: pathlib.Path) -> bool:
    """Whether the cache has a tokenizer; not where it has the SHA-256 of another. Earlier versions kept none."""
    if not path.exists():
        return False
    sums = path.with_suffix(".sha256")
    if not sums.exists() or sums.read_text(errors="replace").split()[:1] == [checksums.of_file(path)]:
        return True
    _logger.warning("%s: has changed since it was saved: it is made anew", path)
    return False
