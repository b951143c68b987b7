"""Vision transformers (Dosovitskiy 2021) from files of Hugging Face, timm and big_vision, and to such files."""

import dataclasses
import math
import pathlib
from typing import Any, Literal

import jax.numpy as jnp

from posattn_jax.axes import Shape
from posattn_jax.convert import files, pixels, tensors
from posattn_jax.convert.blocks import activation_name, activation_of, blocks, check_alike, fields_of
from posattn_jax.convert.files import Weights
from posattn_jax.convert.pixels import Scale
from posattn_jax.convert.vit_names import NAMES, Format, modern
from posattn_jax.models.vit import VisionTransformer
from posattn_jax.nn.gating import exact_gelu, tanh_gelu
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import write_json

# What the files do not contain: fields of the library's own vision transformers.
OWN: dict[Format, dict[str, Any]] = {
    "hugging_face": {},
    "timm": {"activation": exact_gelu, "layer_norm_epsilon": 1e-6},
    "big_vision": {"activation": tanh_gelu, "layer_norm_epsilon": 1e-6, "use_bias": True},
}


def vit(path: str | pathlib.Path, num_heads: int | None = None) -> tuple[VisionTransformer, dict[str, Any]]:
    """Reads a vision transformer saved by Hugging Face's `transformers`, timm or big_vision.

      model, params = convert.vit("folder")
      logits = model.apply({"params": params}, pixels.reshape(b, 224 * 224, 3), (224, 224))

    Args:
      path: a folder with a .safetensors or an .npz, or such a file. Hugging Face's needs its config.json next to it.
      num_heads: h, which timm's files do not contain.

    Returns:
      The model, without a head if the file has none, and its parameters. Other known tensors of the file are left out,
      with a warning.

    Raises:
      InputError: there is no such file, it has another model, tensors are missing, of another shape, or unknown, or the
        number of heads is missing or not that of the file, or config.json contradicts the tensors.
    """
    return of_weights(files.read(path), num_heads)


def format_of(weights: Weights) -> Format | None:
    """The format whose names the tensors have; None if they are not those of a vision transformer."""
    return next(
        (each for each, names in NAMES.items() if any(n.endswith(names.patches) for n in weights.tensors)), None
    )


def of_weights(weights: Weights, num_heads: int | None = None) -> tuple[VisionTransformer, dict[str, Any]]:
    """As `vit`, for a file that was read already."""
    name = format_of(weights)
    if name is None:
        expected = " or ".join(names.patches for names in NAMES.values())
        raise InputError(f"{weights.path}: no vision transformer: it has no {expected}")
    if name == "big_vision":
        weights = dataclasses.replace(weights, tensors=modern(weights.tensors, weights.path))
    names = NAMES[name]
    prefix = next(each for each in weights.tensors if each.endswith(names.patches)).removesuffix(names.patches)
    fields, num_rows, num_channels = _READERS[name](weights, prefix)
    weights.check(_sizes(weights, name, fields, num_channels))
    says = fields.pop("num_heads")
    says = num_heads if says is None else says
    if says is None:
        raise InputError(f"{weights.path}: does not say how many heads it has: expected num_heads")
    if num_heads not in (None, says):
        raise InputError(f"num_heads={num_heads}: {weights.path} has {says}")
    try:
        model = _transformer(num_heads=says, **fields | OWN[name])
    except ValueError as error:
        raise InputError(f"{weights.path}: {error}") from error
    _check_grid(weights, model, num_rows - (model.pooling == "class"))
    shapes = _shapes(weights.path, model, num_rows, num_channels)
    return model, tensors.take(names.entries(model, prefix), shapes, weights.tensors, weights.path, names.spare)


