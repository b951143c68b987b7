"""A config describes constructor calls: `part` writes a call as a config, and `build` makes it.

A part is a ConfigDict with the name of a class, "kind", and all fields of the class. Their values are written as

  number, text, tuple   itself
  another object        its part; None if there is no object
  several objects       a ConfigDict of parts, with any names, in the order of these
  equal objects         for the field `blocks`: one part `block`, and `num_blocks`; each block is built separately
  a function            its name, see `names.FUNCTIONS`
  `dtype`, `param_dtype`   "float32" or "bfloat16"; None: as in the enclosing part

A field that is None in the config may get its value from the data, such as `num_classes`: see `build`. A field that
always gets its value from the data has the metadata `FROM_DATA`, and is not in a config.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict, FieldReference, config_dict

from posattn_jax.config.names import DTYPES, FUNCTIONS, class_of, function_name, name_of, trust
from posattn_jax.system.errors import InputError
from posattn_jax.tasks.task import FROM_DATA

INHERITED = ("dtype", "param_dtype")
TREE = ConfigDict | dict


def part(cls: type, **fields: Any) -> ConfigDict:
    """The call `cls(**fields)` as a config. All other fields have their defaults.

    Raises:
      InputError: the class has no such field, or `num_blocks` is given without `block`.
    """
    trust(cls.__module__)
    config = ConfigDict({"kind": name_of(cls)}, allow_dotted_keys=False)
    for name in set(fields) - _accepted(cls):
        raise InputError(_no_field(f"part({cls.__name__})", name, fields[name], cls))
    for field in _fields(cls):
        one, number = _singular(field.name)
        if one in fields:
            config[one], config[number] = _copy(fields[one]), fields.get(number, 1)
            continue
        if number in fields and number not in config and one:
            raise InputError(f"part({cls.__name__}).{number}={fields[number]}: expected {one} with it")
        value = fields.get(field.name, _default(field))
        config[field.name] = _none(field) if value is None else _written(value)
    return config


def nones(cls: type) -> dict[str, Any]:
    """What None is in a config, for each field of a class: a placeholder that a command line can set, or None."""
    return {field.name: _none(field) for field in _fields(cls)}


def of(value: Any) -> ConfigDict:
    """The part that builds a given object. Its blocks must all be equal. Its dtypes are not written."""
    fields: dict[str, Any] = {}
    for name in {field.name for field in _fields(type(value))} - set(INHERITED):
        own, (one, number) = getattr(value, name), _singular(name)
        fields |= {one: of(own[0]), number: len(own)} if one else {name: own}
    return part(type(value), **fields)


def build(config: Any, path: str, **known: Any) -> Any:
    """The object that a part describes.

    Args:
      config: the part.
      path: where the part is in the run's config, for messages.
      **known: values from the data. They fill fields that are None in the config: any field of the object itself, but
        only required fields of its parts.

    Raises:
      InputError: a kind or field is unknown, a value has a wrong type, or the class refuses it.
    """
    return _built(config, path, known, None)


def _built(config: TREE, path: str, known: dict[str, Any], around: dict[str, Any] | None) -> Any:
    """As `build`. `around` has the dtypes of the enclosing part; None: there is no enclosing part."""
    if "kind" not in config:
        raise InputError(f"{path}: expected a part, with the name of a class as its kind")
    cls = class_of(config["kind"], f"{path}.kind")
    given = {name: config[name] for name in config if name != "kind"}
    for name in sorted(set(given) - _accepted(cls)):
        raise InputError(_no_field(path, name, given[name], cls))
    own = {name: given[name] for name in INHERITED if given.get(name) is not None}
    dtypes = (around or {}) | {name: _named(DTYPES, value, f"{path}.{name}") for name, value in own.items()}
    arguments = {}
    for field in _fields(cls, of_data=True):
        name, (one, number) = field.name, _singular(field.name)
        value = given.get(name, _default(field))
        if field.metadata == FROM_DATA:
            arguments |= {name: known[name]} if name in known else {}
        elif name in INHERITED:
            arguments |= {name: dtypes[name]} if name in dtypes else {}
        elif one in given:
            count: Any = given.get(number, 1)
            if type(count) is not int or count < 1:
                raise InputError(f"{path}.{number}={count!r}: expected a whole number of at least 1")
            arguments[name] = tuple(_built(given[one], f"{path}.{one}", known, dtypes) for _ in range(count))
        elif value is None and name in known and (around is None or _is_needed(field)):
            arguments[name] = known[name]
        elif value is None and _is_needed(field):
            raise InputError(f"{path}.{name}: {cls.__name__} needs it")
        else:
            arguments[name] = _value(value, field, f"{path}.{name}", known, dtypes)
    try:
        return cls(**arguments)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}.{error}") from error
    except TypeError as error:  # an abstract class
        raise InputError(f"{path}.kind={config['kind']}: {error}") from error


def _named(known: dict[str, Any], name: Any, path: str) -> Any:
    """The value of a name. Raises InputError if the name is unknown."""
    if name not in known:
        raise InputError(f'{path}="{name}": expected {_one_of(known)}')
    return known[name]


def _value(value: Any, field: Any, path: str, known: dict[str, Any], dtypes: dict[str, Any]) -> Any:
    """The value of a field, from its value in the config."""
    found = value
    if isinstance(value, TREE) and "kind" in value:
        found = _built(value, path, known, dtypes)
    elif isinstance(value, TREE):
        given = {f"{path}.{name}": each for name, each in value.items() if each is not None}
        built = {where: _built(each, where, known, dtypes) for where, each in given.items()}
        named = {where.rpartition(".")[2]: each for where, each in built.items()}
        takes_names = any(typing.get_origin(each) is Mapping for each in _alternatives(field.type))
        found = named if takes_names else tuple(named.values())
    elif isinstance(value, str) and _takes_function(field.type):
        return _named(FUNCTIONS, value, path)
    elif isinstance(value, list | tuple):
        found = tuple(value)
    if not _fits(found, field.type):
        raise InputError(f"{path}={_shown(value)}: expected {_expected(field.type)}")
    return found


def change(config: ConfigDict, fields: Mapping[str, Any]) -> ConfigDict:
    """Sets fields by their paths. A part, or None, replaces the previous value.

    Raises:
      InputError: the config has no such field, or the value has another type.
    """
    for path, value in fields.items():
        *above, name = path.split(".")
        within = config
        for each in above:
            within = within.get(each) if isinstance(within, ConfigDict) else None
        if not isinstance(within, ConfigDict) or name not in within:
            raise InputError(f"config.{path}={_shown(value)}: there is no such field")
        try:
            if isinstance(value, TREE) or value is None or isinstance(within[name], ConfigDict):
                with within.unlocked(), within.ignore_type():
                    del within[name]
                    within[name] = _copy(value) if isinstance(value, TREE) else value
            else:
                within[name] = value
        except TypeError as error:
            raise InputError(f"config.{path}={_shown(value)}: {error}") from error
    return config


def without_none(config: ConfigDict) -> ConfigDict:
    """Sets every part whose kind is "none" to None. The kind is how a command line removes a part."""
    for name, value in list(config.items()):
        if isinstance(value, ConfigDict):
            change(config, {name: None}) if value.get("kind") == "none" else without_none(value)
    return config


def set_all(config: ConfigDict, **fields: Any) -> ConfigDict:
    """Sets these fields in every part of the config that has them."""
    for name, value in list(config.items()):
        if isinstance(value, ConfigDict):
            set_all(value, **fields)
        elif name in fields:
            change(config, {name: fields[name]})
    return config


def leaves(config: ConfigDict, name: str) -> list[Any]:
    """The values of all fields with this name, in the config and all its parts."""
    below = [found for value in config.values() if isinstance(value, ConfigDict) for found in leaves(value, name)]
    return [config[name], *below] if name in config and not isinstance(config[name], ConfigDict) else below


def _fields(cls: type, of_data: bool = False) -> list[Any]:
    """The fields of a class that a config has and, with `of_data`, also those that come from the data."""
    unasked = ("parent", "name") if issubclass(cls, nn.Module) else ()
    fields = [field for field in dataclasses.fields(cls) if field.init and field.name not in unasked]
    return [field for field in fields if of_data or field.metadata != FROM_DATA]


def _singular(name: str) -> tuple[str, str]:
    """("block", "num_blocks") for `blocks`; the first is empty for names that do not end with "blocks"."""
    return name.removesuffix("s") if name.endswith("blocks") else "", f"num_{name}"


def _accepted(cls: type) -> set[str]:
    names = {field.name for field in _fields(cls)}
    return names | {each for name in names if name.endswith("blocks") for each in _singular(name)}


def _is_needed(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: Any) -> Any:
    if field.name in INHERITED or _is_needed(field):
        return None
    return field.default if field.default is not dataclasses.MISSING else field.default_factory()


def _copy(tree: TREE) -> ConfigDict:
    """A copy of a tree. It shares only the field references, which are shared on purpose."""
    copied = ConfigDict()
    for name, value in tree.items(preserve_field_references=True) if isinstance(tree, ConfigDict) else tree.items():
        if isinstance(value, FieldReference) and value.get() is None:
            value = config_dict.placeholder(value.get_type())
        copied[name] = _copy(value) if isinstance(value, TREE) else value
    return copied


def _written(value: Any) -> Any:
    """A value as it is written in a config. Objects among the defaults have the dtypes of the enclosing part."""
    if isinstance(value, TREE | FieldReference):
        return _copy(value) if isinstance(value, TREE) else value
    if dataclasses.is_dataclass(value):
        return of(value)
    if isinstance(value, Mapping):
        return ConfigDict({name: _written(each) for name, each in value.items()})
    if isinstance(value, tuple) and value and all(map(dataclasses.is_dataclass, value)):
        names = [type(each).__name__.lower() for each in value]
        if names != sorted(set(names)):  # a config is in the order of its names
            names = [f"{number:02}_{name}" for number, name in enumerate(names)]
        return ConfigDict({name: _written(each) for name, each in zip(names, value, strict=True)})
    return function_name(value) if callable(value) else value


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(each for one in typing.get_args(hint) for each in _alternatives(one)) if is_union else (hint,)


def _none(field: Any) -> Any:
    """The config's value for a field that is None: a placeholder whose type the command line needs, if there is one."""
    hints = [typing.get_origin(each) or each for each in _alternatives(field.type)]
    types_of = [each for each in hints if each in (int, float, bool, str, tuple)]
    types_of += [str] if field.name in INHERITED or _takes_function(field.type) else []
    return config_dict.placeholder(types_of[0]) if types_of else None


