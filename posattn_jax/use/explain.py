"""`--mode=explain`: an HTML page, in one file, that shows what a run attends to in images or sentences."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.analysis import attention_page
from posattn_jax.axes import Array
from posattn_jax.data.images import GridImages, image_files
from posattn_jax.nn.terms import PositionalBias, by_name
from posattn_jax.ops import span
from posattn_jax.system.doing import doing
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_text
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.tasks.tagging import Tagging
from posattn_jax.tasks.word_order import WordOrder
from posattn_jax.use import trained
from posattn_jax.use.trained import Asked, TrainedRun

MOST_BYTES = 24 * 2**20  # the most bytes of weights on a page


def explain(
    workdir: pathlib.Path, inputs: Sequence[str], lines: Iterable[bytes], layers: Sequence[str], heads: Sequence[str]
) -> int:
    """Writes `WORKDIR/attention.html`.

    Args:
      workdir: the folder of a run that classifies images, sentences or words, or of a masked language model.
      inputs: image files, and folders of image files. If empty: the validation image that the run saved.
      lines: for a run of sentences, the sentences in UTF-8, one per line. A tab separates the two of a pair.
      layers, heads: the numbers of the layers and heads to show, from 1. If empty: all.

    Returns:
      The exit code: 0; or 2 if an input could not be read, and then the page has the others.

    Raises:
      InputError: there is no such run, no input, or no such layer or head, or the page would exceed 24 MiB.
    """
    run = trained.of_run(workdir, (Classification, SentencePrediction, WordOrder, Tagging, MaskedLanguageModelling))
    num_layers, num_heads = len(run.task.blocks), run.task.blocks[0].attention.num_heads
    chosen = _chosen("layers", layers, num_layers), _chosen("heads", heads, num_heads)
    if run.is_of_sentences:
        asked, shown = list(run.read_lines(lines, inputs)), (1, run.task.length)
    elif run.is_of_images and isinstance(run.source, GridImages):
        asked = list(run.read_images(image_files.find(inputs))) if inputs else _kept_image(run)
        shown = _shown_grid(run)
    else:
        raise InputError(f"--workdir={workdir}: a run of clips or points: expected one of images or of sentences")
    if not asked:
        raise InputError("--mode=explain: nothing to explain: expected image files, or sentences on standard input")
    good, _ = trained.split_errors(asked)
    if not good:
        return 2
    _check_size(run, len(good), *map(len, chosen))
    tells = not isinstance(run.task, MaskedLanguageModelling)
    apply = run.task.apply if tells else run.task.encode
    look = jax.jit(lambda params, batch: apply(params, batch, return_weights=True))
    with doing(f"looking at {len(good):,} inputs"):
        weights, examples = zip(*(_example(run, look, *each, *chosen) for each in good), strict=True)
        of_layers = _layers(run, weights, *chosen)
    what = run.data.name if tells else "masked tokens"
    data = {
        "kind": "text" if run.is_of_sentences else "image",
        "about": f"Run {workdir.name}, best epoch, at step {run.step}; layers: {num_layers}, heads: {num_heads}.",
        "grid": run.task.grid_shape,
        "shown": shown,
        "classTokens": _num_class_tokens(run),
        "heads": [head + 1 for head in chosen[1]],
        "layers": of_layers,
        "examples": examples,
    }
    text = attention_page.compose(f"What attention attends to: {what}", data)
    path = workdir / "attention.html"
    write_text(path, text)
    print(f"{path}: {len(good)} of {len(asked)} inputs, {len(text) / 2**20:.1f} MiB")
    return 2 if len(good) < len(asked) else 0


def _chosen(name: str, given: Sequence[str], number: int) -> list[int]:
    """The indices, from 0, of the chosen layers or heads, of which there are `number`."""
    if not given:
        return list(range(number))
    if not all(each.isdecimal() and 1 <= int(each) <= number for each in given):
        raise InputError(f"--{name}={','.join(given)}: expected numbers from 1 to {number}")
    return sorted({int(each) - 1 for each in given})


def _check_size(run: TrainedRun, num_inputs: int, num_layers: int, num_heads: int) -> None:
    """Raises InputError if the page would be too large for the browser of a phone."""
    num_tokens = int(np.prod(run.task.grid_shape)) + _num_class_tokens(run)
    size = num_inputs * attention_page.num_bytes(num_tokens, num_heads, num_layers)
    if size > MOST_BYTES:
        raise InputError(
            f"{num_inputs} inputs, {num_layers} layers and {num_heads} heads of {num_tokens} tokens take "
            f"{size / 2**20:.0f} MiB: expected at most {MOST_BYTES / 2**20:.0f}: choose --layers, --heads, fewer inputs"
        )


def _num_class_tokens(run: TrainedRun) -> int:
    return int(getattr(run.task.model, "pooling", "") == "class")


def _shown_grid(run: TrainedRun) -> tuple[int, int]:
    """The rows and columns in which the tokens of an image are shown."""
    grid = tuple(run.task.grid_shape)
    if len(grid) == 2:
        return grid
    width = run.source.images.images.shape[2] // run.source.pool  # the image is a sequence of lines of pixels
    patch = run.source.grid_shape[0] // grid[0]
    if width % patch:
        raise InputError(f"patches of {patch} pixels, which do not divide lines of {width}, cannot be shown")
    return grid[0] * patch // width, width // patch


def _kept_image(run: TrainedRun) -> list[Asked]:
    """The validation image [h w c] uint8 that the run saved, if there is one."""
    path, pool = run.workdir / "positions.npz", run.source.pool
    if not path.exists():
        return []
    with np.load(path, allow_pickle=False) as file:  # each pooled pixel is repeated to the size before pooling
        pixels = np.rint(file["image"] * 255).astype(np.uint8).repeat(pool, 0).repeat(pool, 1)
    return [({"path": "a validation image"}, pixels)]


def _example(
    run: TrainedRun, look: Callable, name: dict[str, Any], given: Any, layers: Sequence[int], heads: Sequence[int]
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The weights of each layer [h t s], and the page's data of an input. Padding of a sentence is left out."""
    batch = {field: jnp.asarray(array) for field, array in run.examples([given]).batch(np.arange(1)).items()}
    logits, intermediates = look(run.params, batch)
    weights = [np.asarray(intermediates[f"block_{i}"]["weights"][0], np.float32)[list(heads)] for i in layers]
    row, targets = np.asarray(logits[0], float), np.asarray(batch["targets"])[0] if "targets" in batch else None
    prediction = (
        "" if isinstance(run.task, MaskedLanguageModelling) else _sentence(run.prediction(row, targets=targets))
    )
    if not run.is_of_sentences:
        return weights, attention_page.example(name["path"], prediction, weights, picture=given)
    ids = np.asarray(batch["tokens"][0])
    num = int((ids != run.task.pad_id).sum())
    tokens = run.source.tokenizer.pieces(ids[:num])
    weights = [each[:, :num, :num] for each in weights]
    return weights, attention_page.example(" | ".join(given), prediction, weights, tokens=tokens)


