"""Reads weights of others into our models, and writes them back in their formats. Needs the extra `convert`."""

from posattn_jax.convert.bert_weights import bert as bert
from posattn_jax.convert.bert_weights import save_bert as save_bert
from posattn_jax.convert.bert_weights import save_composite_bert as save_composite_bert
from posattn_jax.convert.classifier_weights import classifier as classifier
from posattn_jax.convert.classifier_weights import save_classifier as save_classifier
from posattn_jax.convert.posnet_weights import posnet as posnet
from posattn_jax.convert.posnet_weights import save_posnet as save_posnet
from posattn_jax.convert.t5_weights import save_t5_bias as save_t5_bias
from posattn_jax.convert.t5_weights import t5_bias as t5_bias
from posattn_jax.convert.translution_weights import save_translution as save_translution
from posattn_jax.convert.translution_weights import translution as translution
from posattn_jax.convert.vit_weights import save_vit as save_vit
from posattn_jax.convert.vit_weights import vit as vit