def save_vit(
    folder: str | pathlib.Path,
    model: VisionTransformer,
    params: dict[str, Any],
    grid_shape: Shape,
    names: Format = "hugging_face",
    scale: Scale | None = None,
    **config: Any,
) -> pathlib.Path:
    """Writes a vision transformer in a format of others.

    Args:
      folder: the folder, which is created if necessary.
      model: a model as `vit` returns it: without norms of patches, with absolute positions and only content terms.
      params: the parameters of the model.
      grid_shape: the height and width of its images.
      names: "hugging_face" or "timm": model.safetensors and config.json; "big_vision": model.npz. timm's file is for
        `load_state_dict`: its config.json does not name an architecture of timm.
      scale: how its pixels are scaled; Hugging Face's preprocessor_config.json or timm's config.json then says so.
      **config: further entries of config.json, such as id2label.

    Returns:
      The path of the weights.

    Raises:
      InputError: the format cannot describe the model, a parameter has no name there, or there is no such format.
    """
    if names not in NAMES:
        raise InputError(f'names="{names}": expected {", ".join(NAMES)}')
    if names == "big_vision" and (config or scale is not None):
        raise InputError(f'{next(iter(config), "scale")}: expected nothing more with names="{names}"')
    if len(model.patch_shape) != 2:
        raise InputError(f"patch_shape={model.patch_shape}: expected two sizes")
    fields = _fields(model)
    try:
        grid = model.token_grid(grid_shape)
    except ValueError as error:
        raise InputError(str(error)) from error
    fields["pooling"] = "mean" if names == "big_vision" and model.pooling != "class" else "class"
    check_alike(model, _transformer(**fields | OWN[names]), names)
    num_rows = len(params["position_embedding"])
    if num_rows != math.prod(grid) + (fields["pooling"] == "class"):
        raise InputError(f"grid_shape={tuple(grid_shape)}: {math.prod(grid)} patches, and {num_rows} positions")
    sizes = tuple(grid_shape), params["embed"]["kernel"].shape[0] // math.prod(model.patch_shape)
    if names == "hugging_face":
        config = _hugging_face_config(model, *sizes) | config
    elif names == "timm":
        config = {"num_classes": model.num_classes, "pretrained_cfg": pixels.timm_config(scale, *sizes)} | config
    prefix = {"hugging_face": "vit." if model.num_classes else "", "timm": "", "big_vision": "params/"}[names]
    given = tensors.give(NAMES[names].entries(model, prefix), params)
    if names == "big_vision":
        return files.write_npz(folder, given)
    path = files.write(folder, given, config)
    if names == "hugging_face" and scale is not None:
        write_json(path.with_name(pixels.PREPROCESSOR), pixels.hugging_face_config(scale, *sizes))
    return path


def _transformer(
    *,
    num_classes: int,
    width: int,
    patch_shape: tuple[int, ...],
    pooling: Literal["class", "mean"],
    layer_norm_epsilon: float,
    dropout_rate: float = 0.0,
    **of_blocks: Any,
) -> VisionTransformer:
    rate: dict[str, Any] = {"dropout_rate": dropout_rate, "layer_norm_epsilon": layer_norm_epsilon}
    of_blocks |= rate | {"norm": "pre"}
    made = blocks(**of_blocks)
    return VisionTransformer(num_classes, width, made, patch_shape, pooling, patch_norms=False, **rate)


def _fields(model: VisionTransformer) -> dict[str, Any]:
    """The arguments of `_transformer` that make the model nearest to a given one."""
    names = ("num_classes", "width", "patch_shape", "pooling", "layer_norm_epsilon", "dropout_rate")
    return fields_of(model.blocks) | {name: getattr(model, name) for name in names}


def _of_hugging_face(weights: Weights, prefix: str) -> tuple[dict[str, Any], int, int]:
    config, where = weights.config, weights.path.with_name(files.CONFIG)
    if not config:
        raise InputError(f"{where} is missing: expected it, with num_attention_heads")
    if config.get("model_type", "vit") != "vit":
        raise InputError(f'{where}: model_type={config["model_type"]!r}: expected "vit"')
    layer = f"{prefix}encoder.layer.0"
    width, num_channels, *patch_shape = weights.shape(f"{prefix}{NAMES['hugging_face'].patches}", 4)
    fields = {
        "num_classes": weights.shape("classifier.weight", 2)[0] if "classifier.weight" in weights.tensors else 0,
        "width": width,
        "patch_shape": tuple(patch_shape),
        "pooling": "class",
        "num_blocks": weights.count(f"{prefix}encoder.layer."),
        "num_heads": weights.heads("num_attention_heads", 12, width),
        "mlp_dim": weights.shape(f"{layer}.intermediate.dense.weight", 2)[0],
        "use_bias": f"{layer}.attention.attention.query.bias" in weights.tensors,
        "activation": activation_of(config, where),
        "layer_norm_epsilon": weights.setting("layer_norm_eps", 1e-12),
        "dropout_rate": weights.setting("hidden_dropout_prob", 0.0),
        "attention_dropout_rate": weights.setting("attention_probs_dropout_prob", 0.0),
    }
    return fields, weights.shape(f"{prefix}embeddings.position_embeddings", 3)[1], num_channels