def _sentence(prediction: dict[str, Any]) -> str:
    if "tags" in prediction:
        return f"The model predicts: {' '.join(prediction['tags'])}."
    if "score" in prediction:
        return f"The model predicts: {prediction['score']:.3f}."
    return f"The model predicts: {prediction['name']}, with probability {prediction['probability']:.3f}."


def _layers(
    run: TrainedRun, weights: Sequence[list[np.ndarray]], layers: Sequence[int], heads: Sequence[int]
) -> list[dict[str, Any]]:
    """For each chosen layer, functions of the offset in the chosen heads. `weights` are those of every input."""
    intermediates = jax.jit(run.task.describe)(run.params)
    grid, cls = tuple(run.task.grid_shape), _num_class_tokens(run)
    found = []
    for at, i in enumerate(layers):
        out, attention = intermediates[f"block_{i}"], run.task.blocks[i].attention
        mean = attention_page.mean_by_offset([each[at][:, cls:, cls:] for each in weights], grid)
        kernels, half = [("Mean weight", "mean over all pairs of these inputs at this distance", mean)], None
        alone = _scores_of_positions(run, i, out)
        if alone is not None:
            what = "the part of a score that depends only on the distance"
            kernels.append(("Scores of positions alone", what, np.asarray(alone, float)[list(heads)]))
        if "sigma" in out:
            reach = span.half_span(out["sigma"], attention.span.threshold, grid)
            half = _of_heads(reach, 1, attention.num_heads)[list(heads)].tolist()
            added = "its logarithm is added"
            if "log_window" in out:
                window = jnp.moveaxis(jnp.exp(out["log_window"]), -1, 0)
                kernels.append(("Window of the span", added, np.asarray(window, float)[list(heads)]))
            elif attention.span.mode != "box":
                gaussian = _of_heads(span.gaussian(grid, out["sigma"]), len(grid), attention.num_heads)[list(heads)]
                what = "scores are multiplied by it" if attention.span.mode == "multiply" else added
                kernels.append(("Gaussian of the span", what, gaussian))
        of_layer = [attention_page.kernel(*each) for each in kernels]
        found.append({"number": i + 1, "halfSpans": half, "kernels": of_layer})
    return found


def _of_heads(array: Array, num_dims: int, num_heads: int) -> np.ndarray:
    """Broadcasts an array that each head has, or that all heads share, to [h, ...]."""
    wide = np.asarray(array, float)
    wide = wide[None] if wide.ndim == num_dims else wide
    return np.broadcast_to(wide, (num_heads, *wide.shape[1:]))


def _scores_of_positions(run: TrainedRun, layer: int, out: dict[str, Any]) -> Array | None:
    """scale * v . E + beta [h, *R], before the span's Gaussian; None if the layer has neither v nor beta."""
    attention, looped = run.task.blocks[layer].attention, run.config.model.scan_layers
    scores = jnp.moveaxis(out["relative_bias"], -1, 0) if "relative_bias" in out else None
    bias = next((name for name, term in by_name(attention.terms).items() if isinstance(term, PositionalBias)), None)
    if bias is None or "relative_encoding" not in out:
        return scores
    params = run.params["encoder"] if run.is_of_sentences else run.params
    own = params["blocks_0" if looped else f"blocks_{layer}"]["attention"][bias]["v"]
    own = own[layer] if looped else own
    scale = 1 / np.sqrt(own.shape[-1]) if attention.scale is None else attention.scale
    added = scale * jnp.einsum("hd,...hd->h...", own, out["relative_encoding"])
    return added if scores is None else scores + added
