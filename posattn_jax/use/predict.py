"""`--mode=predict`: image files, arrays, or lines of text, in; JSON lines out."""

import io
import itertools
import json
import pathlib
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from posattn_jax.build import experiment
from posattn_jax.data import image_files
from posattn_jax.data.batches import evaluation_batches
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.use import trained


def predict(
    workdir: pathlib.Path, inputs: Sequence[str], lines: Iterable[bytes], output: io.TextIOBase, top: int = 1
) -> int:
    """Tells of every input its class, or of sentences that have a number, that; one line of JSON each.

      {"path": "a.png", "class": 3, "name": "cat", "probability": 0.81}   of an image; of a row of a .npz also "row": 0
      {"line": 1, "class": 0, "name": "entailment", "probability": 0.57}  of a line of sentences; or "score": 3.2

    With `top` > 1 a line has also "top", the likeliest classes with their names and probabilities. An input that cannot
    be read has a line on stderr, and no answer; the others have theirs.

    Args:
      workdir: the folder of a run that classifies images, arrays or sentences.
      inputs: files, and folders of files, of images; or .npz files.
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
    if run.is_of_sentences:
        asked, size = run.read_lines(lines, inputs), most
    elif inputs:
        asked, size = run.read_images(image_files.find(inputs)), 0
    else:
        what = "files or folders of images" if run.is_of_images else "files of arrays"
        raise InputError(f"--mode=predict: {what} are missing")
    experiment.keep_programs(run.config)
    tell, any_wrong = jax.jit(lambda params, batch: run.task.apply(params, batch)[0]), False
    while some := list(itertools.islice(asked, most)):
        size = size or len(some)
        good, wrong = trained.split_errors(some)
        any_wrong |= wrong
        if not good:
            continue
        (batch,) = evaluation_batches(run.examples([example for _, example in good]), size)  # padded: one program
        with doing(f"predicting {len(good):,} inputs"):
            logits = np.asarray(tell(run.params, batch), np.float64)
        for (name, _), row in zip(good, logits, strict=False):
            print(json.dumps(name | run.told(row, top)), file=output)
        output.flush()
    return 2 if any_wrong else 0
