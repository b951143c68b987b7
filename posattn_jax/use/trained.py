"""Reads a trained run from its folder: its config, its model with the parameters of its best epoch, its kind of data.

The training data need not exist any more. Only the description of a set prepared by tensorflow-datasets must.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from posattn_jax.config import experiment
from posattn_jax.config.names import short
from posattn_jax.config.parts import build, set_all
from posattn_jax.config.saved import check_version
from posattn_jax.data.images import GridImages, ImageSet, Points, arrays, image_files
from posattn_jax.data.pipeline.data_set import DataSet
from posattn_jax.data.text import text_files
from posattn_jax.data.text.characters import ByteSequences
from posattn_jax.data.text.corpus import SentencePairs
from posattn_jax.data.text.sequences import Sentences
from posattn_jax.data.text.tagged import TaggedSequences
from posattn_jax.data.text.words import WordSequences
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import config_of_run
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.tasks.tagging import Tagging
from posattn_jax.tasks.word_order import WordOrder
from posattn_jax.train import pretrained

OfSentences = Sentences | SentencePairs | WordSequences | TaggedSequences
Source = ByteSequences | GridImages | Points | OfSentences
Asked = tuple[dict[str, Any], Any] | InputError  # the name of an example, and the example; or its error


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A trained model and what is needed to use it.

    Attributes:
      workdir: the folder of the run.
      config: the config of its training, except for the implementation of attention and for `mesh.grid`, which is 1.
      task: the task with its model. Its class, and that of `source`, are known to who has asked for them.
      params: the parameters of the best epoch.
      step: the step of the best epoch.
      data: the data set of its training.
      source: an empty source of the same kind as in training.
    """

    workdir: pathlib.Path
    config: ConfigDict
    task: Any
    params: Any
    step: int
    data: DataSet
    source: Any

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, in order; () if the run predicts a number, or tokens."""
        return self.task.classes or self.data.classes_of(self.workdir)

    @property
    def is_of_sentences(self) -> bool:
        """Whether its inputs are lines of text."""
        return isinstance(self.source, OfSentences)

    @property
    def is_of_images(self) -> bool:
        """Whether its inputs can be image files."""
        return isinstance(self.source, GridImages | Points) and self.source.images.are_pictures

    def examples(self, given: Sequence[Any]) -> Source:
        """A source of the given examples: images [*sides c], uint8 or float as in training, or sentences or pairs."""
        nothing = np.zeros(len(given), np.int32)
        if isinstance(self.source, GridImages | Points):
            max_value = self.source.images.max_value and 255  # image files have 255, whatever the training data had
            images = ImageSet(np.stack(given), nothing, len(self.names), max_value)
            return dataclasses.replace(self.source, images=images)
        if isinstance(self.source, TaggedSequences):
            words = [sentence.split() for (sentence,) in given]
            return self.source.of((each, [0] * len(each)) for each in words)
        subwords = self.source.tokenizer
        examples = [subwords.encode(parts) for parts in given]
        return Sentences(examples, nothing, nothing, self.source.length, subwords)

    def read_images(self, found: Iterable[pathlib.Path | InputError]) -> Iterator[Asked]:
        """Reads what `image_files.find` found: {"path"} and the image [*sides c], or an error, for each file.

        Each row of a .npz file is an image with {"path", "row"}.
        """
        assert isinstance(self.source, GridImages | Points)
        like = self.source.images
        for each in found:
            try:
                if isinstance(each, InputError):
                    yield each
                elif each.suffix == arrays.SUFFIX:
                    for row, array in enumerate(arrays.read_rows(each, like)):
                        yield array if isinstance(array, InputError) else ({"path": str(each), "row": row}, array)
                elif self.is_of_images:
                    yield {"path": str(each)}, image_files.read(each, *like.images.shape[1:])
                else:
                    yield InputError(f"{each}: this run reads arrays, in files whose names end with {arrays.SUFFIX}")
            except InputError as error:
                yield error

    def read_lines(self, lines: Iterable[bytes], inputs: Sequence[str]) -> Iterator[Asked]:
        """Reads lines: {"line"} and the one or two sentences, separated by a tab, or an error, for each line.

        For a run of single sentences, a tab is white space, as in training.

        Raises:
          InputError: there are `inputs`, which are for image files.
        """
        if inputs:
            raise InputError(f'unexpected argument "{inputs[0]}": this run reads sentences, from its standard input')
        assert isinstance(self.source, OfSentences)
        numbers = (self.source.num_parts,) if self.source.num_parts else (1, 2)
        what = "sentence" if numbers == (1,) else "sentences, a tab between them"
        expected = f"{' or '.join(map(str, numbers))} {what}"
        for number, line in enumerate(text_files.decoded(lines, "input"), start=1):
            if isinstance(line, InputError):
                yield line
                continue
            cells = [line] if numbers == (1,) else line.split("\t")
            parts = tuple(map(text_files.normalised, cells))
            wrong = len(parts) not in numbers or not all(parts)
            yield InputError(f"input: line {number}: expected {expected}") if wrong else ({"line": number}, parts)

    def prediction(self, logits: np.ndarray, top: int = 1, targets: Any = None) -> dict[str, Any]:
        """The prediction from logits [k] in float64: the class with its name and probability, or the "score".

        With `top` > 1, also "top": the `top` likeliest classes. From logits [t k] and the `targets` [t] of their
        example, "tags": the likeliest tag of each word, up to where the sentence is cut.
        """
        if isinstance(self.task, Tagging):
            assert targets is not None
            return {"tags": [self.names[i] for i in logits[targets >= 0].argmax(-1)]}
        if not self.names:
            return {"score": round(float(logits[0]), 6)}
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        classes = [
            {"class": int(i), "name": self.names[i], "probability": round(float(probabilities[i]), 6)}
            for i in np.argsort(-probabilities, kind="stable")[:top]
        ]
        return classes[0] | ({"top": classes} if top > 1 else {})


def split_errors(asked: Iterable[Asked]) -> tuple[list[tuple[dict[str, Any], Any]], bool]:
    """The examples, and whether there were errors. Each error is printed on stderr."""
    given = list(asked)
    errors = [each for each in given if isinstance(each, InputError)]
    for error in errors:
        print(f"posattn_jax: error: {error}", file=sys.stderr)
    return [each for each in given if not isinstance(each, InputError)], bool(errors)


def read_config(workdir: pathlib.Path, tasks: Sequence[type]) -> ConfigDict:
    """The config of a run of one of these tasks. Raises InputError if there is no such run, or it is damaged."""
    saved = config_of_run(workdir)
    check_version(saved, workdir)
    config = ConfigDict(saved)
    for group in ("train", "mesh"):  # whose fields are read, and built by none of these tasks
        build(saved.get(group) or {}, group)
    if not issubclass(experiment.task_class(config), tuple(tasks)):
        expected = " or ".join(task.__name__ for task in tasks)
        raise InputError(f"--workdir={workdir}: a run of task {short(config.task.kind)}: expected {expected}")
    return config


def of_run(
    workdir: pathlib.Path,
    tasks: Sequence[type] = (Classification, SentencePrediction, WordOrder, Tagging),
    implementation: str = "auto",
) -> TrainedRun:
    """Reads the best epoch of a run.

    Args:
      workdir: the run folder.
      tasks: the expected tasks.
      implementation: that of attention, which does not change the results.

    Raises:
      InputError: there is no run of these tasks, it has no checkpoint, or an earlier version wrote it.
    """
    config = read_config(workdir, tasks)
    config.mesh.grid = 1
    set_all(config.model, implementation=implementation)
    with doing("reading the run"):
        data = experiment.data_set(config)
        source = data.empty(workdir)
        task = experiment.make_task(config, source)
        params, step = pretrained.read(workdir)
        params = jax.tree.map(jnp.asarray, pretrained.named(params, task))
    return TrainedRun(workdir, config, task, params, step, data, source)
