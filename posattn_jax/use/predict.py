"""`--mode=predict`: reads image files, arrays or lines of text, and writes predictions as JSON lines."""

import io
import itertools
import json
import pathlib
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from posattn_jax.config import experiment
from posattn_jax.data.images import image_files
from posattn_jax.data.pipeline.batches import evaluation_batches
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import cache_folder
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.tagging import Tagging
from posattn_jax.use import trained


def predict(
    workdir: pathlib.Path, inputs: Sequence[str], lines: Iterable[bytes], output: io.TextIOBase, top: int = 1
) -> int:
    """Predicts the class of every input, or the number if the run predicts numbers; writes one JSON line for each.

      {"path": "a.png", "class": 3, "name": "cat", "probability": 0.81}   for an image; with "row": 0 for one in a .npz
      {"line": 1, "class": 0, "name": "entailment", "probability": 0.57}  for a line of sentences; or "score": 3.2
      {"line": 1, "tags": ["DET", "ADJ", "NOUN"]}                         for a run of tags, a tag for each word

    With `top` > 1, a line also has "top", the likeliest classes with their names and probabilities. An input that
    cannot be read gives a message on stderr and no prediction. The others are predicted all the same.

    Args:
      workdir: the folder of a run that classifies images, arrays or sentences.
      inputs: image files and folders of image files, or .npz files.
      lines: for a run of sentences, the sentences in UTF-8, one per line. A tab separates the two of a pair.
      output: where the predictions are written, in the order of the inputs.
      top: the number of classes whose probabilities are written.

    Returns:
      The exit code: 0, or 2 if an input could not be read.

    Raises:
      InputError: there is no such run, it has no head, or there is no input.
    """
    if top < 1:
        raise InputError(f"--top={top}: expected at least 1")
    run = trained.of_run(workdir)
    if isinstance(run.task, Classification) and not run.names:
        raise InputError(f"--workdir={workdir}: its model has no head: expected one that was trained on classes")
    if top > 1 and (not run.names or isinstance(run.task, Tagging)):
        what = "a tag for each word" if run.names else "a number"
        raise InputError(f"--top={top}: expected 1, as this run predicts {what}, not classes")
    most = run.config.train.eval_batch_size
    if run.is_of_sentences:
        asked, size = run.read_lines(lines, inputs), most
    elif inputs:
        asked, size = run.read_images(image_files.find(inputs)), 0
    else:
        what = "files or folders of images" if run.is_of_images else "files of arrays"
        raise InputError(f"--mode=predict: {what} are missing")
    experiment.keep_programs(cache_folder())
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
        targets = np.asarray(batch["targets"]) if isinstance(run.task, Tagging) else [None] * len(logits)
        for (name, _), row, own in zip(good, logits, targets, strict=False):
            print(json.dumps(name | run.prediction(row, top, own)), file=output)
        output.flush()
    return 2 if any_wrong else 0