def _of_timm(weights: Weights, prefix: str) -> tuple[dict[str, Any], int, int]:
    head = f"{prefix}head.weight"
    width, num_channels, *patch_shape = weights.shape(f"{prefix}{NAMES['timm'].patches}", 4)
    fields = {
        "num_classes": weights.shape(head, 2)[0] if head in weights.tensors else 0,
        "width": width,
        "patch_shape": tuple(patch_shape),
        "pooling": "class",
        "num_blocks": weights.count(f"{prefix}blocks."),
        "num_heads": weights.heads("model_args.num_heads", None, width),
        "mlp_dim": weights.shape(f"{prefix}blocks.0.mlp.fc1.weight", 2)[0],
        "use_bias": f"{prefix}blocks.0.attn.qkv.bias" in weights.tensors,
    }
    num_rows, size = weights.shape(f"{prefix}pos_embed", 3)[1], pixels.size_of(weights)
    number = 0 if size is None else math.prod(side // patch for side, patch in zip(size, patch_shape, strict=True))
    # Where the size does not say it, images are taken to be square.
    if num_rows == number or (num_rows != number + 1 and round(num_rows**0.5) ** 2 == num_rows):
        raise InputError(f"{weights.path}: pos_embed has {num_rows} rows: expected one for the class token, too")
    return fields, num_rows, num_channels


def _of_big_vision(weights: Weights, prefix: str) -> tuple[dict[str, Any], int, int]:
    head, layer = f"{prefix}head/kernel", f"{prefix}Transformer/encoderblock_0"
    *patch_shape, num_channels, width = weights.shape(f"{prefix}{NAMES['big_vision'].patches}", 4)
    has_token = f"{prefix}cls" in weights.tensors
    fields = {
        "num_classes": weights.shape(head, 2)[1] if head in weights.tensors else 0,
        "width": width,
        "patch_shape": tuple(patch_shape),
        "pooling": "class" if has_token else "mean",
        "num_blocks": weights.count(f"{prefix}Transformer/encoderblock_", "/"),
        "num_heads": weights.shape(f"{layer}/MultiHeadDotProductAttention_0/query/kernel", 3)[1],
        "mlp_dim": weights.shape(f"{layer}/MlpBlock_0/Dense_0/kernel", 2)[1],
    }
    return fields, weights.shape(f"{prefix}pos_embedding", 3)[1] + has_token, num_channels


def _sizes(weights: Weights, name: Format, fields: dict[str, Any], num_channels: int) -> dict[str, Any]:
    """What the tensors say, by the entries of each library's config.json: see `Weights.check`."""
    labels: dict[str, Any] = dict.fromkeys(("num_labels", "id2label"), fields["num_classes"])
    labels["label_names"] = range(fields["num_classes"])
    found = labels if fields["num_classes"] else {}  # without a head, Hugging Face still writes names
    depth, width, patch_shape = fields["num_blocks"], fields["width"], fields["patch_shape"]
    if name == "hugging_face":
        found |= {"num_hidden_layers": depth, "hidden_size": width, "patch_size": patch_shape}
        found |= {"num_channels": num_channels, "intermediate_size": fields["mlp_dim"], "qkv_bias": fields["use_bias"]}
    elif name == "timm":
        found |= {"num_features": width, "global_pool": "token", "model_args.global_pool": "token"}
        found |= {"model_args.depth": depth, "model_args.embed_dim": width, "model_args.patch_size": patch_shape}
        found |= {"model_args.qkv_bias": fields["use_bias"]}
        found[weights.first("num_classes", "pretrained_cfg.num_classes")] = fields["num_classes"]
        found["model_args.in_chans"] = num_channels
    return found


def _check_grid(weights: Weights, model: VisionTransformer, number: int) -> None:
    """Raises InputError if images of the size in config.json have not as many patches as there are positions.

    timm's `input_size` may be that of the model before it was fine-tuned, and its models may take images of any size.
    """
    size, is_any = pixels.size_of(weights), weights.entry("model_args.dynamic_img_size")
    if size is None or is_any or pixels.size_entry(weights).endswith("input_size"):
        return
    entry = f"{weights.path}: {pixels.size_entry(weights)}: images of {' x '.join(map(str, size))} pixels in its config"
    try:
        patches = model.token_grid(size)
    except ValueError as error:
        raise InputError(f"{entry}: {error}") from error
    if math.prod(patches) != number:
        grid = " x ".join(map(str, patches))
        raise InputError(f"{entry} have {grid} patches, but there are {number} positions in its tensors")


_READERS = {"hugging_face": _of_hugging_face, "timm": _of_timm, "big_vision": _of_big_vision}


def _shapes(where: pathlib.Path, model: VisionTransformer, num_rows: int, num_channels: int) -> Any:
    """The shapes of the parameters of a model with `num_rows` positions. How they form a grid does not matter."""
    height, width = model.patch_shape
    grid_shape = ((num_rows - (model.pooling == "class")) * height, width)
    pixels = jnp.zeros((1, math.prod(grid_shape), num_channels))
    return tensors.shapes_of(where, model.init, pixels, grid_shape)


def _hugging_face_config(model: VisionTransformer, grid_shape: tuple[int, ...], num_channels: int) -> dict[str, Any]:
    fields = _fields(model)
    return {
        "architectures": ["ViTForImageClassification" if model.num_classes else "ViTModel"],
        "model_type": "vit",
        "image_size": _side(grid_shape),
        "patch_size": _side(model.patch_shape),
        "num_channels": num_channels,
        "hidden_size": model.width,
        "num_hidden_layers": fields["num_blocks"],
        "num_attention_heads": fields["num_heads"],
        "intermediate_size": fields["mlp_dim"],
        "hidden_act": activation_name(fields["activation"]),
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": fields["attention_dropout_rate"],
        "layer_norm_eps": model.layer_norm_epsilon,
        "qkv_bias": fields["use_bias"],
        "num_labels": model.num_classes or 2,
    }


def _side(sizes: tuple[int, ...]) -> int | list[int]:
    """One number if both sizes are the same."""
    return sizes[0] if len(set(sizes)) == 1 else list(sizes)
