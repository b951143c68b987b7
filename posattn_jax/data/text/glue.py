"""GLUE's tasks (Wang 2018). Reads their official files, or sets of tensorflow-datasets, and writes answers."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from posattn_jax.data.pipeline import prepared, user_data
from posattn_jax.data.pipeline.checksums import Files, below
from posattn_jax.data.pipeline.data_set import DataSet, Reading, limited
from posattn_jax.data.text import sequences, text_files
from posattn_jax.data.text.sequences import Metric, Sentences
from posattn_jax.data.tokenizers.tokenizer import Tokenizer, of_run, of_start
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_text

Part = Literal["train", "dev", "test"]


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
      folder: the folder of its files train.tsv, dev.tsv and test.tsv.
      num_asked: the number of examples of each of its test sets, which GLUE's site scores.
      sentences: the columns of its one or two sentences.
      label: the column of its label. Test files have none.
      labels: the labels in that column, in order; (): it has numbers from 0 to 5.
      metric: the metric of GLUE.
      columns: the columns of files without a header.
      parts: for each development and test set, the suffix of its file names and that of its file of answers.
      diagnostic: the official file of a further test set, which is answered if it exists.
      tfds_columns: the features of its sentences in tensorflow-datasets, if they have other names there.
    """

    folder: str
    num_asked: tuple[int, ...]
    sentences: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metric: Metric = "accuracy"
    columns: tuple[str, ...] = ()
    parts: tuple[tuple[str, str], ...] = (("", ""),)
    diagnostic: str = ""
    tfds_columns: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """The names of its files of answers, without .tsv, one per test set."""
        names = tuple(f"{self.folder}{suffix}" for _, suffix in self.parts)
        return (*names, "AX") if self.diagnostic else names


PAIR, BINARY, ENTAILMENT = ("sentence1", "sentence2"), ("0", "1"), ("entailment", "not_entailment")
TASKS = {
    "cola": GlueTask(
        "CoLA", (1063,), ("sentence",), "label", BINARY, "matthews", ("source", "label", "mark", "sentence")
    ),
    "sst2": GlueTask("SST-2", (1821,), ("sentence",), "label", BINARY),
    "mrpc": GlueTask("MRPC", (1725,), ("#1 String", "#2 String"), "Quality", BINARY, "accuracy_f1", tfds_columns=PAIR),
    "qqp": GlueTask("QQP", (390_965,), ("question1", "question2"), "is_duplicate", BINARY, "accuracy_f1"),
    "stsb": GlueTask("STS-B", (1379,), PAIR, "score", (), "correlation"),
    "mnli": GlueTask(
        "MNLI",
        (9796, 9847, 1104),
        PAIR,
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        parts=(("_matched", "-m"), ("_mismatched", "-mm")),
        diagnostic="diagnostic/diagnostic.tsv",
        tfds_columns=("premise", "hypothesis"),
    ),
    "qnli": GlueTask("QNLI", (5463,), ("question", "sentence"), "label", ENTAILMENT),
    "rte": GlueTask("RTE", (3000,), PAIR, "label", ENTAILMENT),
    "wnli": GlueTask("WNLI", (146,), PAIR, "label", BINARY),
}


