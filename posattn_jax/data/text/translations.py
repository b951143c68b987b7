"""A data set of sentences in one language, and their translations in another."""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from typing import Any, Literal

import numpy as np

from posattn_jax.data.pipeline import prepared, user_data
from posattn_jax.data.pipeline.buckets import BatchUnit, check_buckets
from posattn_jax.data.pipeline.checksums import Files, below
from posattn_jax.data.pipeline.data_set import DataSet, Reading, limited
from posattn_jax.data.pipeline.packing import pack
from posattn_jax.data.text import parallel
from posattn_jax.data.text.lines import Side
from posattn_jax.data.text.parallel import PackedText, ParallelText
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.data.tokenizers.tokenizer import Tokenizer
from posattn_jax.system.errors import InputError

HELD_OUT = 20  # every so many pairs are used for validation where there is no part for it


@dataclasses.dataclass(frozen=True)
class Translations(DataSet):
    """Files PART.LANGUAGE, plain or .gz, whose lines are translations of each other; or a set that tfds has prepared.

    Attributes:
      name: "tfds/NAME" for a prepared set; "": there are files.
      dir: the folder of the files, or of prepared sets.
      source, target: the languages.
      train_part, validation_part, test_part: the names of the parts. With "train/N" as validation_part, every Nth pair
        of the train part is used for validation instead of training. "": those of `user_data.PARTS` that are there;
        without one, every 20th pair of the train part is used for validation, and there is no test.
      validation_limit: use only the first so many pairs of the validation part; 0: all.
      vocabulary_size: the number of subwords and embeddings, including 4 special tokens.
      source_vocabulary_size: the same for the source, if it has its own subwords and embeddings; 0: they are joint.
      fold_case: whether upper case is read, and written, as lower case, as by `str.lower`.
      normalization: the normalization of Unicode before subwords are made; "none": "…" stays, and does not become
        "...".
      malformed: whether to refuse or to skip lines that are empty on one side.
      max_ratio: pairs of training and validation are left out if one side has more than this many times the tokens of
        the other; 0: none is.
      buckets: the lengths to which batches are padded. Longer pairs than the last are not used for training.
      batch_unit: what `train.batch_size` counts: tokens of the target, without padding; or places, with padding.
      packed: whether training rows are as long as the last bucket, and have as many pairs as fit: see
        `data.pipeline.packing`.
    """

    name: str = ""
    dir: str = "data/nmt"
    source: str = "en"
    target: str = "de"
    train_part: str = "train"
    validation_part: str = "val"
    test_part: str = "test"
    validation_limit: int = 0
    vocabulary_size: int = 30_004
    source_vocabulary_size: int = 0
    fold_case: bool = False
    normalization: Literal["nfkc", "none"] = "none"
    malformed: Literal["refuse", "skip"] = "refuse"
    max_ratio: float = 0.0
    buckets: tuple[int, ...] = (16, 24, 32, 48, 64, 128)
    batch_unit: BatchUnit = "target_tokens"
    packed: bool = False

    def __post_init__(self):
        check_buckets(self.buckets)
        part, divided, every = self.validation_part.partition("/")
        if divided and not (part == self.train_part and every.isdecimal() and int(every) >= 2):
            expected = f'the name of a part, or "{self.train_part}/N" of at least 2'
            raise ValueError(f'validation_part="{self.validation_part}": expected {expected}')
        if self.max_ratio and self.max_ratio < 1:
            raise ValueError(f"max_ratio={self.max_ratio}: expected 0, or at least 1")
        for name in ("vocabulary_size", "source_vocabulary_size"):
            size = getattr(self, name)
            if size <= tokenizer.MASK + 1 and (size or name == "vocabulary_size"):
                raise ValueError(f"{name}={size}: expected more than the special tokens")

    @property
    def every(self) -> int:
        """N if every Nth pair of the train part is used for validation; else 0."""
        if not self.validation_part:
            return 0 if self._found("validation") else HELD_OUT
        return int(self.validation_part.partition("/")[2] or 0)

    @property
    def _folder(self) -> pathlib.Path:
        """The folder of the files, or of the prepared set."""
        folder = pathlib.Path(self.dir)
        if not self.name:
            return folder
        found = prepared.find(self.name.removeprefix("tfds/"), folder)
        if found is None or not self.name.startswith("tfds/"):
            raise InputError(
                f"data.name={self.name}: tensorflow-datasets has prepared no such set in data.dir={folder}"
            )
        return found

    def _part(self, name: str) -> str:
        """The name of the part that has the examples of "train", "validation" or "test"; "" if there is no test."""
        if name == "validation" and self.every:
            return self.train_part
        return getattr(self, f"{name}_part") or self._found(name)

    def _found(self, name: str) -> str:
        """The one of `user_data.PARTS` that is there; "" if none is. Raises InputError for two, or for half a one."""
        found = [part for part in user_data.PARTS[name] if self._is_there(part)]
        if len(found) > 1:
            both = f"{found[0]} and {found[1]}"
            raise InputError(f"data.dir={self.dir}: has {both}: expected one of them, or data.{name}_part")
        return found[0] if found else ""

    def _is_there(self, part: str) -> bool:
        if not self.name:
            has_any = any(parallel.has_file(self._folder, part, each) for each in (self.source, self.target))
            return has_any and all(self._side(part, language) for language in (self.source, self.target))
        with contextlib.suppress(InputError):
            return all(self._side(part, language) for language in (self.source, self.target))
        return False

    def _side(self, part: str, language: str) -> Side:
        read = parallel.of_prepared if self.name else parallel.of_file
        return read(self._folder, part, language)

    def load(self, reading: Reading) -> dict[str, Any]:
        """See `DataSet` and, for tokenizers, `of_reading`. "train" has only pairs within the limit of length."""
        subwords, workdir = self._tokenizers(reading), reading.workdir
        parts: dict[str, Any] = {}
        for name in ("train", "validation", *(("test",) if reading.evaluates and self._part("test") else ())):
            source, target = (self._side(self._part(name), each) for each in (self.source, self.target))
            parts[name] = parallel.of_text(source, target, subwords, self.buckets, reading.cache, self.malformed)
            if len(skipped := parts[name].skipped):
                told = user_data.listed([str(line + 1) for line in skipped], user_data.MOST_LINES)
                print(f"{name}: {len(skipped):,} lines are left out, one side of them is empty: {told}")
            if self.every and name != "test":
                held_out = (parts[name].numbers + 1) % self.every == 0
                parts[name] = parts[name].select(np.flatnonzero(held_out == (name == "validation")))
                if not len(parts[name]):
                    raise InputError(f'data.validation_part="{self.validation_part}": it leaves no pair for {name}')
            if self.max_ratio and name != "test":
                parts[name] = self._of_similar_length(parts[name], name)
        longest = self.buckets[-1]
        if parts["train"].num_too_long:
            left_out = f"{parts['train'].num_too_long:,} of {len(parts['train']):,}"
            print(f"train: {left_out} pairs are left out, longer than {longest} tokens")
        parts["train"] = dataclasses.replace(parts["train"].within_limit(), batch_unit=self.batch_unit)
        if not len(parts["train"]):
            raise InputError(f"data.buckets={self.buckets}: no pair of the train part is as short as {longest} tokens")
        for name in set(parts) - {"train"}:
            if parts[name].num_too_long:
                print(f"{name}: {parts[name].num_too_long:,} pairs are longer than {longest} tokens, and kept")
        if workdir is not None and (workdir / parallel.RATIO_FILE).exists():
            parts["train"] = dataclasses.replace(parts["train"], known_ratio=parallel.ratio_of_run(workdir))
        if reading.places is not None:
            parts = {name: _fitting(part, name, reading.places) for name, part in parts.items()}
        parts["validation"] = limited(parts["validation"], self.validation_limit).by_length()
        if self.packed:
            parts["train"] = PackedText(parts["train"], pack(parts["train"].sizes, longest, reading.seed), longest)
        return parts

    def _of_similar_length(self, part: ParallelText, name: str) -> ParallelText:
        """The part without the pairs that `max_ratio` leaves out. Raises InputError if none is left."""
        left = part.within_ratio(self.max_ratio)
        if not len(left):
            raise InputError(f"data.max_ratio={self.max_ratio}: it leaves no pair for {name}")
        if num_left_out := len(part) - len(left):
            told = f"{num_left_out:,} of {len(part):,} pairs are left out"
            print(f"{name}: {told}, one side more than {self.max_ratio} times as long as the other")
        return left

    def sentences(self, source: ParallelText, name: str) -> tuple[list[str], list[str]]:
        """The texts of the examples of "validation" or "test", and of their translations.

        They are as in the files, but in lower case with `fold_case`.
        """
        sides = []
        for language in (self.source, self.target):
            lines = list(self._side(self._part(name), language).lines)
            side = [lines[number] for number in source.numbers]
            sides.append([line.lower() for line in side] if self.fold_case else side)
        return sides[0], sides[1]

    def _tokenizers(self, reading: Reading) -> tuple[Tokenizer, Tokenizer]:
        """The tokenizers of the source and of the target; the same object if the vocabulary is joint."""
        make = functools.partial(self._tokenizer, cache=reading.cache)
        if not self.source_vocabulary_size:
            joint = tokenizer.of_reading(reading, lambda: make("vocabulary_size", self.source, self.target))
            return joint, joint
        source = functools.partial(make, "source_vocabulary_size", self.source)
        target = functools.partial(make, "vocabulary_size", self.target)
        own = tokenizer.of_reading(reading, source, parallel.SOURCE_FOLDER)
        return own, tokenizer.of_reading(reading, target)

    def tokenizers(self, workdir: pathlib.Path) -> tuple[Tokenizer, Tokenizer]:
        """The tokenizers of the source and of the target with which a run was trained."""
        target = tokenizer.of_run(workdir)
        has_own = bool(self.source_vocabulary_size)
        return (tokenizer.of_run(workdir / parallel.SOURCE_FOLDER) if has_own else target), target

    def _tokenizer(self, field: str, *languages: str, cache: pathlib.Path) -> Tokenizer:
        """Trains byte pairs on the train part, in the given languages together. `field` has their number."""
        sides = [self._side(self.train_part, language) for language in languages]
        lines, part = [side.lines for side in sides], "/".join((self.train_part, *languages)) if self.name else ""
        if every := self.every:
            part += f"/{every}"
            lines = [(line for number, line in enumerate(side, 1) if number % every) for side in lines]
        return tokenizer.of_text(
            itertools.chain.from_iterable(lines),
            list(dict.fromkeys(path for side in sides for path in side.files)),
            getattr(self, field),
            cache,
            kind="bpe",
            fold_case=self.fold_case,
            part=part,
            normalization=self.normalization,
            field=f"data.{field}",
        )

    def files(self) -> Files:
        paths: list[pathlib.Path] = []
        for part, language in itertools.product(("train", "validation", "test"), (self.source, self.target)):
            with contextlib.suppress(InputError):  # it is reported when the data are read
                paths += self._side(self._part(part), language).files
        return below(pathlib.Path(self.dir), paths)


def _fitting(part: ParallelText, name: str, places: int) -> ParallelText:
    """Leaves out pairs of the validation part that are longer than the tables of a `PairTable`.

    Raises:
      InputError: another part has such pairs.
    """
    fitting = np.flatnonzero(part.lengths <= places)
    if len(fitting) == len(part):
        return part
    too_long = f"{len(part) - len(fitting):,} pairs of {name} are longer than the {places} places of a PairTable"
    if name != "validation":
        raise InputError(f"energies.key_shape=({places},): {too_long}")
    print(f"{too_long}, and left out")
    return part.select(fitting)
