"""How the pixels of a vision transformer are scaled: in the configs of Hugging Face and timm, and in such configs."""

import math
import numbers
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


def scale_of(weights: Weights) -> Scale:
    """The scale in preprocessor_config.json or in timm's config.json; without one, (x - .5) / .5.

    Raises:
      InputError: the file says something else than numbers, or other pixels than those from 0 to 1.
    """
    where = weights.path.with_name(PREPROCESSOR)
    config = read_json(where) or {}
    if not config.get("do_rescale", True) or not math.isclose(config.get("rescale_factor", 1 / 255) * 255, 1.0):
        raise InputError(f"{where}: expected do_rescale with a rescale_factor of 1 / 255")
    if not config.get("do_normalize", True):
        return Scale((0.0,), (1.0,))
    of_timm, default = weights.config.get("pretrained_cfg", {}), Scale()
    mean = config.get("image_mean") or of_timm.get("mean") or default.mean
    deviation = config.get("image_std") or of_timm.get("std") or default.deviation
    for each in (mean, deviation):
        if not isinstance(each, list | tuple) or not all(isinstance(one, numbers.Real) for one in each):
            there = where if config else where.with_name(CONFIG)
            raise InputError(f"{there}: {each!r}: expected the mean and the deviation as lists of numbers")
    return Scale(tuple(mean), tuple(deviation))


def size_of(weights: Weights) -> Shape | None:
    """The height and width of the images in config.json, if they are there."""
    size = weights.config.get("image_size", weights.config.get("pretrained_cfg", {}).get("input_size", [0])[1:])
    return (size, size) if isinstance(size, int) else tuple(size) or None


def hugging_face_config(scale: Scale, grid_shape: Shape, num_channels: int) -> dict[str, Any]:
    """The content of preprocessor_config.json."""
    mean, deviation = (_for_each(each, num_channels) for each in scale)
    height, width = grid_shape
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 3,  # bicubic, as `data.image_files`
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": deviation,
    }


def timm_config(scale: Scale | None, grid_shape: Shape, num_channels: int) -> dict[str, Any]:
    """The entry "pretrained_cfg" of timm's config.json."""
    found: dict[str, Any] = {"input_size": [num_channels, *grid_shape]}
    if scale is not None:
        found["mean"], found["std"] = (_for_each(each, num_channels) for each in scale)
    return found


def _for_each(given: Numbers, num_channels: int) -> list[float]:
    return list(given) * (num_channels if len(given) == 1 else 1)
