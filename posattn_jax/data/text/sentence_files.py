"""A data set of a user's own labelled sentences, or pairs of sentences, in TSV, CSV or JSONL."""

import contextlib
import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from posattn_jax.data.pipeline import user_data
from posattn_jax.data.pipeline.checksums import Files, found_below
from posattn_jax.data.pipeline.data_set import DataSet, Reading, limited, split
from posattn_jax.data.text import sequences, tables
from posattn_jax.data.text.sequences import Metric, Sentences
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.data.tokenizers.tokenizer import Tokenizer
from posattn_jax.system.errors import InputError

Labelled = tuple[tuple[str, ...], str, str]  # the sentences, the label, and the place in the file


@dataclasses.dataclass(frozen=True)
class OwnSentences(Sentences):
    """Sentences. A run also saves the names of their labels, and the largest number of examples in a part."""

    def save(self, workdir: pathlib.Path) -> None:
        """Saves the tokenizer, the names and the number in the run folder."""
        super().save(workdir)
        user_data.save(workdir, {"classes": list(self.names), "num_examples": self.num_ids})


@dataclasses.dataclass(frozen=True)
class SentenceFiles(DataSet):
    """A file, or train, val and test in a folder, each .tsv, .csv or .jsonl, with named columns.

    TSV has one row per line, without quotes; CSV has the quotes of RFC 4180; JSONL has one object per line. Without
    val, the run's seed draws a fifth of the train part for validation. The tokenizer is that of the run that this one
    starts from, or else is trained on the train part.

    Attributes:
      dir: the file or the folder.
      sentences: the columns of the one or two sentences.
      label: the column of the label. 1.0 is the label 1.
      target: the kind of label: "class", one of several classes; or "number", with the squared error as loss; "auto": a
        number if most labels of the train part are numbers, and one of these is not whole.
      metric: the metric of the predictions; "auto": accuracy for classes, correlation for numbers.
      vocabulary_size: the size of a tokenizer that is trained, including 4 special tokens.
      length: the length of a sequence in tokens.
      malformed: whether to refuse or to skip rows in which a column is missing or empty, rows with a label that the
        train part does not have, and rows whose label is no number where labels are numbers.
      validation_limit: use only the first so many rows of the validation part; 0: all.
    """

    dir: str = "data/sentences"
    sentences: tuple[str, ...] = ("sentence",)
    label: str = "label"
    target: Literal["auto", "class", "number"] = "auto"
    metric: Literal["auto"] | Metric = "auto"
    vocabulary_size: int = 4096
    length: int = 64
    malformed: user_data.Malformed = "refuse"
    validation_limit: int = 0

    name: ClassVar[str] = "sentences"

    def __post_init__(self):
        sequences.check_sizes(self.length, self.vocabulary_size)
        if len(self.sentences) not in (1, 2):
            raise ValueError(f"sentences={self.sentences}: expected the names of one or two columns")

    def load(self, reading: Reading) -> dict[str, OwnSentences]:
        """See `DataSet`. The test part is always read, since a run must know the size of the largest part."""
        paths = user_data.find_parts(pathlib.Path(self.dir), tables.SUFFIXES)
        rows = {part: user_data.sift(self._read(path), part, "rows", self.malformed) for part, path in paths.items()}
        known = user_data.saved(reading.workdir)
        names = self._names(rows["train"], paths["train"]) if known is None else tuple(known["classes"])
        subwords = tokenizer.of_start(reading) or self._tokenizer(rows["train"], paths["train"], reading)
        sources = {}
        for part, read in rows.items():
            good = user_data.sift(_with_targets(read, names), part, "labels", self.malformed)
            texts, targets = zip(*good, strict=True)
            examples = list(zip(*map(subwords.encode, zip(*texts, strict=True)), strict=True))
            sources[part] = self._source(examples, targets, subwords, names)
            what = f"of {len(names)} classes ({user_data.listed(names)})" if names else "with a number"
            print(f"{part}: {len(examples):,} rows {what} in {paths[part]}")
        if "validation" not in sources:
            sources["train"], sources["validation"] = split(sources["train"], reading.seed, train_share=0.8)
        most = max(map(len, sources.values())) if known is None else known["num_examples"]
        if not reading.evaluates:
            sources.pop("test", None)
        for part in set(sources) - {"train"}:
            if len(sources[part]) > most:
                expected = f"expected at most {most:,}, the most that a part had when the run began"
                raise InputError(f"data.dir: the {part} part has {len(sources[part]):,} rows: {expected}")
        sources["validation"] = limited(sources["validation"], self.validation_limit)
        sequences.tell_what_is_cut(sources, "rows")
        return {part: dataclasses.replace(source, num_ids=most) for part, source in sources.items()}

    def _read(self, path: pathlib.Path) -> Iterator[Labelled | InputError]:
        """The sentences and the label of each row of a file, or its error."""
        columns = (*self.sentences, self.label)
        for where, row in tables.rows(path, columns):
            yield row if isinstance(row, InputError) else self._labelled(where, row)

    def _labelled(self, where: str, row: Mapping[str, Any]) -> Labelled | InputError:
        values = []
        for column in (*self.sentences, self.label):
            value = row.get(column)
            if isinstance(value, bool | int | float) and math.isfinite(value) and column == self.label:
                value = json.dumps(value)
            if not isinstance(value, str) or not value.strip():
                given = "is missing" if value is None else "is empty" if value == "" else f"is {json.dumps(value)}"
                return InputError(f'{where}: "{column}" {given}: expected a text')
            try:
                value.encode()
            except UnicodeEncodeError:
                return InputError(f'{where}: "{column}" is no UTF-8')
            values.append(value.strip())
        *texts, label = values
        return tuple(texts), re.sub(r"\A([+-]?\d+)\.0+\Z", r"\1", label), where

    def _names(self, rows: list[Labelled], path: pathlib.Path) -> tuple[str, ...]:
        """The names of the classes; (): labels are numbers."""
        numbers = [number for _, label, _ in rows if (number := _number(label)) is not None]
        are_numbers = 2 * len(numbers) > len(rows) and not all(number.is_integer() for number in numbers)
        if self.target == "number" or (self.target == "auto" and are_numbers):
            return ()
        return user_data.names_of((label for _, label, _ in rows), "train", path)

    def _metric(self, names: tuple[str, ...]) -> Metric:
        of_classes: tuple[Metric, ...] = ("accuracy", "matthews", *(["accuracy_f1"] if len(names) == 2 else []))
        allowed: tuple[Metric, ...] = of_classes if names else ("correlation",)
        if self.metric == "auto":
            return allowed[0]
        if self.metric not in allowed:
            what = f"{len(names)} classes" if names else "numbers"
            raise InputError(f'data.metric="{self.metric}": expected {", ".join(allowed)} with labels that are {what}')
        return self.metric

    def _tokenizer(self, rows: list[Labelled], path: pathlib.Path, reading: Reading) -> Tokenizer:
        """A tokenizer trained on the sentences of the train part."""
        lines = (text for texts, _, _ in rows for text in texts)
        part = "/".join((*self.sentences, self.label, self.malformed))
        return tokenizer.of_text(lines, [path], self.vocabulary_size, reading.cache, part=part)

    def _source(self, examples: list, targets: Any, subwords: Tokenizer, names: tuple[str, ...]) -> OwnSentences:
        arrays = np.array(targets, np.int32 if names else np.float32), np.zeros(len(examples), np.int32)
        more = {"names": names, "metric": self._metric(names), "num_parts": len(self.sentences)}
        return OwnSentences(examples, *arrays, self.length, subwords, **more)

    def classes_of(self, workdir: pathlib.Path) -> tuple[str, ...]:
        return tuple(user_data.of_run(workdir)["classes"])

    def empty(self, workdir: pathlib.Path) -> OwnSentences:
        names = self.classes_of(workdir)
        return self._source([], [], tokenizer.of_run(workdir), names)

    def files(self) -> Files:
        return found_below(self.dir, lambda: user_data.find_parts(pathlib.Path(self.dir), tables.SUFFIXES).values())


def _with_targets(rows: list[Labelled], names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float] | InputError]:
    """The sentences of each row, and its target: the number of its class, or the number; or an error."""
    number_of = user_data.numbering(names)
    for texts, label, where in rows:
        target = number_of(label) if names else _number(label)
        if target is None:
            number = f'label "{label}": expected a finite number, or data.target=class'
            expected = user_data.unknown(label, names) if names else number
            yield InputError(f"{where}: {expected}")
        else:
            yield texts, target


def _number(label: str) -> float | None:
    """The value of a label that is a finite number, without the underscores of Python; otherwise None."""
    with contextlib.suppress(ValueError):
        return number if math.isfinite(number := float(label)) and "_" not in label else None
    return None
