"""How the pixels of a vision transformer are scaled: in the configs of Hugging Face and timm, and in such configs."""

import math
import numbers
import pathlib
from typing import Any, NamedTuple

from posattn_jax.axes import Shape
from posattn_jax.convert.files import CONFIG, Weights
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import read_json

PREPROCESSOR = "preprocessor_config.json"  # in a folder of Hugging Face
Numbers = tuple[float, ...]


class Scale(NamedTuple):
    """Inputs are (x - mean) / deviation, x from 0 to 1. Each has a number per channel, or one for all."""

    mean: Numbers = (0.5,)
    deviation: Numbers = (0.5,)


def scale_of(weights: Weights, num_channels: int) -> Scale:
    """The scale in preprocessor_config.json or in timm's config.json; without one, (x - .5) / .5.

    Raises:
      InputError: a file has something else there than a number for each channel or for all, or expects pixels that are
        not from 0 to 1.
    """
    where = weights.path.with_name(PREPROCESSOR)
    config = read_json(where) or {}
    if not isinstance(config, dict):
        raise InputError(f"{where}: expected an object")
    factor = config.get("rescale_factor") or 1 / 255
    is_rescaled = config.get("do_rescale", True) and isinstance(factor, int | float)
    if not is_rescaled or not math.isclose(factor * 255, 1.0, rel_tol=1e-3):
        raise InputError(f"{where}: expected do_rescale with a rescale_factor of 1 / 255")
    if not config.get("do_normalize", True):
        return Scale((0.0,), (1.0,))
    of_timm = weights.setting("pretrained_cfg", {}) or weights.config  # which is all of it in older files
    found = Scale()
    for field, ours, theirs in (("mean", "image_mean", "mean"), ("deviation", "image_std", "std")):
        for config_of, name, path in ((of_timm, theirs, where.with_name(CONFIG)), (config, ours, where)):
            if config_of.get(name) is not None:
                found = found._replace(**{field: _numbers(config_of[name], num_channels, f"{path}: {name}")})
    if min(found.deviation) <= 0:
        raise InputError(f"{where.parent}: a deviation of pixels is {min(found.deviation)}: expected more than 0")
    return found


def size_entry(weights: Weights) -> str:
    """The entry of config.json with the size of the images."""
    return weights.first("image_size", "model_args.img_size", "pretrained_cfg.input_size", "input_size")


def size_of(weights: Weights) -> Shape | None:
    """The height and width of the images in config.json, if they are there."""
    size = weights.entry(size_entry(weights))
    if size_entry(weights).endswith("input_size") and isinstance(size, list):  # the channels are first
        size = size[1:]
    sides = [size, size] if isinstance(size, int) else size
    if sides is None:
        return None
    if not isinstance(sides, list) or len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        where = weights.path.with_name(CONFIG)
        raise InputError(f"{where}: the size of its images is {size!r}: expected a height and a width")
    return tuple(sides)


def hugging_face_config(scale: Scale, grid_shape: Shape, num_channels: int) -> dict[str, Any]:
    """The content of preprocessor_config.json."""
    mean, deviation = (_for_each(each, num_channels) for each in scale)
    height, width = grid_shape
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 3,  # bicubic, as `data.images.image_files`
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": deviation,
    }


def timm_config(scale: Scale | None, grid_shape: Shape, num_channels: int) -> dict[str, Any]:
    """The entry "pretrained_cfg" of timm's config.json."""
    found: dict[str, Any] = {"input_size": [num_channels, *grid_shape], "crop_pct": 1.0, "interpolation": "bicubic"}
    if scale is not None:
        found["mean"], found["std"] = (_for_each(each, num_channels) for each in scale)
    return found


def _numbers(given: Any, num_channels: int, where: str | pathlib.Path) -> Numbers:
    """One number for each channel, or one for all."""
    found = given if isinstance(given, list) else [given]
    if len(found) not in (1, num_channels) or not all(isinstance(each, numbers.Real) for each in found):
        raise InputError(f"{where}={given!r}: expected a number, or one for each of {num_channels} channels")
    return tuple(map(float, found))


def _for_each(given: Numbers, num_channels: int) -> list[float]:
    return list(given) * (num_channels if len(given) == 1 else 1)
