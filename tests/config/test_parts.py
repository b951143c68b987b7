"""Parts of configs, and the objects that they describe."""

import json
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from ml_collections import ConfigDict, FieldReference

from configs import cifar2d_span
from posattn_jax import (
    Classifier,
    Content,
    EncoderBlock,
    GaussianSpan,
    LinearBias,
    Positional,
    PositionalSelfAttention,
    RelativeBias,
    Siren,
    SirenEncoding,
    WindowSpan,
)
from posattn_jax.config import parts
from posattn_jax.config.names import FUNCTIONS
from posattn_jax.config.parts import build, change, leaves, part, set_all, without_none
from posattn_jax.system.errors import InputError


def attention(**fields):
    return part(PositionalSelfAttention, num_heads=2, **fields)


def classifier(num_blocks=2, **fields):
    block = part(EncoderBlock, attention=attention(), mlp_dim=8)
    return part(Classifier, width=8, num_blocks=num_blocks, block=block, **fields)


def test_a_part_is_a_call_with_all_its_defaults():
    span = part(GaussianSpan, threshold=0.2)
    assert span.to_dict() == {
        "kind": "GaussianSpan",
        "threshold": 0.2,
        "mode": "multiply",
        "covariance": "diagonal",
        "initial_sigma": 0.3,
        "per_head": False,
        "param_dtype": None,
    }
    assert build(span, "span") == GaussianSpan(threshold=0.2)


def test_a_default_that_is_a_part_is_one():
    config = attention()
    assert config.terms.to_dict() == {"content": {"kind": "Content"}}
    assert config.kernel_init == "xavier" and config.span is None
    assert dict(build(config, "attention").terms) == {"content": Content()}


@pytest.mark.parametrize("terms", [(Content(), RelativeBias((3,)), LinearBias()), (LinearBias(), LinearBias())])
def test_objects_keep_their_order_and_number(terms):
    """Also where the names of their classes are in another, or twice the same."""
    layer = PositionalSelfAttention(2, terms=terms)
    assert tuple(build(parts.of(layer), "attention").terms.values()) == terms


def test_terms_keep_their_names():
    terms = {"bias": LinearBias(), "what": Content()}
    layer = PositionalSelfAttention(2, terms=terms)
    assert dict(build(parts.of(layer), "attention").terms) == terms


def test_blocks_are_made_afresh():
    """Modules that were one object would share their parameters."""
    model = build(classifier(num_blocks=3), "model", num_classes=5)
    assert len(model.blocks) == len({id(block.attention) for block in model.blocks}) == 3
    pixels = jnp.ones((1, 4, 1))
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), pixels, (4,)))["params"]
    assert {f"blocks_{i}" for i in range(3)} <= set(params)


def test_blocks_may_differ():
    blocks = {name: part(EncoderBlock, attention=attention(), mlp_dim=size) for name, size in (("a", 4), ("b", 6))}
    model = build(part(Classifier, width=8, num_classes=3, blocks=blocks), "model")
    assert [block.mlp_dim for block in model.blocks] == [4, 6]


def test_parts_that_are_given_twice_are_not_shared():
    span = part(GaussianSpan)
    one, other = attention(span=span), attention(span=span)
    one.span.threshold, one.head_dim = 0.7, 5
    assert (other.span.threshold, span.threshold, other.head_dim) == (0.1, 0.1, None)
    config = change(ConfigDict({"a": None, "b": None}), {"a": span, "b": span})
    config.a.threshold = 0.5
    assert config.b.threshold == 0.1


def test_a_reference_is_shared_on_purpose():
    rate = FieldReference(0.1)
    block = part(EncoderBlock, attention=attention(), mlp_dim=8, dropout_rate=rate)
    config = part(Classifier, width=8, block=block, num_blocks=1, dropout_rate=rate)
    config.dropout_rate = 0.3
    assert config.block.dropout_rate == 0.3


