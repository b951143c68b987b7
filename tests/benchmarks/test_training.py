"""The benchmark of training as a user runs it, small."""

import json

import pytest

from posattn_jax.benchmarks import timing, training

QUICK = ("--steps=2", "--repeats=3")


def measured(out, *arguments):
    assert training.run(["training", *QUICK, *arguments, f"--out={out}"]) == 0
    return json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_layouts_and_sigmas(tmp_path, capsys):
    results = measured(
        tmp_path, "--config=configs/cifar2d_span.py:tiny", "--sigmas=.1,.3", "--config.train.batch_size=3"
    )
    rows = {(row["implementation"], row["initial_sigma"]): row for row in results["rows"]}
    assert list(rows) == [("auto", 0.1), ("auto", 0.3), ("dense", 0.1), ("dense", 0.3)]
    for (_, sigma), row in rows.items():
        assert row["repeats"] == 3
        assert row["steps_per_second"] == pytest.approx(1e3 / row["median_ms"])
        assert row["images_per_second"] == pytest.approx(2 * 3 * row["steps_per_second"])
        assert row["speed_up"] == pytest.approx(rows["dense", sigma]["median_ms"] / row["median_ms"])
        assert min(row["compile_seconds"], row["temp_mib"]) > 0
    assert results["grid_shape"] == [4, 4]
    assert results["config"]["train"]["batch_size"] == 3
    assert set(results["versions"]) == {"jax", "jaxlib", "numpy", "python"}
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "1 blocks, an update of 2 x 3 images of 4 x 4 positions"
    assert [line.split()[:3] for line in table[2:]] == [
        ["auto", "float32", "0.100"],
        ["auto", "float32", "0.300"],
        ["dense", "float32", "0.100"],
        ["dense", "float32", "0.300"],
    ]


def test_without_a_span_there_is_no_sigma(tmp_path):
    """On the config's own images."""
    config = ("--config=configs/digits.py:tiny", "--config.model.span.enabled=False")
    (row,) = measured(tmp_path, *config, "--implementations=reference", "--data=read")["rows"]
    assert (row["initial_sigma"], row["speed_up"]) == (None, None)
    assert row["steps_per_second"] > 0


def test_dtypes_and_parts(tmp_path, capsys):
    """Parts of a run, and a trace of each."""
    kinds = ("--implementations=dense", "--dtypes=float32,bfloat16", "--parts", f"--trace={tmp_path / 'trace'}")
    rows = measured(tmp_path, "--config=configs/digits.py:tiny", *kinds)["rows"]
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    for row in rows:
        found = row["parts"]
        assert found["attention"] + found["feed-forward"] + found["optimiser"] + found["rest"] == pytest.approx(1)
        assert min(found["attention"], found["feed-forward"], found["optimiser"]) > 0
        assert list((tmp_path / "trace" / f"dense_{row['dtype']}_sigma_0.3").glob("**/perfetto_trace.json.gz"))
    assert capsys.readouterr().out.splitlines()[1].split()[-5:] == [
        "attention",
        "feed-forward",
        "optimiser",
        "rest",
        "idle",
    ]


def test_what_is_skipped_is_told_and_no_step_changes_a_span(monkeypatch):
    options, config, sigmas = training.parse_flags(
        ["training", "--config=configs/digits.py:tiny", "--implementations=dense"]
    )
    source = training.make_source(config, "made")
    programs = training.prepare(config, sigmas, source, options)
    state, figures = programs["dense", "float32", 0.3].program.run()
    assert state.step == options.steps
    assert figures["gradient_norm"] > 0
    assert state.params["blocks_0"]["attention"]["span"]["sigma"].tolist() == pytest.approx([0.3, 0.3])

    run = programs["dense", "float32", 0.3]
    skipped = {("dense", "float32", 0.3): timing.Skipped("needs 9 GiB"), ("auto", "float32", 0.3): run}
    monkeypatch.setattr(training, "prepare", lambda *_: skipped)
    rows = training.measure(config, sigmas, source, options)
    assert [row.get("skipped") for row in rows] == ["needs 9 GiB", None]
    assert training.format_rows(rows).splitlines()[-1] == "  dense float32 skipped: needs 9 GiB"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "--config=FILE is missing"),
        (["--config=configs/digit.py"], "--config=configs/digit.py: no such file"),
        (["--config=configs/digits.py:small"], 'digits variant "small"'),
        (["--config=configs/digits.py", "--config.data.pol=1"], 'no field "pol", did you mean "pool"?'),
        (["--config=configs/reconstruction.py"], 'task="reconstruction": expected "classification"'),
        (["--config=configs/digits.py", "--implementations=fast"], 'implementation="fast": expected one of auto'),
        (["--config=configs/digits.py", "--implementations="], "--implementations is empty"),
        (["--config=configs/digits.py", "--dtypes=float64"], 'model.dtype="float64": expected "float32" or "bfloat16"'),
        (["--config=configs/digits.py", "--trace=traces"], "--trace=traces: expected --parts"),
        (["--config=configs/digits.py", "--sigmas=wide"], "--sigmas=wide: expected numbers"),
        (["--config=configs/digits.py", "--sigmas=nan"], "--sigmas=nan: expected at least one, each finite"),
        (["--config=configs/digits.py", "--sigmas=0"], "model.span.initial_sigma=0: expected another value"),
        (["--config=configs/cifar2d_siren.py", "--sigmas=.1"], "--sigmas=.1: model.span.enabled is False"),
        (["--config=configs/digits.py", "--config.data.name=tfds/x"], 'data.name="tfds/x": --data=made knows cifar10'),
        (["--config=configs/digits.py", "--config.train.batch_size=0"], "train.batch_size=0: expected at least 1"),
        (["--config=configs/digits.py", "--steps=0"], "--steps=0"),
        (["--config=configs/digits.py", "stray"], 'unexpected argument "stray"'),
        (["--config=configs/digits.py", "--out=/dev/null/x"], "--out=/dev/null/x: Not a directory"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) and value else "",
)
def test_bad_input_is_one_line(unchecked, capsys, arguments, message):
    assert training.run(["training", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1, err


def test_help(capsys):
    assert training.run(["training", "--help"]) == 0
    assert "--implementations" in capsys.readouterr().out
