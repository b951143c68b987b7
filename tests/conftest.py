"""Eight virtual devices for every test, float64 where a test asks for it, and one cache of compiled programs."""

import functools
import gc
import inspect
import itertools
import os
import shutil
import tempfile
import types
import typing

import jax
import jaxtyping
import pytest
from flax.core import scope
from jax._src.interpreters import mlir

from tests.support.float64 import float64

# Programs that run once or twice: code generation that is quick, not good. XLA reads this when it starts.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):  # newer versions compile every fusion by MLIR, which takes two to four times as long
    FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    FLAGS += " --xla_cpu_use_xnnpack=false --xla_cpu_use_onednn=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"

# Nearly nothing of what imports make is garbage: see `pytest_collection_finish`.
gc.disable()

# Large programs are compiled once for all tests; with pytest-xdist the workers share the folder that the first process
# made. Most are small and no other test has them: writing them takes more time than it saves.
_cache = os.environ.setdefault("POSATTN_TEST_CACHE", tempfile.mkdtemp(prefix="posattn_jax_tests_"))
jax.config.update("jax_compilation_cache_dir", _cache)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# JAX makes a context of MLIR for every program, with all dialects: a fifth of the time of a small one. Here programs
# share one, which is made anew from time to time, as it keeps what it has seen.
_new_context, _contexts = mlir.make_ir_context, itertools.count()


@functools.lru_cache(1)
def _context(number):
    return _new_context()


mlir.make_ir_context = lambda: _context(next(_contexts) // 500)

# Every check of a function's types and shapes is code that is compiled: here, when the function is first called. Shapes
# are checked where an annotation has some.
_jaxtyped = jaxtyping.jaxtyped


def _checked_when_called(*, typechecker):
    check = _jaxtyped(typechecker=typechecker)

    def decorate(each):
        if inspect.isclass(each):
            return check(each)
        if not each.__annotations__:
            return each
        checked = None

        @functools.wraps(each)
        def call(*args, **kwargs):
            nonlocal checked
            if jaxtyping.config.jaxtyping_disable:
                return each(*args, **kwargs)
            if checked is None:
                has_shapes = any(map(_has_shapes, each.__annotations__.values()))
                checked = (check if has_shapes else typechecker)(each)
            return checked(*args, **kwargs)

        return call

    return decorate


def _has_shapes(annotation):
    named = getattr(annotation, "__module__", None) or ""
    return named.startswith("jaxtyping") or any(map(_has_shapes, typing.get_args(annotation)))


jaxtyping.jaxtyped = _checked_when_called

# Flax traces a parameter's initialiser, for its shape, whenever a model with parameters is called: a tenth of the time
# of tracing one. Here that is done once for equal initialisers of equal arguments; Flax compares shapes as ever.
_shapes = {}


def _eval_shape(function, *arguments):
    """`function` is that of `Scope.param`: without arguments, it calls init_fn(key, *init_args, **init_kwargs)."""
    try:
        named = zip(function.__code__.co_freevars, function.__closure__, strict=True)
        given = {name: cell.cell_contents for name, cell in named}
        options = tuple(sorted(given["init_kwargs"].items()))
        key = _comparable(given["init_fn"]), given["init_args"], options, arguments
        if key not in _shapes:
            _shapes[key] = jax.eval_shape(function, *arguments)
        return _shapes[key]
    except (TypeError, KeyError):  # another function of Flax, or what cannot be hashed
        return jax.eval_shape(function, *arguments)


def _comparable(function):
    """Two partial applications of the same to the same are equal."""
    if not isinstance(function, functools.partial):
        return function
    return _comparable(function.func), tuple(map(_comparable, function.args)), tuple(sorted(function.keywords.items()))


scope.jax = types.SimpleNamespace(**vars(jax) | {"eval_shape": _eval_shape})

# Where in the source an operation is, no test asks; finding out takes time with every program.
jax.config.update("jax_traceback_in_locations_limit", 0)


def pytest_collection_finish():
    """What is imported stays: it is not searched for garbage again and again while programs are traced."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 10, 10)


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):  # the process that made the folder
        shutil.rmtree(_cache, ignore_errors=True)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A run folder, for what is done after training: see `made_runs`, imported only where it is asked for."""
    from tests.support.made_runs import make_digits

    fields = {"model.num_blocks": 2, "model.block.attention.span.per_head": True}
    return make_digits(tmp_path_factory.mktemp("runs") / "digits", fields)


@pytest.fixture(scope="session")
def rte_run(tmp_path_factory):
    """Likewise, of sentences."""
    from tests.support.made_runs import make_rte

    return make_rte(tmp_path_factory.mktemp("runs") / "rte")


@pytest.fixture
def undrawn(monkeypatch):
    """A report's words and numbers alone."""
    from posattn_jax.analysis import report

    monkeypatch.setattr(report, "draw_sweep", lambda runs, folder: {})


@pytest.fixture
def roughly_drawn(monkeypatch):
    """Pictures of few pixels, whose panels are not laid out, which is most of the time that a picture takes."""
    import matplotlib.layout_engine
    import matplotlib.pyplot

    monkeypatch.setitem(matplotlib.pyplot.rcParams, "savefig.dpi", 30)
    monkeypatch.setattr(matplotlib.layout_engine.ConstrainedLayoutEngine, "execute", lambda self, figure: None)


@pytest.fixture
def told_at_once(monkeypatch):
    """What is being done is told however quick it is, and not only where it takes a second."""
    from posattn_jax.system import doing

    monkeypatch.setattr(doing, "AFTER", 0.0)


@pytest.fixture(name="float64")
def in_float64():
    """Arrays are float64 by default inside the test."""
    with float64():
        yield


@pytest.fixture
def unchecked():
    """No shape or type checks inside the test: errors are those that users meet."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
