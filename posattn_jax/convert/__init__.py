"""Reads weights of others into our models, and writes them back in their formats. Needs the extra `convert`."""

from posattn_jax.convert.bert_weights import bert, save_bert, save_composite_bert
from posattn_jax.convert.classifier_weights import classifier, save_classifier
from posattn_jax.convert.posnet_weights import posnet, save_posnet
from posattn_jax.convert.t5_weights import save_t5_bias, t5_bias
from posattn_jax.convert.translution_weights import save_translution, translution
from posattn_jax.convert.vit_weights import save_vit, vit

__all__ = [
    "bert",
    "classifier",
    "posnet",
    "save_bert",
    "save_classifier",
    "save_composite_bert",
    "save_posnet",
    "save_t5_bias",
    "save_translution",
    "save_vit",
    "t5_bias",
    "translution",
    "vit",
]
