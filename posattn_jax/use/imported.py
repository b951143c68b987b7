"""`--mode=import`: writes weights of others as a run folder, for fine-tuning, predict, explain and export.

WORKDIR/config.json  checkpoints/0  own_data.json  tokenizer.json: a run without updates, of a model that others trained
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posattn_jax.config import experiment, parts
from posattn_jax.config.names import name_of
from posattn_jax.config.parts import part
from posattn_jax.convert import bert_weights, files, pixels, vit_weights
from posattn_jax.convert.files import CONFIG, Weights
from posattn_jax.data.images.image_folder import ImageFolder
from posattn_jax.data.pipeline import user_data
from posattn_jax.data.text.corpus import Text
from posattn_jax.data.text.sentence_files import SentenceFiles
from posattn_jax.data.tokenizers import tokenizer, tokenizer_json
from posattn_jax.data.tokenizers.tokenizer import Tokenizer
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json
from posattn_jax.tasks.classification import Classification
from posattn_jax.tasks.masked_lm import MaskedLanguageModelling
from posattn_jax.tasks.sentence_prediction import SentencePrediction
from posattn_jax.train import pretrained
from posattn_jax.train.checkpoint import Checkpoints
from posattn_jax.train.optimizer import Adam
from posattn_jax.train.settings import Settings
from posattn_jax.train.sharding import MeshAxes
from posattn_jax.train.step import TrainState

LENGTH, BATCH = 128, 8  # the longest sequences, if the model allows them; and the batch size of predictions


def import_weights(
    workdir: pathlib.Path, inputs: Sequence[str], num_heads: int | None = None, num_sentences: int | None = None
) -> None:
    """Makes a run folder from a file of weights, or from a folder with one.

    A BERT becomes a run of masked language modelling or, if it has a classification head, of sentence prediction. A
    vision transformer becomes a run of classification.

    Args:
      workdir: the run folder, which must not exist, or must be empty.
      inputs: the file or folder: see `convert.bert` and `convert.vit`.
      num_heads: the number of heads of a vision transformer, if its file does not contain it.
      num_sentences: how many sentences the head of a BERT takes, one or two; None: one.

    Raises:
      InputError: there is not exactly one input, the folder is in use, or the file is of no such model.
    """
    if len(inputs) != 1:
        raise InputError(f"--mode=import: expected one file or folder of weights, and there are {len(inputs)}")
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise InputError(f"--workdir={workdir}: is in use: expected a new folder")
    weights = files.read(inputs[0])
    if bert_weights.is_bert(weights):
        if num_heads is not None:
            raise InputError(f"--num_heads={num_heads}: expected none for a BERT, whose {CONFIG} contains it")
        run = _of_bert(weights, num_sentences)
    else:
        run = _of_vit(weights, num_heads)
    if num_sentences is not None and run.config.data.kind != name_of(SentenceFiles):
        raise InputError(f"--num_sentences={num_sentences}: expected none, as {weights.path} has no head for sentences")
    data = experiment.data_set(run.config)  # fails early, before the folder is made
    workdir.mkdir(parents=True, exist_ok=True)
    if run.subwords is not None:
        tokenizer.save(run.subwords, workdir)
    if run.about:
        user_data.save(workdir, run.about)
    params = pretrained.named(run.params, experiment.make_task(run.config, data.empty(workdir)))
    checkpoints = Checkpoints(workdir)
    state = TrainState(step=np.int32(0), params=params, opt_state={}, rng={}, totals={})
    checkpoints.save(state, {}, score=0.0)  # any score: it is the only checkpoint, and so the best
    checkpoints.close()
    write_json(workdir / "config.json", run.config.to_dict())
    number = sum(array.size for array in jax.tree.leaves(run.params))
    print(f"{workdir}: imported {number:,} parameters of {weights.path}")


class _Run(NamedTuple):
    """The content of a run folder. `about` is what it contains about its data."""

    config: ConfigDict
    params: dict[str, Any]
    about: dict[str, Any]
    subwords: Tokenizer | None = None


def _of_bert(weights: Weights, num_sentences: int | None) -> _Run:
    encoder, params = bert_weights.of_weights(weights)
    subwords = tokenizer_json.of_folder(weights.path.parent)
    if subwords.vocabulary_size > encoder.vocabulary_size:
        sizes = f"{subwords.vocabulary_size} tokens, and the model {encoder.vocabulary_size}"
        raise InputError(f"{weights.path.parent}: its tokenizer has {sizes}")
    length = min(LENGTH, encoder.max_length)
    if "head" not in params:
        data = part(Text, vocabulary_size=encoder.vocabulary_size, length=length)
        return _Run(_config(data, part(MaskedLanguageModelling), encoder), params, {}, subwords)
    number = params["head"]["bias"].size
    _check_labels(weights, "regression" if number == 1 else "single_label_classification")
    names = _names(weights, number) if number > 1 else []
    about = {"classes": names, "num_examples": 0}
    columns = ("sentence1", "sentence2") if num_sentences == 2 else ("sentence",)
    data = part(SentenceFiles, sentences=columns, length=length)
    return _Run(_config(data, part(SentencePrediction), encoder), params, about, subwords)


def _of_vit(weights: Weights, num_heads: int | None) -> _Run:
    model, params = vit_weights.of_weights(weights, num_heads)
    _check_labels(weights, "single_label_classification")
    number = len(params["position_embedding"]) - (model.pooling == "class")
    height, width = pixels.size_of(weights) or [round(number**0.5) * patch for patch in model.patch_shape]
    if np.prod(model.token_grid((height, width))) != number:
        raise InputError(f"{weights.path}: {number} positions, and {height} x {width} pixels have not as many patches")
    channels = params["embed"]["kernel"].shape[0] // int(np.prod(model.patch_shape))
    mean, deviation = pixels.scale_of(weights, channels)
    fields = {"height": height, "width": width, "channels": channels, "mean": mean, "deviation": deviation}
    print(f"pixels are (x - mean) / deviation, x from 0 to 1: mean {mean}, deviation {deviation}")
    about = {"classes": _names(weights, model.num_classes), "shape": [height, width, channels], "max_value": 255}
    return _Run(_config(part(ImageFolder, **fields), part(Classification), model), params, about)


def _check_labels(weights: Weights, expected: str) -> None:
    """Raises InputError if config.json says that the head is for another kind of label."""
    where = weights.path.with_name(CONFIG)
    if "BertForMultipleChoice" in weights.setting("architectures", []):
        raise InputError(f"{where}: architectures: multiple choice is not supported")
    kind = weights.config.get("problem_type")
    if kind not in (None, expected):
        raise InputError(f'{where}: problem_type="{kind}": expected "{expected}" with this head')


def _names(weights: Weights, number: int) -> list[str]:
    """The names of the classes in the config.json of Hugging Face or timm, or else their numbers."""
    given = weights.config.get("label_names") or weights.config.get("id2label") or {}
    given = dict(enumerate(given)) if isinstance(given, list) else given
    names = {str(i): name for i, name in given.items()}
    return [str(names.get(str(i), i)) for i in range(number)]


def _config(data: ConfigDict, task: ConfigDict, model: Any) -> ConfigDict:
    """The config of a run with this data that does not train."""
    config = ConfigDict({"seed": 0, "cache_dir": "data/cache", "data": data, "task": task})
    config.model = parts.of(model)
    config.model.update(dtype="float32", param_dtype="float32")
    config.train, config.optimizer = part(Settings, eval_batch_size=BATCH), part(Adam)
    config.mesh = part(MeshAxes)
    return config
