"""x"""

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "") -> ConfigDict:
    return common.apply_variant(common.get_config(), variant)
