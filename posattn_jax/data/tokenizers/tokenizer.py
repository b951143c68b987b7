"""Subword tokenizers: a SentencePiece model, trained on a run's own text, with four special tokens before its pieces.

0 [PAD]   1 [CLS]   2 [SEP]   3 [MASK]   4 ... the pieces, the first of which is the unknown token

A run may have the tokenizer of another model instead, a tokenizer.json: see `tokenizer_json`.
"""

import functools
import hashlib
import io
import itertools
import logging
import pathlib
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text import text_files
from posattn_jax.system import checksums, extras
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
PAD, CLS, SEP, MASK = SPECIALS = Specials(0, 1, 2, 3)  # with our own models
BEGIN, END = CLS, SEP  # of a target sentence in translation
WORD_MARK = "\u2581"  # SentencePiece's mark of white space at the start of a piece
MODEL_FILE, JSON_FILE, HASH_FILE = "tokenizer.model", "tokenizer.json", "tokenizer.sha256"  # in a run folder
# Training draws this many lines from larger texts: more change the pieces little, and take memory.
MOST_LINES = 1_000_000
# A text with fewer lines may have fewer subwords than are asked for; then all are taken.
SMALL_LINES = 100_000
LONGEST = 4192  # bytes of a line: SentencePiece leaves out longer ones

Kind = Literal["unigram", "bpe"]
# "bpe" is for generated text, which needs a piece for rare characters too. SentencePiece's own defaults are not written
# out, because a model contains the given options, and its hash would change.
Normalization = Literal["nfkc", "none"]
NORMALIZATIONS = {
    ("nfkc", True): "nmt_nfkc",  # "nmt_nfkc_cf" would fold case: "ς" becomes "σ"
    ("nfkc", False): "nmt_nfkc",
    ("none", False): "identity",  # generated text keeps its characters: "…" and not "..."
}
# The file of a model that reads text in lower case ends with this field of its protocol buffer: number 1000, which
# SentencePiece skips. Models of earlier versions do not have it: they fold case by their own rule, and still do.
LOWER = b"\xc2\x3e\x05lower"
OPTIONS: dict[Kind, dict[str, Any]] = {"unigram": {}, "bpe": {"model_type": "bpe", "character_coverage": 1.0}}


class Tokenizer:
    """A trained tokenizer.

    Attributes:
      model: the content of its file.
      file: the name of that file in a run folder.
      what: what it is called in errors.
      specials: the ids of the special tokens.
      num_special: ids below this number are special, or unused.
      id_offset: the number that is added to the model's own ids.
      vocabulary_size: the number of ids.
      reads: what is done with a text before the model reads it, in words.
    """

    file: ClassVar[str]
    what: ClassVar[str]
    id_offset: ClassVar[int]
    specials: Specials = SPECIALS
    vocabulary_size: int
    reads: str = "white space as one space"

    def __init__(self, model: bytes):
        self.model = model

    @functools.cached_property
    def sha256(self) -> str:
        """The SHA-256 of the model. Token ids of two runs have the same meaning if it is the same."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def num_special(self) -> int:
        return 1 + max(self.specials)

    @functools.cached_property
    def begins_word(self) -> np.ndarray:
        """[vocabulary_size] whether a token is the first piece of a word, after white space."""
        pieces = self.pieces(np.arange(self.num_special, self.vocabulary_size))
        return np.array([False] * self.num_special + [self._begins_word(piece) for piece in pieces])

    def _begins_word(self, piece: str) -> bool:
        raise NotImplementedError

    def encode(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """The ids of each sentence, without special tokens. White space is read as by `text_files.normalised`."""
        return self._encode([text_files.normalised(sentence) for sentence in sentences])

    def _encode(self, sentences: list[str]) -> list[np.ndarray]:
        raise NotImplementedError

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids. Special tokens are left out."""
        raise NotImplementedError

    def pieces(self, ids: np.ndarray) -> list[str]:
        """The piece of each id; for a special token, its name."""
        raise NotImplementedError

    def save(self, path: pathlib.Path) -> None:
        """Writes the model to a file."""
        write_atomically(path, lambda file: file.write(self.model))