def test_dtypes_are_those_of_the_part_around():
    config = classifier(dtype="bfloat16", param_dtype="float32")
    config.block.attention.dtype = "float32"
    model = build(config, "model", num_classes=5)
    assert (model.dtype, model.blocks[0].dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert model.blocks[0].attention.dtype == jnp.float32


def test_what_json_gives_back_is_the_same():
    config = cifar2d_span.get_config("tiny").model
    again = ConfigDict(json.loads(json.dumps(config.to_dict())))
    assert build(again, "model", num_classes=5) == build(config, "model", num_classes=5)


class OwnTerm(nn.Module):
    """A class that the package does not know."""

    needs: ClassVar = ()

    strength: float = 2.0

    def __call__(self, query, key, tokens):
        raise NotImplementedError


def test_a_class_of_ones_own():
    config = attention(terms={"own": part(OwnTerm, strength=3.0)})
    assert config.terms.own.kind == "tests.config.test_parts:OwnTerm"
    assert dict(build(config, "attention").terms) == {"own": OwnTerm(3.0)}


def test_every_named_function_is_itself():
    for name, function in FUNCTIONS.items():
        assert build(part(RelativeBias, kernel_shape=(3,), bias_init=name), "x").bias_init is function


def test_none_on_a_command_line():
    config = change(ConfigDict({"model": None}), {"model": classifier()})
    config.model.block.attention.terms.content.kind = "none"
    assert without_none(config).model.block.attention.terms.content is None
    with pytest.raises(InputError, match=r"^x.terms=\(\)"):
        build(config.model.block.attention, "x")


def test_fields_of_all_parts_at_once():
    config = classifier()
    assert leaves(config, "implementation") == ["auto"] and leaves(config, "num_classes") == [None]
    set_all(config, implementation="dense", num_classes=7)
    assert config.block.attention.implementation == "dense" and config.num_classes == 7


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kind": "Gaussian"}, "^span.kind: Gaussian is no class"),
        (
            {"kind": "no.such:Thing"},
            "^span.kind: no.such:Thing .*--modules=no.such",
        ),
        ({"kind": "WindowSpan"}, r"^span.covariance=\"diagonal\": WindowSpan"),
        ({"treshold": 0.1}, r"^span.treshold=0.1: did you mean threshold\?"),
        ({"threshold": "much"}, '^span.threshold="much": .*float'),
        ({"threshold": True}, "^span.threshold=True: .*float"),
        ({"threshold": float("nan")}, "^span.threshold=nan: expected a finite float"),
        ({"threshold": float("-inf")}, "^span.threshold=-inf: expected a finite float"),
        ({"per_head": 1}, "^span.per_head=1: .*bool"),
        ({"mode": "add"}, '^span.mode="add": .*"log_add"'),
        ({"param_dtype": "float8"}, '^span.param_dtype="float8": .*"bfloat16"'),
        ({"initial_sigma": 0.0}, "^span.initial_sigma=0.0"),
    ],
    ids=str,
)
def test_bad_parts_are_one_line(changes, message):
    with pytest.raises(InputError, match=message):
        build(part(GaussianSpan).to_dict() | changes, "span")


class Composed(nn.Module):
    """A class with an object among its defaults."""

    span: GaussianSpan = GaussianSpan(threshold=0.3)


def test_an_object_among_the_defaults_has_the_dtypes_around_it():
    config = part(Composed)
    assert config.span.threshold == 0.3 and config.span.param_dtype is None
    assert build(config, "x").span == GaussianSpan(threshold=0.3)


def test_bad_calls_are_one_line():
    with pytest.raises(InputError, match=r"^part\(Classifier\).num_blocks=3: .*block"):
        part(Classifier, width=8, num_blocks=3)
    with pytest.raises(InputError, match=r"^part\(Siren\).layers=3: .*num_layers\?"):
        part(Siren, layers=3)
    with pytest.raises(ValueError, match="expected one of relu, gelu"):
        part(RelativeBias, kernel_shape=(3,), bias_init=lambda key, shape: 0)
    with pytest.raises(InputError, match="^span: .*kind"):
        build({"threshold": 0.1}, "span")
    with pytest.raises(InputError, match="^span.half_span: WindowSpan needs it$"):
        build(part(WindowSpan), "span")
    with pytest.raises(InputError, match=r'^span.half_span="wide": .*int'):
        build(part(WindowSpan, half_span="wide"), "span")
    with pytest.raises(InputError, match="^model.num_blocks=0: expected a whole number of at least 1$"):
        build(classifier(num_blocks=0), "model", num_classes=5)
    saved = json.loads(classifier().to_json()) | {"num_blocks": "2"}
    with pytest.raises(InputError, match="^model.num_blocks='2': "):
        build(saved, "model", num_classes=5)
    with pytest.raises(InputError, match="span=SirenEncoding: .*Span or None"):
        config = classifier()
        build(change(config, {"block.attention.span": part(SirenEncoding)}), "model", num_classes=5)
    with pytest.raises(InputError, match="sapn=None: .*no such field"):
        change(classifier(), {"block.attention.sapn": None})
    with pytest.raises(InputError, match='^config.width="wide": '):
        change(classifier(), {"width": "wide"})


def test_a_part_of_another_kind_of_part():
    config = attention(terms={"positional": part(Positional, encoding=part(SirenEncoding, num_layers=4))})
    assert dict(build(config, "x").terms) == {"positional": Positional(SirenEncoding(num_layers=4))}
