"""`--mode=predict`: image files, or lines of text, in; JSON lines out."""

import io
import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from posattn_jax.data import image_files
from posattn_jax.data.batches import Source, evaluation_batches
from posattn_jax.system.errors import InputError
from posattn_jax.train import compiled
from posattn_jax.use import trained
from posattn_jax.use.trained import TrainedRun

Asked = dict[str, Any]  # what names an example in its answer


def predict(
    workdir: pathlib.Path, inputs: Sequence[str], lines: Iterable[bytes], output: io.TextIOBase, top: int = 1
) -> int:
    """Tells of every input its class, or of a task of GLUE that asks for one, its number; one line of JSON each.

      {"path": "a.png", "class": 3, "name": "cat", "probability": 0.81}   of an image
      {"line": 1, "class": 0, "name": "entailment", "probability": 0.57}  of a line of sentences; or "score": 3.2

    With `top` > 1 a line has also "top", the likeliest classes with their names and probabilities. An input that cannot
    be read has a line on stderr, and no answer; the others have theirs.

    Args:
      workdir: the folder of a run that classifies images or sentences.
      inputs: files, and folders of files, of images.
      lines: of a run of sentences: UTF-8, of pairs with a tab between the two.
      output: where the answers are written, in the order of the inputs.
      top: of how many classes the probabilities are told.

    Returns:
      The exit code: 0, or 2 where an input could not be read.

    Raises:
      InputError: no such run, or nothing to be told.
    """
    if top < 1:
        raise InputError(f"--top={top}: expected at least 1")
    run = trained.of_run(workdir)
    if top > 1 and not run.names:
        raise InputError(f"--top={top}: this run tells no classes but a number")
    most = run.config.train.eval_batch_size
    if run.is_of_sentences():
        if inputs:
            raise InputError(f'unexpected argument "{inputs[0]}": this run reads sentences, from its standard input')
        asked, make = _of_lines(run, lines), run.sentences
    elif run.is_of_images():
        if not inputs:
            raise InputError("--mode=predict: files or folders of images are missing")
        found = image_files.find(inputs)
        asked, make = _of_files(run, found), lambda images: run.images(np.stack(images))
        most = min(most, len(found))
    else:
        raise InputError(f"--workdir={workdir}: a run of clips: expected one of images or of sentences")
    compiled.keep(pathlib.Path(run.config.cache_dir) / "compiled")
    return _answer(run, asked, make, most, output, top)


def _of_files(run: TrainedRun, found: Iterable[pathlib.Path | InputError]) -> Iterator[tuple[Asked, Any] | InputError]:
    for each in found:
        if isinstance(each, InputError):
            yield each
            continue
        try:
            yield {"path": str(each)}, run.read_image(each)
        except InputError as error:
            yield error


def _of_lines(run: TrainedRun, lines: Iterable[bytes]) -> Iterator[tuple[Asked, Any] | InputError]:
    for number, each in enumerate(run.read_lines(lines), start=1):
        yield each if isinstance(each, InputError) else ({"line": number}, each)


def _answer(
    run: TrainedRun,
    asked: Iterator[tuple[Asked, Any] | InputError],
    make: Callable[[list[Any]], Source],
    batch_size: int,
    output: io.TextIOBase,
    top: int,
) -> int:
    """Answers a batch at a time, in order; the last is padded, so that one program is compiled."""
    tell, exit_code = jax.jit(lambda params, batch: run.task.apply(params, batch)[0]), 0
    while some := list(itertools.islice(asked, batch_size)):
        good = []
        for each in some:
            if isinstance(each, InputError):
                print(f"posattn_jax: error: {each}", file=sys.stderr)
                exit_code = 2
            else:
                good.append(each)
        if not good:
            continue
        (batch,) = evaluation_batches(make([example for _, example in good]), batch_size)
        for (name, _), row in zip(good, np.asarray(tell(run.params, batch), np.float64), strict=False):
            print(json.dumps(name | run.told(row, top)), file=output)
        output.flush()
    return exit_code