@dataclasses.dataclass(frozen=True)
class Glue(DataSet):
    """A task of GLUE. Its tokenizer is that of the run that this one starts from.

    Attributes:
      name: the name of the task: see `TASKS`.
      dir: the folder with the folders of official files, or with sets that tensorflow-datasets has prepared.
      length: the length of a sequence in tokens.
      malformed: whether to refuse or to skip lines with wrong columns or labels (some lines of QQP's training file are
        broken). Malformed lines of a test set are always refused.
      validation_limit: use only the first so many examples of the validation part; 0: all.
    """

    name: str = "cola"
    dir: str = "data/glue"
    length: int = 128
    malformed: user_data.Malformed = "refuse"
    validation_limit: int = 0

    def __post_init__(self):
        if self.name not in TASKS:
            raise InputError(f'data.name="{self.name}": expected one of GLUE\'s tasks: {", ".join(TASKS)}')
        sequences.check_sizes(self.length)

    @property
    def task(self) -> GlueTask:
        """The description of the task."""
        return TASKS[self.name]

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in order; (): the task is to predict a number."""
        return self.task.labels

    def load(self, reading: Reading) -> dict[str, Sentences]:
        """See `DataSet`. "validation" is the development set, and a test set is "unlabelled"."""
        subwords = of_start(reading)
        if subwords is None:
            raise InputError("task.pretrained is empty: expected the folder of a run that this one starts from")
        parts = {"train": self.read("train", subwords), "validation": self.read("dev", subwords)}
        if reading.evaluates and self.has_test:
            parts["unlabelled"] = self.read("test", subwords)
        parts["validation"] = limited(parts["validation"], self.validation_limit)
        most = max(len(parts[name]) for name in ("train", "validation"))
        sequences.tell_what_is_cut(parts, "examples")
        return {name: dataclasses.replace(part, num_ids=most) for name, part in parts.items()}

    def read(self, part: Part, tokenizer: Tokenizer) -> Sentences:
        """Reads a part. Raises InputError if its files are missing or malformed, or have no example."""
        good = user_data.sift(self._labelled(part), part, "lines", self.malformed)
        texts, targets, groups = zip(*good, strict=True)
        examples = list(zip(*map(tokenizer.encode, zip(*texts, strict=True)), strict=True))
        return self._sentences(examples, targets, groups, tokenizer)

    def _labelled(self, part: Part) -> Iterator[tuple[tuple[str, ...], float, int] | InputError]:
        """The sentences, the target and the number of the file of each line of a part, or its error."""
        for group, rows in enumerate(self._rows(part)):
            for row in rows:
                if not isinstance(row, InputError):
                    yield *row, group
                elif part == "test":  # every test line needs an answer
                    raise row
                else:
                    yield row

    @property
    def has_test(self) -> bool:
        """Whether the files of its test set exist."""
        return self._prepared is not None or all(path.is_file() for path in self._paths("test"))

    def files(self) -> Files:
        if self._prepared is not None:
            paths = prepared.files(self._prepared)
        else:
            paths = [path for part in ("train", "dev", "test") for path in self._paths(part)]
        return below(pathlib.Path(self.dir), [path for path in (*paths, self._diagnostic) if path.is_file()])

    def empty(self, workdir: pathlib.Path) -> Sentences:
        return self._sentences([], [], [], of_run(workdir))

    def _sentences(self, examples: list, targets: Sequence, groups: Sequence, tokenizer: Tokenizer) -> Sentences:
        task = self.task
        arrays = np.array(targets, np.int32 if task.labels else np.float32), np.array(groups, np.int32)
        told = {"names": task.labels, "metric": task.metric, "num_parts": len(task.sentences)}
        return Sentences(examples, *arrays, self.length, tokenizer, **told)

    @property
    def _prepared(self) -> pathlib.Path | None:
        """The folder in which tensorflow-datasets has prepared the task, if there is one."""
        return prepared.find(f"glue/{self.name}", pathlib.Path(self.dir))

    @property
    def _diagnostic(self) -> pathlib.Path:
        return pathlib.Path(self.dir, self.task.diagnostic)

    def _paths(self, part: Part) -> list[pathlib.Path]:
        """The official files of a part."""
        folder, suffixes = pathlib.Path(self.dir, self.task.folder), [suffix for suffix, _ in self.task.parts]
        return [folder / f"{part}{suffix}.tsv" for suffix in (suffixes if part != "train" else [""])]

    def _rows(self, part: Part) -> Iterator[Iterator[Any]]:
        """The rows of each file of a part, as `_read` yields them."""
        task = self.task
        for path in self._paths(part):
            if self._prepared is not None:
                split = path.stem.replace("dev", "validation")
                yield prepared.sentences(self._prepared, split, task.tfds_columns or task.sentences)
            else:
                yield _read(task, path, labelled=part != "test")
        if part == "test" and self._diagnostic.is_file():
            yield _read(task, self._diagnostic, labelled=False)


def _read(task: GlueTask, path: pathlib.Path, labelled: bool) -> Iterator[tuple[tuple[str, ...], float] | InputError]:
    """The sentences and the target of each line, or its error."""
    if not path.is_file():
        raise InputError(f"{path} is missing: expected GLUE's official files below data.dir, or a set that is prepared")
    with path.open("rb") as file:
        lines = list(text_files.decoded(file, str(path)))
    has_header = not (task.columns and labelled)
    if has_header and lines and isinstance(lines[0], InputError):
        raise lines[0]
    columns = (str(lines[0]) if lines else "").split("\t") if has_header else list(task.columns)
    needed = (*task.sentences, *((task.label,) if labelled else ()))
    missing = [column for column in needed if column not in columns]
    if missing:
        raise InputError(f'{path}: line 1: no column "{missing[0]}" (it has {", ".join(columns)})')
    for number, line in enumerate(lines[has_header:], start=1 + has_header):
        if isinstance(line, InputError):
            yield line
            continue
        cells = line.split("\t")
        if len(cells) != len(columns):
            yield InputError(f"{path}: line {number}: {len(cells)} columns, expected {len(columns)}")
            continue
        row = dict(zip(columns, cells, strict=True))
        target = 0.0
        if labelled:
            try:
                target = _target(task, row[task.label])
            except ValueError as error:
                yield InputError(f'{path}: line {number}: {task.label}="{row[task.label]}": {error}')
                continue
        yield tuple(row[column] for column in task.sentences), target


def _target(task: GlueTask, text: str) -> float:
    """The index of a label, or the score. Raises ValueError for anything else."""
    if task.labels:
        if text not in task.labels:
            raise ValueError(f"expected {', '.join(task.labels)}")
        return float(task.labels.index(text))
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 5:
        raise ValueError("expected a number from 0 to 5")
    return score


def write_answers(name: str, outputs: np.ndarray, groups: np.ndarray, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the answers to a task's test sets in the format of GLUE's site: CoLA.tsv, MNLI-m.tsv, ...

    `outputs` [n] are indices of labels, or scores, which are clipped to 0 to 5. `groups` [n] are the numbers of the
    test sets to which they belong.
    """
    task, paths = TASKS[name], []
    for group, stem in enumerate(task.answers):
        own: Any = outputs[groups == group]
        if not len(own):  # there is no diagnostic file
            continue
        answers = (
            [task.labels[round(each)] for each in own] if task.labels else [f"{x:.3f}" for x in np.clip(own, 0, 5)]
        )
        text = "index\tprediction\n" + "".join(f"{number}\t{answer}\n" for number, answer in enumerate(answers))
        paths.append(folder / f"{stem}.tsv")
        write_text(paths[-1], text)
    return paths
