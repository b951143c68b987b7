"""The bridge from Linen to NNX: a class of NNX holds the parameters, the Linen module of its name computes with them.

Flax's own `nnx.bridge.ToNNX` has its parameters only after a call with inputs, and its parts are no NNX modules.
"""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors, nnx

from posattn_jax.axes import Array, Shape
from posattn_jax.nn.checks import check_nnx
from posattn_jax.nn.tokens import Tokens
from posattn_jax.nnx.sizes import Settings, document, sized


class Parameters(nnx.Module):
    """Parameters under a name that is not a part's, such as `output`."""


class Hosted:
    """A part of another NNX class, as a function that Linen modules call."""

    def __init__(self, part: nnx.Module):
        self.part = part
        for name in ("needs", "threshold", "mode", "factors"):
            if hasattr(part, name):
                setattr(self, name, getattr(part, name))

    def __call__(self, *args: Any) -> Any:
        return self.part(*args)


class Bridged(nnx.Module):
    """An NNX module whose calls are those of the Linen module `linen_class`, with the parameters held here.

    A subclass names its Linen module by `of`. Its `sizes` are the arguments by position, sizes and fields of Linen's.

    Args:
      *args, **fields: the sizes and the fields of the Linen module. Parts in them are NNX modules.
      rngs: the rngs: "params", and with dropout also "dropout", of which the module keeps a fork.
      example: the arguments of a call, as a tuple or by name, for parameters of these sizes; arrays may be
        `jax.ShapeDtypeStruct`. Without it and without sizes, the module that holds this one makes the parameters.
    """

    linen_class: ClassVar[type[nn.Module]]
    sizes: ClassVar[tuple[str, ...]]
    signature: ClassVar[inspect.Signature]

    def __init_subclass__(cls, of: type[nn.Module] | None = None, sizes: str = "", **options: Any):
        super().__init_subclass__(**options)
        if of is None:  # a user's subclass
            return
        cls.linen_class, own = of, dict(inspect.signature(of).parameters)
        own = {name: each for name, each in own.items() if name not in ("parent", "name")}
        calls = {name: each for name, each in inspect.getmembers(of, inspect.isfunction) if _is_public(name, each)}
        call = inspect.signature(of.__call__).parameters
        extra = ["num_kv_heads", "parts"] if sizes and "parts" in call else []
        extra += ["deterministic"] if _takes(of.__call__, "deterministic") else []
        first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in sizes.split()]
        rest = [each for name, each in own.items() if name not in sizes.split()]
        if first:
            rest = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in rest]
        rest += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in extra]
        cls.sizes = tuple(name for name in sizes.split() if name not in own)
        cls.signature = inspect.Signature([*first, *rest])
        cls.__doc__ = cls.__doc__ or document(of, cls.sizes)
        for name, call in calls.items():
            setattr(cls, name, _bridged(name, call))
        for name in ("needs", "threshold", "mode"):
            if name not in own and hasattr(of, name):
                setattr(cls, name, getattr(of, name))

    def __init__(
        self, *args: Any, rngs: nnx.Rngs | None = None, example: tuple | dict[str, Any] | None = None, **fields: Any
    ):
        given = self.signature.bind_partial(*args, **fields).arguments
        self.is_made, self.deterministic = False, bool(given.pop("deterministic", False))
        own = inspect.signature(self.linen_class).parameters
        fields = {name: tuple(each) if isinstance(each, list) else each for name, each in given.items() if name in own}
        check_nnx(**fields)
        self.fields, self.held = Settings(), Settings()  # `held`: the numbers or names of several parts; None: one
        for name, value in fields.items():
            self._set(name, value)
        made = {name: each for name, each in given.items() if name not in own and each is not None}
        self.made_with = Settings(made)
        linen = self._linen()
        stream = None if rngs is None or not _has_dropout(linen) else _stream(rngs)
        if example is None and made:
            self.made_with = Settings(self._complete(made, linen))
            examples = [self._example(grid_shape) for grid_shape in self._grid_shapes()]
        else:
            examples = [] if example is None else [example]
        if examples:
            # Parameters are drawn, but those of a span and of a decay.
            draws = {*self.sizes} & {"in_features", "head_dim"} or "bias_init" in self.signature.parameters
            if rngs is None and draws:
                raise TypeError(f"{type(self).__name__}() missing 1 required keyword-only argument: 'rngs'")
            self._init(jax.random.key(0) if rngs is None else rngs.params(), examples)
        self.rngs = nnx.data(None) if stream is None else stream.fork()
        self.is_made = True

    def __getattr__(self, name: str) -> Any:
        settings = vars(self).get("fields"), vars(self).get("held"), vars(self).get("made_with")
        if None in settings or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in self.held:
            return _several(self.held[name], lambda key: vars(self)[f"{name}_{key}"])
        for values in (self.made_with, self.fields):
            if name in values:
                return values[name]
        return getattr(self._linen(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("made_with", ()):
            raise AttributeError(f"{name}={value!r}: it is made with {name}={self.made_with[name]!r}, which stays")
        own = inspect.signature(self.linen_class).parameters
        if not vars(self).get("is_made") or name not in own or isinstance(value, nnx.Variable | Parameters):
            return super().__setattr__(name, value)
        check_nnx(**{name: value})
        self._set(name, tuple(value) if isinstance(value, list) else value)

    def _set(self, name: str, value: Any) -> None:
        """Sets a field of the Linen module. Parts in it are held as attributes of this module."""
        fields, held, keys, parts = dict(self.fields), dict(self.held), None, {name: value}
        if isinstance(value, tuple | Mapping):
            several = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
            keys, parts = tuple(several), {f"{name}_{key}": each for key, each in several.items()}
        fields.pop(name, None)
        for before in (name, *(f"{name}_{key}" for key in held.pop(name, None) or ())):
            if before in vars(self):
                delattr(self, before)
        if any(isinstance(each, nnx.Module) for each in parts.values()):
            held[name] = keys
            for attribute, each in parts.items():
                super().__setattr__(attribute, each)
        else:
            fields[name] = value
        self.fields, self.held = Settings(fields), Settings(held)

    def _complete(self, made: dict[str, Any], linen: Any) -> dict[str, Any]:
        """The sizes of a part that is made with sizes."""
        lacking = [name for name in self.sizes if name not in made]
        if "num_dims" in made and hasattr(linen, "per_head"):
            if linen.per_head and lacking:
                raise ValueError("per_head=True: expected num_heads with it")
            return made if linen.per_head else {"num_dims": made["num_dims"]}
        if lacking:
            raise TypeError(f"{type(self).__name__}() missing {' and '.join(map(repr, lacking))}")
        parts = self.signature.parameters.get("parts")
        return made if parts is None or "parts" in made else {**made, "parts": ("query", "key", "value")}

    def _example(self, grid_shape: Shape) -> tuple:
        """The arguments of a call with the sizes that the module was made with."""
        made = self.made_with
        width = made.get("in_features") or made.get("num_heads", 1) * made.get("head_dim", 1)
        inputs = jnp.zeros((1, math.prod(grid_shape), width))
        call = inspect.signature(self.linen_class.__call__).parameters
        if "tokens" not in call:
            return (inputs, grid_shape) if "grid_shape" in call else (inputs,)
        heads = {name: made[name] for name in ("head_dim", "num_kv_heads") if name in made}
        tokens = Tokens(inputs, grid_shape, made.get("num_heads", 1), **heads)
        return (None, None, tokens) if "query" in call else (tokens,)

    def _grid_shapes(self) -> list[Shape]:
        """Small grids, of which this module and its parts fit the first that they raise no error for."""
        for part in _modules(self):
            if isinstance(part, Bridged):
                made, given = part.made_with, part.made_with | part.fields
                if "num_dims" in made:
                    return [(2,) * made["num_dims"]]
                for name in ("grid_shape", "kernel_shape", "half_span", "dilation"):
                    if isinstance(given.get(name), tuple):
                        return [tuple(min(size, 2) for size in given[name])]
        return [(2,), (2, 2), (2, 2, 2)]

    def _init(self, key: Array, examples: list) -> None:
        """Makes the parameters that are lacking, by the first example that fits; what a part has, it keeps."""
        for example in examples[:-1]:
            with contextlib.suppress(ValueError):
                return self._init(key, [example])
        example = examples[-1]
        given = example if isinstance(example, dict) else dict(enumerate(example))
        arrays = {at: jax.ShapeDtypeStruct(x.shape, x.dtype) for at, x in given.items() if hasattr(x, "dtype")}

        def call(module: Any, *of_call: Any) -> Any:
            every = given | dict(zip(arrays, of_call, strict=True))
            by_name = {at: each for at, each in every.items() if isinstance(at, str)}
            return module(*(each for at, each in every.items() if at not in by_name), **by_name)

        params = nn.unbox(self._linen().lazy_init({"params": key}, *arrays.values(), method=call)).get("params", {})
        _check_used(self, params)
        _fill(self, params)

    def _linen(self, with_overrides: bool = True) -> nn.Module:
        """The Linen module, with the Linen modules of the parts in its fields."""
        fields, part = dict(self.fields), lambda name: _linen_of(vars(self)[name])
        for name, keys in self.held.items():
            fields[name] = part(name) if keys is None else _several(keys, lambda key, of=name: part(f"{of}_{key}"))
        linen_class = sized(self.linen_class, self.made_with) if self.made_with else self.linen_class
        overrides = self._overrides() if with_overrides else ()
        if overrides:
            # Until it is made, the user's method may lack what is set after `super().__init__()`.
            own = {
                name: (lambda _, *args, of=name: getattr(self, of)(*args) if self.is_made else args[0])
                for name in overrides
            }
            linen_class = type(type(self).__name__, (linen_class,), own)
        return linen_class(**fields, parent=None)

    def _overrides(self) -> tuple[str, ...]:
        """The methods of the Linen module that a user's subclass defines anew."""
        classes = type(self).__mro__
        number = next(i for i, each in enumerate(classes) if "linen_class" in vars(each))
        return tuple(
            {
                name
                for each in classes[:number]
                for name in vars(each)
                if hasattr(self.linen_class, name) and _is_public(name, getattr(self.linen_class, name))
            }
        )

    def _apply(self, name: str, *args: Any, rngs: nnx.Rngs | None = None, **fields: Any) -> Any:
        """Calls the method of this name of the Linen module."""
        streams = {}
        if _takes(getattr(self.linen_class, name), "deterministic"):
            if fields.get("deterministic") is None:
                fields["deterministic"] = self.deterministic
            stream = self.rngs if rngs is None else _stream(rngs)
            if stream is not None and not fields["deterministic"]:
                streams = {"dropout": stream()}
        linen = self._linen(with_overrides=name == "__call__")
        try:
            return linen.apply({"params": _params(self)}, *args, rngs=streams, method=name, **fields)
        except (errors.ScopeCollectionNotFound, errors.ScopeParamNotFoundError) as error:
            given = "its sizes, or example= with the arguments of a call"
            raise ValueError(f"{type(self).__name__} has no parameters: expected {given}, and rngs=") from error


def _bridged(name: str, call: Callable) -> Callable:
    """The method of this name, by the Linen module."""

    @functools.wraps(call)
    def method(self: Bridged, *args: Any, **fields: Any) -> Any:
        return self._apply(name, *args, **fields)

    return method


def _is_public(name: str, function: Any) -> bool:
    of_all = hasattr(nn.Module, name) and name != "__call__"
    return inspect.isfunction(function) and not of_all and (name == "__call__" or not name.startswith("_"))


@functools.cache
def _takes(call: Callable, name: str) -> bool:
    """Whether the call has an argument of this name, or passes any on."""
    return any(
        each.name == name or each.kind == each.VAR_KEYWORD for each in inspect.signature(call).parameters.values()
    )


def _linen_of(part: Any) -> Any:
    if isinstance(part, Bridged) and "__call__" not in part._overrides():
        return part._linen()
    return Hosted(part) if isinstance(part, nnx.Module) else part


def _has_dropout(linen: nn.Module) -> bool:
    for name in inspect.signature(type(linen)).parameters:
        value = getattr(linen, name)
        if name.endswith("dropout_rate") and value:
            return True
        if name != "parent" and any(isinstance(x, nn.Module) and _has_dropout(x) for x in jax.tree.leaves(value)):
            return True
    return False


def _modules(module: nnx.Module) -> Iterator[nnx.Module]:
    """The module and all within it; `nnx.iter_modules` is younger than the least Flax."""
    yield module
    for each in vars(module).values():
        if isinstance(each, nnx.Module):
            yield from _modules(each)


def _stream(rngs: nnx.Rngs) -> nnx.RngStream:
    """The stream of dropout; ValueError if there is none."""
    try:
        return rngs["dropout"]
    except (AttributeError, KeyError, ValueError) as error:
        raise ValueError("dropout_rate: expected an rng, nnx.Rngs(params=..., dropout=...)") from error


def _params(node: nnx.Module) -> dict[str, Any]:
    """Linen's tree of the parameters."""
    params = {}
    for name, each in vars(node).items():
        if isinstance(each, nnx.Param):
            params[name] = each[...]
        elif isinstance(each, Bridged | Parameters) and (below := _params(each)):
            params[name] = below
    return params


def _check_used(node: nnx.Module, params: dict[str, Any]) -> None:
    """ValueError for a part whose parameters are not among these, as those of layers that a loop stacks."""
    for name, each in vars(node).items():
        if isinstance(each, Bridged) and _params(each):
            if name not in params:
                raise ValueError(f"{name}={type(each).__name__}(...) has parameters of its own: expected no sizes")
            _check_used(each, params[name])


def _several(keys: tuple, part: Callable[[Any], Any]) -> Any:
    """The parts of a field: a tuple if their keys are numbers, and a mapping if these are names."""
    found = {key: part(key) for key in keys}
    return tuple(found.values()) if 0 in found else found


def _fill(node: nnx.Module, params: dict[str, Any]) -> None:
    """Gives the node those of the parameters that it lacks."""
    for name, each in params.items():
        if isinstance(each, dict):
            if name not in vars(node):
                setattr(node, name, Parameters())
            _fill(vars(node)[name], each)
        elif name not in vars(node):
            setattr(node, name, nnx.Param(each))