class SentencePieces(Tokenizer):
    """A SentencePiece model, with the special tokens before its pieces."""

    file, what, id_offset = MODEL_FILE, "SentencePiece model", len(SPECIALS)

    def __init__(self, model: bytes):
        import sentencepiece

        super().__init__(model)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocabulary_size = self._processor.vocab_size() + len(SPECIALS)
        self._lowers = model.endswith(LOWER)
        if self._lowers:
            self.reads += ", then NFKC, then lower case"

    def _encode(self, sentences: list[str]) -> list[np.ndarray]:
        if self._lowers:
            sentences = list(map(_lowered, sentences))
        return [np.array(ids, np.int32) + len(SPECIALS) for ids in self._processor.encode(sentences)]

    def decode(self, ids: np.ndarray) -> str:
        return self._processor.decode((ids[ids >= len(SPECIALS)] - len(SPECIALS)).tolist())

    def pieces(self, ids: np.ndarray) -> list[str]:
        return [
            SPECIAL_NAMES[i] if i < len(SPECIALS) else self._processor.id_to_piece(i - len(SPECIALS))
            for i in ids.tolist()
        ]

    def _begins_word(self, piece: str) -> bool:
        return piece.startswith(WORD_MARK)


def _lowered(text: str) -> str:
    """In lower case by Unicode's rules, as references are: "Σ" is "ς" at the end of a word, and "ß" stays.

    NFKC comes first, as the model would make upper case from "™" afterwards.
    """
    return unicodedata.normalize("NFKC", text).lower()


def _cut(line: str) -> list[str]:
    """A line in parts that SentencePiece reads, cut between words where there are any."""
    if len(line.encode()) <= LONGEST:
        return [line]
    return textwrap.wrap(line, LONGEST // 4, break_on_hyphens=False)  # a character has at most 4 bytes


class JsonTokenizer(Tokenizer):
    """The tokenizer of a tokenizer.json. Raises ValueError if it does not have the special tokens of a BERT."""

    file, what, id_offset = JSON_FILE, "tokenizer of a BERT", 0

    def __init__(self, model: bytes):
        with extras.named():
            import tokenizers

        super().__init__(model)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(model.decode())
        except Exception as error:  # the library raises no more specific class
            raise ValueError(str(error)) from error
        self._tokenizer.no_padding()  # `data.text.sequences` pads and cuts
        self._tokenizer.no_truncation()
        ids = {name: self._tokenizer.token_to_id(name) for name in SPECIAL_NAMES}
        missing = [name for name, own in ids.items() if own is None]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
        self.specials = Specials._make(ids.values())
        self.vocabulary_size = self._tokenizer.get_vocab_size()

    def _encode(self, sentences: list[str]) -> list[np.ndarray]:
        encoded = self._tokenizer.encode_batch(sentences, add_special_tokens=False)
        return [np.array(each.ids, np.int32) for each in encoded]

    def decode(self, ids: np.ndarray) -> str:
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)

    def pieces(self, ids: np.ndarray) -> list[str]:
        return [str(self._tokenizer.id_to_token(i)) for i in ids.tolist()]

    def _begins_word(self, piece: str) -> bool:
        return not piece.startswith("##")


def read(path: pathlib.Path) -> Tokenizer:
    """Reads a saved tokenizer. Raises InputError if there is none."""
    kind = JsonTokenizer if path.suffix == ".json" else SentencePieces
    try:
        return kind(path.read_bytes())
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: no {kind.what} can be read there ({error})") from error


def check(tokenizer: Tokenizer, workdir: pathlib.Path) -> None:
    """Raises InputError if the run folder has another tokenizer."""
    kept = of_run(workdir).sha256 if (workdir / HASH_FILE).exists() else tokenizer.sha256
    if kept != tokenizer.sha256:
        raise InputError(
            f"--workdir={workdir}: its tokenizer has the SHA-256 {kept[:12]}..., that of the text is now "
            f"{tokenizer.sha256[:12]}...: the text has changed, or this version makes another; choose another folder"
        )


def save(tokenizer: Tokenizer, folder: pathlib.Path, name: str = "") -> None:
    """Saves a tokenizer and its hash in a run folder, or under a name in the cache."""
    path = folder / (name or tokenizer.file)
    tokenizer.save(path)
    write_text(path.with_suffix(".sha256"), f"{tokenizer.sha256}  {path.name}\n")


def of_run(workdir: pathlib.Path) -> Tokenizer:
    """The tokenizer that a run was trained with. Raises InputError if it is missing, or has another hash."""
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
    """The tokenizer that `make` returns; in an evaluation, the one saved in the run folder, whatever the text is.

    `folder` is the folder of the tokenizer in the run folder. Raises InputError if a run in training has another one.
    """
    if reading.workdir is None:
        return make()
    if reading.evaluates:
        return of_run(reading.workdir / folder)
    tokenizer = make()
    check(tokenizer, reading.workdir / folder)
    return tokenizer


