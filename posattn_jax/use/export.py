"""`--mode=export`: writes a classifier as one StableHLO file, which needs neither this package nor Flax.

WORKDIR/exported/model.stablehlo  model.json  load.py, and for a run of sentences its tokenizer
"""

import dataclasses
import hashlib
import pathlib
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from posattn_jax.data.images import GridImages
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.models.stack import with_tables
from posattn_jax.system import extras
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_atomically, write_json
from posattn_jax.use import exported, trained
from posattn_jax.use.trained import TrainedRun

PLATFORMS = ("cpu", "cuda", "tpu")
MODEL_FILE = "model.stablehlo"
IMAGES = (
    "--mode=predict reads files as follows: the largest central part of these proportions, resized (bicubic); grey by "
    "ITU-R 601-2 luma; transparent pixels on black; divided by 255"
)


def export(workdir: pathlib.Path) -> pathlib.Path:
    """Exports the best epoch of a run that classifies images, clips or sentences; returns the folder.

    The file contains the parameters, and tables instead of the SIRENs and sinusoids that compute encodings of the grid.
    It takes batches of any size, on each of `PLATFORMS`. Attention is always computed by "dense", because the
    others depend on the platform or on the batch size.

    Raises:
      InputError: there is no such run, or its model is one of points.
    """
    extras.need("flatbuffers")  # with which jax writes
    run = trained.of_run(workdir, implementation="dense")
    if not (run.is_of_sentences or isinstance(run.source, GridImages)):
        raise InputError(f"--workdir={workdir}: data.kind=PointClouds is not exported: expected a grid")
    inputs = _inputs(run)
    with doing("exporting"):
        whole = _exported(run, inputs)
    data, folder = bytes(whole.serialize()), workdir / "exported"
    about = {
        "file": MODEL_FILE,
        "sha256": hashlib.sha256(data).hexdigest(),
        "format": f"StableHLO as jax.export {metadata.version('jax')} serializes it",
        "calling_convention_version": whole.calling_convention_version,
        "platforms": list(whole.platforms),
        "inputs": inputs,
        "outputs": [{"name": "logits", "shape": ["b", *whole.out_avals[0].shape[1:]], "dtype": "float32"}],
        "classes": list(run.names),  # none: the one output is a number
        "task": type(run.task).__name__,
        "data": run.data.name,
        "step": run.step,
    }
    about |= _tokens(run, folder) if run.is_of_sentences else {"images": IMAGES} if run.is_of_images else {}
    for name, content in ((MODEL_FILE, data), ("load.py", pathlib.Path(exported.__file__).read_bytes())):
        write_atomically(folder / name, lambda file, content=content: file.write(content))
    write_json(folder / "model.json", about)  # last: it says which model is whole
    print(f"{folder / MODEL_FILE}: {len(data) / 2**20:.1f} MiB for {', '.join(whole.platforms)}, batches of any size")
    with doing("comparing the exported file with the module"):
        difference = _difference(run, folder, inputs)
    print(f"logits differ from the module's by {difference:.1e} at most (2 random inputs)")
    return folder


def _inputs(run: TrainedRun) -> list[dict[str, Any]]:
    """The name, shape, dtype and meaning of each input."""
    if run.is_of_sentences:
        shape = ["b", run.source.length]
        ids = "ids of tokens: [CLS] first [SEP] second [SEP], or one sentence alone, then [PAD]"
        return [
            {"name": "tokens", "shape": shape, "dtype": "int32", "is": ids},
            {"name": "segments", "shape": shape, "dtype": "int32", "is": "1 in the second part, its [SEP] too"},
        ]
    what = "brightness from 0 (black) to 1 (white); all other preprocessing is part of the program"
    if run.source.images.max_value is None:
        what = "values as in the data"
    return [{"name": "pixels", "shape": ["b", *run.source.images.images.shape[1:]], "dtype": "float32", "is": what}]


def _tokens(run: TrainedRun, folder: pathlib.Path) -> dict[str, Any]:
    """Describes the tokenizer, whose model is copied into the folder."""
    subwords = run.source.tokenizer
    subwords.save(folder / subwords.file)
    return {
        "tokenizer": {
            "file": subwords.file,
            "sha256": subwords.sha256,
            "reads": subwords.reads,
            "special": dict(zip(tokenizer.SPECIAL_NAMES, subwords.specials, strict=True)),
            "first": subwords.id_offset,  # added to the ids of its file
        }
    }


def _logits(run: TrainedRun):
    """A function of one example's inputs, in the order of `_inputs`."""

    def of_sentences(tokens, segments):
        return run.task.apply(run.params, {"tokens": tokens[None], "segments": segments[None]})[0][0]

    def of_images(pixels):
        images = run.source.images
        source = dataclasses.replace(run.source, images=dataclasses.replace(images, max_value=images.max_value and 1))
        batch = source.read({"images": pixels[None], "labels": jnp.zeros(1, jnp.int32)})
        return run.task.apply(run.params, batch)[0][0]

    return of_sentences if run.is_of_sentences else of_images


def _exported(run: TrainedRun, inputs: list[dict[str, Any]]) -> jax_export.Exported:
    """The exported model with its tables, for any number of examples: the program of one example, vmapped."""
    intermediates = jax.jit(run.task.describe)(run.params)
    if run.is_of_sentences:
        encoder, own = with_tables(run.task.model.encoder, run.params["encoder"], intermediates)
        model, params = run.task.model.clone(encoder=encoder), {**run.params, "encoder": own}
    else:
        model, params = with_tables(run.task.model, run.params, intermediates)
    folded = dataclasses.replace(run, task=dataclasses.replace(run.task, model=model), params=params)
    (number,) = jax_export.symbolic_shape("b")
    shapes = [jax.ShapeDtypeStruct((number, *each["shape"][1:]), each["dtype"]) for each in inputs]
    return jax_export.export(jax.jit(jax.vmap(_logits(folded))), platforms=PLATFORMS)(*shapes)


def _difference(run: TrainedRun, folder: pathlib.Path, inputs: list[dict[str, Any]]) -> float:
    """The largest difference between the logits of the written file and those of the module."""
    rng, examples = np.random.default_rng(0), []
    for each in inputs:
        shape = (2, *each["shape"][1:])
        whole = {"tokens": run.source.tokenizer.vocabulary_size, "segments": 2} if run.is_of_sentences else {}
        values = rng.integers(0, whole[each["name"]], shape) if whole else rng.random(shape)
        examples.append(values.astype(each["dtype"]))
    ours = jax.jit(jax.vmap(_logits(run)))(*examples)
    return float(jnp.abs(exported.load(folder)(*examples) - ours).max())
