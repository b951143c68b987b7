"""`--mode=export --format=hugging_face` (or timm, or big_vision): writes a run's weights in the format of others."""

import pathlib
from typing import Any

from posattn_jax.convert import bert_weights, vit_weights
from posattn_jax.convert.pixels import Scale
from posattn_jax.convert.vit_names import Format
from posattn_jax.data.images import GridImages
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.system import extras
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.use import trained


def export_weights(workdir: pathlib.Path, names: Format) -> pathlib.Path:
    """Writes the best epoch of a BERT, or of a vision transformer, to `WORKDIR/NAMES`; returns that folder.

    The names of classes, and the scale of pixels, are written where the format has a place for them.

    Raises:
      InputError: there is no such run, or its model has parts that the models of the format do not have.
    """
    extras.need("safetensors")
    run = trained.of_run(workdir, (Classification, SentencePrediction, MaskedLanguageModelling))
    folder = workdir / names
    labels: dict[str, Any] = {
        "hugging_face": {"id2label": dict(enumerate(run.names)), "label2id": {n: i for i, n in enumerate(run.names)}},
        "timm": {"label_names": list(run.names)},
    }
    config = labels.get(names, {}) if run.names else {}
    if run.is_of_sentences:
        if names != "hugging_face":
            raise InputError(f"--format={names}: a run of sentences: expected hugging_face")
        subwords = run.source.tokenizer
        special = {"pad_token_id": run.task.pad_id}
        path = bert_weights.save_bert(folder, run.task.model.encoder, run.params, **config | special)
        subwords.save(folder / subwords.file)
    elif isinstance(run.task.model, VisionTransformer) and isinstance(run.source, GridImages) and run.source.pool == 1:
        has_scale = names != "big_vision" and run.source.images.max_value is not None
        scale = Scale(run.source.mean, run.source.deviation) if has_scale else None
        path = vit_weights.save_vit(folder, run.task.model, run.params, run.source.grid_shape, names, scale, **config)
        if names == "big_vision":
            print(f"{path}: has no place for the names of the classes and the scale of pixels")
    else:
        raise InputError(f"--workdir={workdir}: expected a BERT, or a vision transformer of pixels that are not pooled")
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return folder
