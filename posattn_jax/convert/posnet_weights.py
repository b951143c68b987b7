"""PosNet, and the models that Schmidt 2023 compares it with, from files of the authors' code.

The code is at github.com/apptek/posnet-position_based_attention.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from posattn_jax.convert import files, tensors
from posattn_jax.convert.blocks import check_alike
from posattn_jax.convert.files import Weights, is_a
from posattn_jax.convert.posnet_names import embeddings, entries
from posattn_jax.models.seq2seq import EncoderDecoder
from posattn_jax.nn.blocks import SequenceBlock
from posattn_jax.nn.energies import DotProducts, FourierWeights, GaussianWeights, OffsetTable, PairTable
from posattn_jax.nn.gating import GeluGate, Glu, NormalizedGelu, exact_gelu
from posattn_jax.nn.mixing import TokenMixing
from posattn_jax.nn.positions import StackPositions
from posattn_jax.system.errors import InputError

FAMILIES = ("PosNet", "Transformer", "RelTransformer", "LightConv", "LinearAttn", "GaussianAttn", "FNet")
ENCODER, DECODER, CROSS = "enc_self_att", "dec_self_att", "dec_cross_att"
ACTIVATIONS: dict[str, Callable] = {"gelu": exact_gelu, "sigmoid": nn.sigmoid}
EPSILON = 1e-8  # of the layer norms
ONLY = {  # the only supported values of these fields of a config
    "use_multi_head_gaussians": True,
    "gating_o": "none",
    "cross_gating_o": "none",
    "linearattn_dec_cross_att": False,
    "fnet_dec_self_att": False,
    "just_like_fnet": False,
}
KINDS: dict[str, type] = dict.fromkeys(
    ("encL", "decL", "model_dim", "ff_dim", "nHeads", "max_sentence_length", "K"), int
)
KINDS |= dict.fromkeys(("dropout", "length_ratio", "std"), float)
KINDS |= dict.fromkeys(("tiew", "K_per_layer", "gating", "only_rel_attention", "global_context", "use_glu"), bool)
KIND_NAMES = {int: "a whole number", float: "a number of at least 0", bool: "True or False"}
# The score of a query and a key.
DOT_PRODUCTS: dict[str, dict[str, Any]] = {
    "attention": {},
    "shaw": {"keys": ("content", "relative")},
    "relative": {"keys": ("relative",)},
    "aPosNet": {"query": "position", "keys": ("position",)},
    "rPosNet": {"query": "position", "keys": ("relative",)},
}


def posnet(path: str | pathlib.Path, pad_id: int, **config: Any) -> tuple[EncoderDecoder, dict[str, Any]]:
    """Reads a PosNet, Transformer, RelTransformer, LightConv, LinearAttn, GaussianAttn or FNet of that code.

      model, params = convert.posnet("ckpt-best.pt", pad_id, **yaml.safe_load(open("posnet.iwslt.de-en.yaml")))
      logits = model.apply({"params": params}, source, target)

    Their layer norms divide by the root of the unbiased variance. Ours compute the same with scales that are multiplied
    by sqrt((c - 1) / c).

    Args:
      path: a checkpoint, .pt, or its state dict as .safetensors or .npz.
      pad_id: the id of <PAD> in the vocabularies.
      **config: the content of the YAML file of the training, unless it is in a config.json next to the file.

    Raises:
      InputError: there is no such file, the config lacks something or has an unsupported value, or tensors are missing,
        of another shape, unknown, or not as the config says.
    """
    weights = files.read(path)
    config = weights.config | config
    weights = dataclasses.replace(weights, config=config)
    family = _Config(config, weights.path)("model", allowed=FAMILIES)
    source, target, _ = (weights.shape(name, 2)[0] for name in embeddings(family))
    weights.check(_sizes(weights, family))
    weights.heads("nHeads", 1, weights.shape(embeddings(family)[0], 2)[1])
    if pad_id not in range(source):
        raise InputError(f"{pad_id=}: expected one of the {source} ids of the source in {weights.path}")
    model = _model(config, weights.path, source, target, pad_id)
    ids = jnp.zeros((1, 1), jnp.int32)
    shapes = tensors.shapes_of(weights.path, model.init, ids, ids)
    return model, tensors.take(entries(model, family), shapes, weights.tensors, weights.path)


def _sizes(weights: Weights, family: str) -> dict[str, Any]:
    """What the tensors say, by the fields of the config: see `Weights.check`."""
    found: dict[str, Any] = {
        "encL": weights.count("encoder.layers."),
        "decL": weights.count("decoder.layers."),
        "model_dim": weights.shape(embeddings(family)[0], 2)[1],
    }
    for name, tensor in weights.tensors.items():
        first, *others = tensor.shape or (0,)
        if re.fullmatch(r"encoder\.layers\.0\.ff1(\.\w+)?\.weight", name):
            found["ff_dim"] = first
        elif re.fullmatch(r"encoder\.src_embed\.(\w+\.)?(rng|pos_embed(\.weight)?)", name):
            found["max_sentence_length"] = first
        elif layer := re.fullmatch(r"\w+\.layers\.(\d+)\.\w+\.(rel_embed\.weight|W)", name):
            context = f"Ks.{layer[1]}" if weights.config.get("K_per_layer", False) else "K"
            if layer[2] == "W":  # [h 2K+1] of LightConv, or [1 h t s]
                found["nHeads"] = others[0] if len(others) == 3 else first
            if layer[2] != "W" or len(others) == 1:
                found[context] = (others[-1] if layer[2] == "W" else first) // 2
    return found


def save_posnet(folder: str | pathlib.Path, model: EncoderDecoder, params: dict[str, Any]) -> pathlib.Path:
    """Writes model.safetensors with the authors' names, and config.json with what their YAML file says of a model.

    Raises:
      InputError: the model is none of theirs. For example, its layer norms have another epsilon than 1e-8 (c - 1) / c.
    """
    config = _config(model)
    sizes = model.source_vocabulary_size or model.vocabulary_size, model.vocabulary_size
    nearest = _model(config, pathlib.Path(folder, files.CONFIG), *sizes, model.pad_id)
    check_alike(model, nearest, "the code of Schmidt 2023")
    return files.write(folder, tensors.give(entries(model, config["model"]), params), config)


class _Config:
    """Reads fields of a config. Raises InputError if a field is missing, or has a value that is not allowed."""

    def __init__(self, config: Mapping[str, Any], where: pathlib.Path):
        self.config, self.where = config, where
        for name, only in ONLY.items():
            self(name, only, (only,))

    def __call__(self, name: str, default: Any = None, allowed: tuple[Any, ...] = ()) -> Any:
        value = self.config.get(name, default)
        if value is None:
            raise InputError(f"{self.where}: the config says no {name}")
        if allowed and value not in allowed:
            raise InputError(f"{self.where}: {name}={value!r}: expected {', '.join(map(repr, allowed))}")
        if name in KINDS and not is_a(KINDS[name], value):
            raise InputError(f"{self.where}: {name}={value!r}: expected {KIND_NAMES[KINDS[name]]}")
        return value


def _model(
    config: Mapping[str, Any], where: pathlib.Path, source_size: int, target_size: int, pad_id: int
) -> EncoderDecoder:
    of = _Config(config, where)
    width, rate = of("model_dim"), of("dropout")
    epsilon = {"layer_norm_epsilon": EPSILON * (width - 1) / width}
    length, most = of("max_sentence_length"), max(of("encL"), of("decL"))
    contexts = of("Ks") if of("K_per_layer", False) else [of("K", 16)] * most
    if not isinstance(contexts, list) or len(contexts) < most or not all(is_a(int, each) for each in contexts):
        raise InputError(f"{where}: Ks={contexts!r}: expected {most} whole numbers")

    def block(number: int, place: str) -> SequenceBlock:
        context = contexts[number]
        cross = None if place == ENCODER else _mixing(of, CROSS, context, length, epsilon)
        return SequenceBlock(_mixing(of, place, context, length, epsilon), of("ff_dim"), cross, rate, **epsilon)

    positions = (StackPositions(_form(of), length, rate, **epsilon) for _ in range(2))
    try:
        return EncoderDecoder(
            target_size,
            width,
            tuple(block(number, ENCODER) for number in range(of("encL"))),
            tuple(block(number, DECODER) for number in range(of("decL"))),
            *positions,
            source_vocabulary_size=None if of("tiew") else source_size,
            length_ratio=of("length_ratio", 1.0),
            pad_id=pad_id,
            dropout_rate=rate,
            **epsilon,
        )
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def _mixing(of: _Config, place: str, context: int, length: int, epsilon: dict[str, Any]) -> TokenMixing:
    """The mixer of a place: attention, or the mixer after which the model is named."""
    family = of("model")
    is_own = of(f"{family.lower()}_{place}", place != CROSS, (True, False))
    kind = _kind(of) if is_own else "attention"
    energies: Any = {
        "LightConv": lambda: OffsetTable(context, "clip" if of("global_context", False) else "drop"),
        "LinearAttn": lambda: PairTable((length,), (length,)),
        "GaussianAttn": lambda: GaussianWeights((-1, 0, 1) if place == ENCODER else (-1, 0), of("std", 1.0)),
        "FNet": FourierWeights,
    }.get(kind, lambda: DotProducts(**DOT_PRODUCTS[kind], context=context))()
    values, gate = _gated(of, "cross_" if place == CROSS else "", epsilon) if is_own else (None, None)
    rates = {"sum_dropout_rate" if kind == "FNet" else "dropout_rate": of("dropout")}
    return TokenMixing(of("nHeads"), energies=energies, values=values, gate=gate, **rates)


def _kind(of: _Config) -> str:
    match of("model"):
        case "PosNet":
            return of("posnet_type", allowed=("aPosNet", "rPosNet"))
        case "Transformer":
            return "attention"
        case "RelTransformer":
            return "relative" if of("only_rel_attention", False) else "shaw"
        case family:
            return family


def _gated(of: _Config, prefix: str, epsilon: dict[str, Any]) -> tuple[Callable | None, nn.Module | None]:
    """The values and the gate of a mixer."""
    match of("model"):
        case "PosNet" | "LightConv":
            pass
        case "GaussianAttn":
            return Glu() if of("use_glu", False) else None, None
        case _:
            return (NormalizedGelu(**epsilon), GeluGate()) if of("gating", False) else (None, None)
    of_values = of(f"{prefix}gating_v", allowed=("none", "glu", *ACTIVATIONS))
    of_gate = of(f"{prefix}gating_g", allowed=("none", *ACTIVATIONS))
    if of_gate != "none":
        of(f"{prefix}normalize_g", False, (False,))
    gate = None if of_gate == "none" else GeluGate(ACTIVATIONS[of_gate])
    if of_values == "none":
        return None, gate
    normalized = of(f"{prefix}normalize_v", allowed=(False,) if of_values == "glu" else (True, False))
    if of_values == "glu":
        return Glu(), gate
    activation = ACTIVATIONS[of_values]
    return NormalizedGelu(activation, **epsilon) if normalized else activation, gate


def _form(of: _Config) -> Any:
    """The form of the absolute positions of both stacks."""
    match of("model"):
        case "PosNet":
            is_sinusoidal = _kind(of) == "aPosNet"
            of("use_pos_embed", True, (True,))
        case "FNet":
            is_sinusoidal = True
        case family:
            is_sinusoidal = of("use_sinusodial_pos_embed", family in ("LightConv", "LinearAttn"))
            allowed = (True,) if is_sinusoidal else (True, False)
            if family == "RelTransformer" and not of("use_pos_embed", False, allowed):
                return "none"
    return "sinusoidal" if is_sinusoidal else "learned"


def _config(model: EncoderDecoder) -> dict[str, Any]:
    """The config of the model of that code that is nearest to this one."""
    first = model.decoder_blocks[0]
    mixings = {ENCODER: model.encoder_blocks[0].mixing, DECODER: first.mixing, CROSS: first.cross}
    kinds = {place: _kind_of(mixing) for place, mixing in mixings.items()}
    own = next((place for place, kind in kinds.items() if kind != "attention"), ENCODER)
    kind, mixing = kinds[own], mixings[own]
    families = {"attention": "Transformer", "shaw": "RelTransformer", "relative": "RelTransformer"}
    family = families.get(kind, "PosNet" if kind in DOT_PRODUCTS else kind)
    contexts = [getattr(block.mixing.energies, "context", 16) for block in model.encoder_blocks]
    form = model.encoder_positions.form
    config: dict[str, Any] = ONLY | {
        "model": family,
        "encL": len(model.encoder_blocks),
        "decL": len(model.decoder_blocks),
        "model_dim": model.width,
        "ff_dim": first.mlp_dim,
        "dropout": model.dropout_rate,
        "nHeads": mixing.num_heads,
        "tiew": model.source_vocabulary_size is None,
        "max_sentence_length": model.encoder_positions.max_length,
        "length_ratio": model.length_ratio,
        "use_pos_embed": form != "none",
        "use_sinusodial_pos_embed": form == "sinusoidal",
        "gating": mixing.gate is not None,
        "K": contexts[0],
    }
    if len(set(contexts)) > 1:
        config |= {"K_per_layer": True, "Ks": contexts}
    match family:
        case "RelTransformer":
            config |= {"only_rel_attention": kind == "relative"}
        case "PosNet":
            config |= {"posnet_type": kind, **_gating_of(mixing, ""), **_gating_of(first.cross, "cross_")}
        case "LightConv":
            config |= {"global_context": mixing.energies.outside == "clip", **_gating_of(mixing, "")}
        case "GaussianAttn":
            config |= {"std": mixing.energies.sigma, "use_glu": mixing.values is not None}
    if family in ("PosNet", "LinearAttn", "GaussianAttn", "FNet"):
        config |= {f"{family.lower()}_{place}": each == kind for place, each in kinds.items()}
    return config


def _kind_of(mixing: TokenMixing | None) -> str:
    energies = getattr(mixing, "energies", None) or DotProducts()
    kinds = {OffsetTable: "LightConv", PairTable: "LinearAttn", GaussianWeights: "GaussianAttn", FourierWeights: "FNet"}
    if type(energies) in kinds:
        return kinds[type(energies)]
    sides = getattr(energies, "query", None), getattr(energies, "keys", None)
    asked = {
        (fields.get("query", "content"), fields.get("keys", ("content",))): kind
        for kind, fields in DOT_PRODUCTS.items()
    }
    return asked.get(sides, "attention")


def _gating_of(mixing: Any, prefix: str) -> dict[str, Any]:
    names: dict[Any, str] = {activation: name for name, activation in ACTIVATIONS.items()}
    values, gate = mixing.values, mixing.gate
    activation = getattr(values, "activation", values)
    of_values = "none" if values is None else "glu" if isinstance(values, Glu) else names.get(activation, "gelu")
    of_gate = "none" if gate is None else names.get(getattr(gate, "activation", None), "gelu")
    normalized = isinstance(values, NormalizedGelu)
    found = {"gating_v": of_values, "gating_g": of_gate, "normalize_v": normalized, "normalize_g": False}
    return {f"{prefix}{name}": value for name, value in found.items()}
