"""What the names of classes in a config import: a run folder is data, and may be a stranger's."""

import contextlib
import io
import json
import shutil
import sys

import pytest

from posattn_jax import main
from posattn_jax.config import experiment, names
from posattn_jax.config.names import class_of
from posattn_jax.config.saved import completed, get_config, settable
from posattn_jax.data.text import parallel
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.run.evaluate import evaluate
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.files import cache_folder
from posattn_jax.use import explain, export, generate, predict, translate
from posattn_jax.use.export_weights import export_weights
from tests.support import shipped
from tests.support.made_text import sentences

EVIL = """import pathlib
from posattn_jax import GaussianSpan
pathlib.Path(__file__).with_name("ran").touch()
class Kind(GaussianSpan):
    pass
"""
PARTS = ("data", "task", "model", "model.block.attention.span")
MODES = {
    "predict": lambda run: predict.predict(run, [], [], io.StringIO(), 1),
    "explain": lambda run: explain.explain(run, [], [], (), ()),
    "export": export.export,
    "export_weights": lambda run: export_weights(run, "hugging_face"),
    "generate": lambda run: generate.generate(run, b"", io.StringIO()),
    "translate": lambda run: translate.translate(run, None, [], io.StringIO()),
    "evaluate": lambda run: evaluate(get_config(str(run)), run),
}


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setattr(names, "_TRUSTED", set())


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that can be imported, and leaves a file when it is."""
    (tmp_path / "evil_module.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "ran"
    sys.modules.pop("evil_module", None)


CONFIGS = {"generate": "char_lm", "translate": "nmt:multi30k"}  # of modes for other tasks than that of the digits


@pytest.fixture(scope="module")
def subwords():
    return tokenizer.train(sentences(0, 300), 50)


def stranger(digits_run, folder, path, kind, mode="predict"):
    """A run folder with another kind of a part, and with a checkpoint."""
    folder.mkdir()
    (folder / "checkpoints").symlink_to(digits_run / "checkpoints")
    saved = json.loads((digits_run / "config.json").read_text())
    if mode in CONFIGS:
        saved = json.loads(json.dumps(shipped.get_config(CONFIGS[mode], "tiny").to_dict()))
    part = saved
    for name in path.split("."):
        part = part[name]
    part["kind"] = kind
    (folder / "config.json").write_text(json.dumps(saved))
    return folder


@pytest.mark.parametrize(
    "kind", ["evil_module:Kind", "evil_module.Kind", "os.path:join", "os.path.join", "subprocess:Popen"]
)
@pytest.mark.parametrize("path", PARTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_folder_imports_nothing(digits_run, subwords, tmp_path, evil, mode, path, kind):
    path = path.replace("model.block.attention.span", "model.encoder_block.mixing") if mode == "translate" else path
    run = stranger(digits_run, tmp_path / "run", path, kind, mode)
    if mode == "translate":  # which reads these before the model
        tokenizer.save(subwords, run)
        (run / parallel.RATIO_FILE).write_text('{"length_ratio": 1.0}')
    with pytest.raises(InputError) as raised:
        MODES[mode](run)
    assert not evil.exists() and "evil_module" not in sys.modules
    assert f"{path}.kind" in str(raised.value) and kind in str(raised.value)


@pytest.mark.parametrize("path", PARTS)
def test_a_run_to_start_from_and_a_config_of_a_report_import_nothing(digits_run, tmp_path, evil, path):
    run = stranger(digits_run, tmp_path / "run", path, "evil_module:Kind")
    config = settable(json.loads((digits_run / "config.json").read_text()))
    with config.unlocked():
        config.task.pretrained = str(run)
    saved = experiment.pretrained_run(config)
    assert saved is not None
    assert completed(saved.config) == saved.config
    settable(saved.config)
    assert not evil.exists()


@pytest.mark.parametrize("mode", ["predict", "evaluate"])
def test_no_compiled_program_is_read_from_where_a_run_folder_says(digits_run, tmp_path, monkeypatch, mode):
    """It is machine code."""
    run, folders = tmp_path / "run", []
    shutil.copytree(digits_run, run)
    saved = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(saved | {"cache_dir": str(tmp_path / "evil")}))
    monkeypatch.setattr(experiment, "keep_programs", folders.append)
    inputs = {"predict": lambda run: predict.predict(run, ["none.png"], [], io.StringIO(), 1)}
    with contextlib.suppress(RunError):  # its checkpoint has no state of an optimizer
        (inputs | {"evaluate": MODES["evaluate"]})[mode](run)
    assert folders == [cache_folder()]


def test_modules_that_the_command_line_names(evil):
    with pytest.raises(InputError, match="span.kind: evil_module:Kind .*--modules=evil_m"):
        class_of("evil_module:Kind", "span.kind")
    main._trust(["posattn", "--mode=predict", "--modules=another,evil_module"])
    assert class_of("evil_module:Kind", "span.kind").__name__ == "Kind" and evil.exists()
    names._TRUSTED.clear()
    main._trust(["posattn", "--config.model.block.attention.span.kind=evil_module:Kind"])
    assert class_of("evil_module:Kind", "span.kind").__name__ == "Kind"


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "posattn_jax.system.errors:InputError",
            "InputError is no dataclass",
        ),
        ("posattn_jax.nowhere:Kind", "x: No module named 'posattn_jax.nowhere'"),
        ("posattn_jax_of_another:Kind", "--modules=posattn_jax_of_another"),
        (":Kind", "is not of posattn_jax"),
        (5, "x: 5 is no class"),
        (None, "x: None is no class"),
        (["Kind"], "is no class of posattn_jax"),
    ],
)
def test_names_of_no_part(name, message):
    with pytest.raises(InputError, match=message) as raised:
        class_of(name, "x")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "path, kind, message",
    [
        ("data", "GaussianSpan", 'data.kind="GaussianSpan": .*data set'),
        ("task", "GaussianSpan", 'task.kind="GaussianSpan": .*task'),
        ("model", "GaussianSpan", 'model.kind="GaussianSpan": .*Classifier'),
    ],
)
def test_kinds_in_the_wrong_place(digits_run, tmp_path, path, kind, message):
    run = stranger(digits_run, tmp_path / "run", path, kind)
    for part in ("data", "model"):
        saved = json.loads((run / "config.json").read_text())
        if path == part:  # with fields of that class only
            saved[part] = {"kind": kind}
            (run / "config.json").write_text(json.dumps(saved))
    with pytest.raises(InputError, match=message):
        MODES["predict"](run)


def test_a_config_that_is_no_object(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    for mode in MODES.values():
        with pytest.raises(InputError, match="its config.json is no object"):
            mode(tmp_path)


def test_a_run_with_a_class_of_ones_own(digits_run, tmp_path, evil):
    """It is used as any other where its module is trusted."""
    run = stranger(digits_run, tmp_path / "run", "model.block.attention.span", "evil_module:Kind")
    names.trust("evil_module")
    assert export.export(run).name == "exported" and evil.exists()