def _takes_function(hint: Any) -> bool:
    return any(
        each is Callable or typing.get_origin(each) is Callable or getattr(each, "__name__", "") == "Initializer"
        for each in _alternatives(hint)
    )


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value fits a field's type. Only literals, tuples, mappings, numbers and classes are checked."""
    for each in _alternatives(hint):
        if typing.get_origin(each) is typing.Literal:
            fits = value in typing.get_args(each)
        elif typing.get_origin(each) is tuple:
            item = typing.get_args(each)[0]
            fits = isinstance(value, tuple) and all(_fits(one, item) for one in value)
        elif typing.get_origin(each) is Mapping:
            fits = isinstance(value, Mapping)
        elif each in (int, float):
            # No infinity: the config of a run is saved as JSON, which has none.
            fits = isinstance(value, int | each) and not isinstance(value, bool) and abs(value) < math.inf
        else:
            fits = not isinstance(each, type) or isinstance(value, each)
        if fits:
            return True
    return False


def _expected(hint: Any) -> str:
    names: list[str] = []
    for each in _alternatives(hint):
        if typing.get_origin(each) is typing.Literal:
            names += [f'"{value}"' for value in typing.get_args(each)]
        elif typing.get_origin(each) is tuple:
            names.append(f"a tuple of {typing.get_args(each)[0].__name__}")
        else:
            names.append("None" if each is type(None) else "a finite float" if each is float else each.__name__)
    return _one_of(names, quote="")


def _one_of(names: Any, quote: str = '"') -> str:
    *others, last = (f"{quote}{name}{quote}" for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _shown(value: Any) -> str:
    """A value as it is shown in a message; for a part, its kind."""
    if isinstance(value, TREE):
        return str(value.get("kind", tuple(value)))
    return f'"{value}"' if isinstance(value, str) else str(value)


def _no_field(path: str, name: str, value: Any, cls: type) -> str:
    known = sorted(_accepted(cls))
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{path}.{name}={_shown(value)}: {hint}{cls.__name__} has {', '.join(known)}"