def of_start(reading: Reading) -> Tokenizer | None:
    """The tokenizer of a run that has begun, or else of the run that it starts from; None if there is neither."""
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
    """Trains a unigram model (Kudo and Richardson 2018) or byte pairs (Sennrich 2016). It is deterministic.

    Args:
      sentences: the sentences, as a stream.
      vocabulary_size: the number of pieces and special tokens. If a small text has fewer pieces, it has all of them.
      kind: "unigram", or "bpe" for byte pairs.
      fold_case: whether upper case is read as lower case, as by `str.lower`.
      normalization: the normalization of Unicode, "nfkc" or "none"; "none" needs fold_case=False.
      field: the config's field of the size, for errors.

    Raises:
      InputError: there is no such normalization, or the text does not allow a vocabulary of this size.
    """
    if (normalization, fold_case) not in NORMALIZATIONS:
        raise InputError(f'data.normalization="{normalization}": expected "nfkc", or "none" with data.fold_case=False')
    import sentencepiece

    failure: list[BaseException] = []
    first: list[str] = []  # sentences, to be read again

    def watched() -> Iterator[str]:
        try:
            read = filter(None, map(text_files.normalised, sentences))
            lines = map(_lowered, read) if fold_case else read
            for number, sentence in enumerate(itertools.chain.from_iterable(map(_cut, lines))):
                if number <= SMALL_LINES:
                    first.append(sentence)
                yield sentence
        except BaseException as error:  # SentencePiece would raise it as its own error
            failure.append(error)
            raise

    def trained(sentences: Iterator[str], num_pieces: int) -> bytes:
        model = io.BytesIO()
        sentencepiece.set_random_generator_seed(0)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            vocab_size=num_pieces,
            normalization_rule_name=NORMALIZATIONS[normalization, fold_case],
            bos_id=-1,
            eos_id=-1,
            unk_id=0,
            input_sentence_size=MOST_LINES,
            shuffle_input_sentence=True,
            num_threads=1,  # with more threads, sums differ, and so may the pieces
            minloglevel=2,
            **OPTIONS[kind],
        )
        return model.getvalue()

    try:
        model = trained(watched(), vocabulary_size - len(SPECIALS))
    except (RuntimeError, OSError) as error:
        if failure:
            raise failure[0] from None
        if not first:
            raise InputError("data.dir: there is no text to train a tokenizer on") from error
        reason = " ".join(str(error).split())
        most, least = (
            re.search(rf"{said} (\d+)", reason) for said in ("set it to a value <=", r"required_chars\. \d+ vs")
        )
        if most is None or len(first) > SMALL_LINES:
            if bound := most or least:
                reason = f"the text allows at {'most' if most else 'least'} {int(bound[1]) + len(SPECIALS)}"
            raise InputError(f"{field}={vocabulary_size}: {reason}") from error
        model = trained(iter(first), int(most[1]))
    return _told(SentencePieces(model + (LOWER if fold_case else b"")), vocabulary_size, field)


def _told(tokenizer: Tokenizer, vocabulary_size: int, field: str) -> Tokenizer:
    """The same tokenizer, after a line if it has fewer tokens than were asked for."""
    if tokenizer.vocabulary_size < vocabulary_size:
        print(f"{field}={vocabulary_size}: the text allows at most {tokenizer.vocabulary_size}, which are taken")
    return tokenizer


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
    """The tokenizer of some lines, which are read only if it is not in the cache. For most arguments see `train`.

    The lines come from `files`, in any format. `part` says which part of these files they are; "": all.
    """
    import sentencepiece

    # caches of earlier versions stay valid, but for those in which case was folded: True
    options = (kind, fold_case and "lower", part, *(() if normalization == "nfkc" else (normalization,)))
    key = text_files.fingerprint(files, "tokenizer", vocabulary_size, sentencepiece.__version__, *options)
    path = cache / f"tokenizer-{key[:16]}.model"
    if not _is_as_saved(path):
        with doing(f"training a tokenizer of {vocabulary_size} tokens on {len(files)} files", after=0.0):
            save(train(lines, vocabulary_size, kind, fold_case, normalization, field), cache, path.name)
        return read(path)
    return _told(read(path), vocabulary_size, field)


def _is_as_saved(path: pathlib.Path) -> bool:
    """Whether the cache has a tokenizer whose SHA-256 is the saved one, if any: earlier versions saved none."""
    if not path.exists():
        return False
    sums = path.with_suffix(".sha256")
    if not sums.exists() or sums.read_text(errors="replace").split()[:1] == [checksums.of_file(path)]:
        return True
    _logger.warning("%s: has changed since it was saved: it is made anew", path)
    return False
