"""Hugging Face's BERT: `BertModel`, and the heads of `BertForPreTraining` and `BertForSequenceClassification`.

The models of Chang 2021 have the same names, and further ones for their convolutions.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posattn_jax.convert import convolutions, files, tensors
from posattn_jax.convert.blocks import activation_name, activation_of, blocks, check_alike, entries, fields_of
from posattn_jax.convert.files import Weights
from posattn_jax.convert.tensors import Entry, linear, norm, same, shapes_of
from posattn_jax.models.bert import Bert
from posattn_jax.nn.gating import exact_gelu
from posattn_jax.nn.parts import PARTS
from posattn_jax.system.errors import InputError

EMBEDDINGS = "embeddings.word_embeddings.weight"  # every file has it, after a prefix
# Tensors that may be left out: a buffer, the tied output embeddings, and the heads of other tasks.
SPARE = r".*embeddings\.position_ids|cls\.(seq_relationship|predictions\.decoder)\..*|(classifier|qa_outputs)\..*"


def bert(path: str | pathlib.Path) -> tuple[Bert, dict[str, Any]]:
    """Reads a BERT saved by Hugging Face's `transformers`, or by the code of Chang 2021 (mlpc-ucsd/BERT_Convolutions).

      encoder, params = convert.bert("folder")
      features = encoder.apply({"params": params["encoder"]}, tokens, segments=segments, key_mask=tokens != pad_id)

    Args:
      path: a folder with model.safetensors and config.json, or such a file with a config.json in its folder.

    Returns:
      The encoder, and {"encoder": its parameters} with the parameters of the heads that the file has: "pooler" and
      "head" of `SequenceClassifier(encoder, num_outputs)`; "transform", "norm" and "bias" of
      `MaskedLanguageModel(encoder)`. Other known tensors of the file are left out, with a warning.

    Raises:
      InputError: there is no such file, it is no BERT, or tensors are missing, of another shape, or unknown.
    """
    return of_weights(files.read(path))


def _check_tied(found: tensors.Tensors, embeddings: str, where: pathlib.Path) -> None:
    """Raises InputError if the output embeddings, or a second bias, are not those of `MaskedLanguageModel`."""
    for name, other in (("weight", embeddings), ("bias", "cls.predictions.bias")):
        own = found.get(f"cls.predictions.decoder.{name}")
        if own is not None and other in found and not np.array_equal(own, found[other]):
            raise InputError(f"{where}: cls.predictions.decoder.{name} is not {other}: expected tied embeddings")


def is_bert(weights: Weights) -> bool:
    """Whether a file has the embeddings of a BERT."""
    return any(name.endswith(EMBEDDINGS) for name in weights.tensors)


def of_weights(weights: Weights) -> tuple[Bert, dict[str, Any]]:
    """As `bert`, for a file that was read already."""
    config, where = weights.config, weights.path
    if not is_bert(weights):
        raise InputError(f"{where}: expected a BERT, with {EMBEDDINGS}")
    if not config:
        raise InputError(f"{where.with_name(files.CONFIG)} is missing: expected it, with num_attention_heads")
    for name, only in (("model_type", "bert"), ("position_embedding_type", "absolute"), ("is_decoder", False)):
        if config.get(name, only) != only:
            raise InputError(f"{where.with_name(files.CONFIG)}: {name}={config[name]!r}: expected {only!r}")
    # Older files have TensorFlow's names.
    renamed = tensors.renamed(weights.tensors, _renamed, where)
    weights = Weights(where, renamed, config)
    prefix = next(name for name in renamed if name.endswith(EMBEDDINGS)).removesuffix(EMBEDDINGS)
    weights.check(_sizes(weights, prefix))
    encoder = _encoder(weights, prefix)
    heads = [head for head, module in _modules(prefix).items() if f"{module}.weight" in renamed]
    if "pooler" not in heads:  # a head without it classifies every token
        heads = [head for head in heads if head != "head"]
    if "transform" in heads and encoder.blocks[0].activation is not exact_gelu:
        raise InputError(f'{where}: hidden_act="{config["hidden_act"]}": expected "gelu" with cls.predictions')
    if "transform" in heads:
        _check_tied(renamed, f"{prefix}{EMBEDDINGS}", where)
    num_outputs = weights.shape("classifier.weight", 2)[0] if "head" in heads else 0
    shapes = _shapes(where, encoder, heads, num_outputs)
    return encoder, tensors.take(_entries(encoder, heads, prefix), shapes, renamed, where, SPARE)


def save_bert(folder: str | pathlib.Path, encoder: Bert, params: dict[str, Any], **config: Any) -> pathlib.Path:
    """Writes model.safetensors and config.json of a BERT, as `transformers` reads them.

    Args:
      folder: the folder, which is created if necessary.
      encoder: an encoder as `bert` returns it, with absolute positions and only content terms.
      params: the parameters as `bert` returns them, with any heads or none.
      **config: further entries of config.json, such as id2label.

    Returns:
      The path of model.safetensors.

    Raises:
      InputError: the encoder is not such a BERT, or a parameter has no name there.
    """
    check_alike(encoder, _nearest(encoder), "a BERT of Hugging Face")
    return _save(folder, encoder, params, config)


def save_composite_bert(
    folder: str | pathlib.Path, encoder: Bert, params: dict[str, Any], **config: Any
) -> pathlib.Path:
    """As `save_bert`, for BERTs with convolutions or without absolute positions, as the code of Chang 2021 reads them.

    Raises:
      InputError: the encoder is not such a BERT, or a parameter has no name there.
    """
    own = convolutions.config_of(encoder.blocks[0].attention)
    own |= {"embedding_size": encoder.embedding_dim or encoder.width}
    own |= {"remove_position_embeddings": not encoder.absolute_positions}
    more = functools.partial(convolutions.of_config, own, pathlib.Path(folder, files.CONFIG), encoder.width)
    sizes = {"embedding_dim": encoder.embedding_dim, "absolute_positions": encoder.absolute_positions}
    check_alike(encoder, _nearest(encoder, more, **sizes), "the code of Chang 2021")
    return _save(folder, encoder, params, own | config)


def _save(folder: str | pathlib.Path, encoder: Bert, params: dict[str, Any], config: dict[str, Any]) -> pathlib.Path:
    fields = fields_of(encoder.blocks)
    heads = [head for head in _modules("") if head in params]
    of_tokens = "BertForPreTraining" if "pooler" in heads else "BertForMaskedLM"
    named = {"transform": of_tokens, "head": "BertForSequenceClassification"}
    architecture = next((name for head, name in named.items() if head in heads), "BertModel")
    prefix = "" if architecture == "BertModel" else "bert."
    labels = {"num_labels": params["head"]["bias"].size} if "head" in params and "id2label" not in config else {}
    about = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": encoder.vocabulary_size,
        "hidden_size": encoder.width,
        "num_hidden_layers": fields["num_blocks"],
        "num_attention_heads": fields["num_heads"],
        "intermediate_size": fields["mlp_dim"],
        "hidden_act": activation_name(fields["activation"]),
        "hidden_dropout_prob": encoder.dropout_rate,
        "attention_probs_dropout_prob": fields["attention_dropout_rate"],
        "max_position_embeddings": encoder.max_length,
        "type_vocab_size": encoder.num_segments,
        "layer_norm_eps": encoder.layer_norm_epsilon,
    }
    return files.write(folder, tensors.give(_entries(encoder, heads, prefix), params), about | labels | config)


def _renamed(name: str) -> str:
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _sizes(weights: Weights, prefix: str) -> dict[str, Any]:
    """What the tensors say, by the entries of config.json: see `Weights.check`."""
    embeddings, first = f"{prefix}embeddings", f"{prefix}encoder.layer.0"
    vocabulary_size, embedding_dim = weights.shape(f"{prefix}{EMBEDDINGS}", 2)
    mlp_dim, width = weights.shape(f"{first}.intermediate.dense.weight", 2)
    found: dict[str, Any] = {
        "vocab_size": vocabulary_size,
        "embedding_size": embedding_dim,
        "hidden_size": width,
        "intermediate_size": mlp_dim,
        "num_hidden_layers": weights.count(f"{prefix}encoder.layer."),
        "type_vocab_size": weights.shape(f"{embeddings}.token_type_embeddings.weight", 2)[0],
    }
    if f"{embeddings}.position_embeddings.weight" in weights.tensors:
        found["max_position_embeddings"] = weights.shape(f"{embeddings}.position_embeddings.weight", 2)[0]
    if "classifier.weight" in weights.tensors:
        found |= dict.fromkeys(("num_labels", "id2label"), weights.shape("classifier.weight", 2)[0])
    return found | convolutions.sizes(weights, f"{first}.attention.self")


def _encoder(weights: Weights, prefix: str) -> Bert:
    """The encoder that the shapes of a file and its config.json describe. The defaults are those of `BertConfig`."""
    config, where = weights.config, weights.path
    vocabulary_size, embedding_dim = weights.shape(f"{prefix}{EMBEDDINGS}", 2)
    mlp_dim, width = weights.shape(f"{prefix}encoder.layer.0.intermediate.dense.weight", 2)
    has_positions = not weights.setting("remove_position_embeddings", False)
    positions = f"{prefix}embeddings.position_embeddings.weight"
    epsilon, rate = weights.setting("layer_norm_eps", 1e-12), weights.setting("hidden_dropout_prob", 0.1)
    try:
        return Bert(
            vocabulary_size,
            width,
            blocks(
                weights.count(f"{prefix}encoder.layer."),
                norm="post",
                num_heads=weights.heads("num_attention_heads", 12, width),
                mlp_dim=mlp_dim,
                activation=activation_of(config, where.with_name(files.CONFIG)),
                layer_norm_epsilon=epsilon,
                dropout_rate=rate,
                attention_dropout_rate=weights.setting("attention_probs_dropout_prob", 0.1),
                more=lambda: convolutions.of_config(config, where.with_name(files.CONFIG), width),
            ),
            embedding_dim=None if embedding_dim == width else embedding_dim,
            absolute_positions=has_positions,
            max_length=weights.shape(positions, 2)[0]
            if has_positions
            else weights.setting("max_position_embeddings", 512),
            num_segments=weights.shape(f"{prefix}embeddings.token_type_embeddings.weight", 2)[0],
            dropout_rate=rate,
            layer_norm_epsilon=epsilon,
        )
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where.with_name(files.CONFIG)}: {error}") from error


def _nearest(encoder: Bert, more: Callable[[], dict[str, Any]] = dict, **fields: Any) -> Bert:
    """The BERT of Hugging Face that is nearest to one of ours or, with `more` and `fields`, that of Chang 2021."""
    epsilon: dict[str, Any] = {"layer_norm_epsilon": encoder.layer_norm_epsilon}
    made = blocks(**fields_of(encoder.blocks, norm="post", use_bias=True, more=more, **epsilon))
    sizes = {"max_length": encoder.max_length, "num_segments": encoder.num_segments}
    return Bert(encoder.vocabulary_size, encoder.width, made, **sizes, **epsilon, **fields)


def _modules(prefix: str) -> dict[str, str]:
    """The module of the linear map of each head."""
    return {"pooler": f"{prefix}pooler.dense", "transform": "cls.predictions.transform.dense", "head": "classifier"}


def _entries(encoder: Bert, heads: Sequence[str], prefix: str) -> list[Entry]:
    """The entries of the encoder and of some heads."""
    embeddings = f"{prefix}embeddings"
    found = [
        same("encoder/token_embedding/embedding", f"{prefix}{EMBEDDINGS}"),
        same("encoder/segment_embedding/embedding", f"{embeddings}.token_type_embeddings.weight"),
        *norm("encoder/embedding_norm", f"{embeddings}.LayerNorm"),
    ]
    if encoder.absolute_positions:
        found.append(same("encoder/position_embedding/embedding", f"{embeddings}.position_embeddings.weight"))
    if encoder.embedding_dim is not None:
        found += linear("encoder/embedding_projection", f"{prefix}embeddings_project")
    for i, block in enumerate(encoder.blocks):
        layer, attention = f"{prefix}encoder.layer.{i}", block.attention
        names = PARTS if convolutions.is_linear(attention) else ()
        found += entries(
            f"encoder/blocks_{i}",
            attention.num_heads * (1 if attention.extra_heads is None else 2),
            use_bias=True,
            projections=tuple(f"{layer}.attention.self.{name}" for name in names),
            output=f"{layer}.attention.output.dense",
            attention_norm=f"{layer}.attention.output.LayerNorm",
            hidden=f"{layer}.intermediate.dense",
            feed_forward=f"{layer}.output.dense",
            feed_forward_norm=f"{layer}.output.LayerNorm",
        )
        found += convolutions.entries(
            attention, f"encoder/blocks_{i}/attention", f"{layer}.attention.self", encoder.max_length
        )
    modules = _modules(prefix)
    for head in heads:
        found += linear(head, modules[head])
    if "transform" in heads:
        found += [*norm("norm", "cls.predictions.transform.LayerNorm"), same("bias", "cls.predictions.bias")]
    return found


def _shapes(where: pathlib.Path, encoder: Bert, heads: Sequence[str], num_outputs: int) -> dict[str, Any]:
    """The shapes of the parameters of the encoder and of some heads."""
    width, vocabulary_size = encoder.width, encoder.vocabulary_size
    embedding_dim = encoder.embedding_dim or width

    def linear_map(features: int):
        return {"kernel": of(width, features), "bias": of(features)}

    def of(*sizes: int):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    own = {"pooler": linear_map(width), "transform": linear_map(embedding_dim), "head": linear_map(num_outputs)}
    shapes = {"encoder": shapes_of(where, encoder.init, jnp.zeros((1, 1), jnp.int32))} | {h: own[h] for h in heads}
    if "transform" in heads:
        shapes |= {"norm": {"scale": of(embedding_dim), "bias": of(embedding_dim)}, "bias": of(vocabulary_size)}
    return shapes
