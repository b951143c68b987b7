"""The benchmark of training as a user runs it, small."""

import json

import pytest
from absl import flags

from configs import digits
from posattn_jax.benchmarks import timing
from posattn_jax.config import experiment
from posattn_jax.run import benchmark
from tests.support.command import run_forked

QUICK = ("--mode=benchmark", "--steps=2", "--repeats=3")

NO_SPAN = "--config.model.block.attention.span.kind=none"


def measured(workdir, *arguments, config="configs/digits.py:tiny"):
    code, out, err = run_forked(f"--workdir={workdir}", *QUICK, *arguments, config=config)
    assert code == 0, err
    return json.loads((workdir / "results.json").read_text()), out.splitlines()


@pytest.mark.slow
def test_implementations_batches_and_sigmas(tmp_path):
    arguments = ("--sigmas=.1,.3", "--batch_sizes=3,4")
    results, table = measured(tmp_path, *arguments, config="configs/cifar2d_span.py:tiny")
    rows = {(row["implementation"], row["batch_size"], row["initial_sigma"]): row for row in results["rows"]}
    assert list(rows) == [(name, b, sigma) for name in ("auto", "dense") for b in (3, 4) for sigma in (0.1, 0.3)]
    peak = results["peak_flops_per_second"]["float32"]["value"]
    for (_, batch_size, sigma), row in rows.items():
        assert row["repeats"] == 3
        assert row["steps_per_second"] == pytest.approx(1e3 / row["median_ms"])
        assert row["examples_per_second"] == pytest.approx(2 * batch_size * row["steps_per_second"])
        assert row["speed_up"] == pytest.approx(rows["dense", batch_size, sigma]["median_ms"] / row["median_ms"])
        assert row["utilisation"] == pytest.approx(row["model_flops"] * row["steps_per_second"] / peak)
        assert min(row["compile_seconds"], row["temp_mib"]) > 0
        assert 0 <= row["waiting"] <= 1
    assert results["grid_shape"] == [4, 4]
    assert results["unit"] == "images"
    assert set(results["versions"]) == {"jax", "jaxlib", "numpy", "python"}
    assert table[0] == "updates of 2 micro-batches, 4 x 4 positions, 1 x cpu"
    assert [line.split()[:4] for line in table[2:4]] == [
        ["auto", "float32", "3.00", "0.100"],
        ["auto", "float32", "3.00", "0.300"],
    ]


@pytest.mark.slow
def test_dtypes_parts_and_traces(tmp_path):
    """Without a span there is no sigma; on the config's own images."""
    kinds = ("--implementations=dense", "--dtypes=bfloat16", f"--trace={tmp_path / 'trace'}", "--data=read")
    results, table = measured(tmp_path / "out", NO_SPAN, *kinds)
    assert [row["dtype"] for row in results["rows"]] == ["bfloat16"]
    for row in results["rows"]:
        found = row["parts"]
        assert found["attention"] + found["feed-forward"] + found["optimiser"] + found["rest"] == pytest.approx(1)
        assert min(found["attention"], found["feed-forward"], found["optimiser"]) > 0
        assert row["initial_sigma"] is None
        assert list((tmp_path / "trace" / f"dense_{row['dtype']}_batch_20").glob("**/perfetto_trace.json.gz"))
    shares = ["MFU", "waiting", "attention", "feed-forward", "optimiser", "rest", "idle"]
    assert table[1].split()[-len(shares) :] == shares


@pytest.mark.slow
def test_an_update_changes_no_span_and_moves_on():
    config = digits.get_config("tiny")
    config.optimizer.span_learning_rate = 5e-4
    config = benchmark.changed(config, benchmark.Kind("dense", "float32", 8, 0.25))
    source = experiment.load_sources(config)["train"]
    updates = benchmark.Updates(config, source, steps=2, limit_gib=1.0, known={})
    state, figures = updates.program.run()
    assert int(state.step) == 4  # two to warm up
    assert figures["gradient_norm/all"][0] > 0
    assert state.params["blocks_0"]["attention"]["span"]["sigma"].tolist() == pytest.approx([0.25, 0.25])


@pytest.mark.slow
def test_all_rows_are_timed_before_the_first_profile(tmp_path, monkeypatch):
    """So what is written then has all times, if a profile is stopped or empty."""
    profiles = iter([{"idle": 0.5}])

    def profile(*_):
        for shares in profiles:
            return shares
        raise timing.Skipped("it is empty")

    monkeypatch.setattr(benchmark.parts, "measure", profile)
    options = flags.FlagValues()
    values = {"implementations": ["auto", "dense"], "dtypes": [], "batch_sizes": None, "sigmas": None, "trace": None}
    values |= {"steps": 1, "repeats": 3, "seconds": 1.0, "memory_limit_gib": 1.0, "data": "random"}
    for name, value in values.items():
        flags.DEFINE_string(name, None, "", flag_values=options)
        options[name].value = value
    options.mark_as_parsed()
    stages = benchmark.measure(options, digits.get_config("tiny"), tmp_path)
    for profiled in range(3):
        rows = next(stages)["rows"]
        assert [row["implementation"] for row in rows if row["median_ms"] > 0] == ["auto", "dense"]
        assert ["parts" in row for row in rows] == [profiled > 0, False]
        assert ["not_profiled" in row for row in rows] == [False, profiled > 1]
    assert next(stages, None) is None


@pytest.mark.slow
def test_what_needs_too_much_is_skipped_and_told():
    """So is an empty profile."""
    rows = [{"implementation": "tiled", "dtype": "float32", "not_profiled": "it is empty"}]
    rows += [{"implementation": "dense", "dtype": "float32", "skipped": "needs 9 GiB"}]
    assert benchmark.format_rows(rows, "images").splitlines()[-2:] == [
        "  dense float32 skipped: needs 9 GiB",
        "  tiled float32 without shares: it is empty",
    ]
    config = benchmark.changed(digits.get_config("tiny"), benchmark.Kind("dense", "float32", 8, 0.25))
    source = experiment.load_sources(config)["train"]
    with pytest.raises(timing.Skipped, match="more than --memory_limit_gib=1e-05"):
        benchmark.Updates(config, source, steps=2, limit_gib=1e-5, known={})


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--implementations=fast"], 'implementation="fast"'),
        (["--implementations="], "--implementations is empty"),
        (["--dtypes=float64"], 'model.dtype="float64"'),
        (["--sigmas=wide"], "--sigmas=wide"),
        (["--sigmas=nan"], "--sigmas=nan"),
        (["--sigmas=0"], "initial_sigma=0.0"),
        (["--sigmas=.1", NO_SPAN], "--sigmas=.1: "),
        (["--batch_sizes=1.5"], "--batch_sizes=1.5"),
        (["--batch_sizes=0"], "train.batch_size=0"),
        (["--config.data.name=tfds/x"], 'tfds set "x"'),
        (["--steps=0"], "--steps=0"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(tmp_path, arguments, message):
    code, out, err = run_forked(f"--workdir={tmp_path / 'out'}", "--mode=benchmark", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1, err


def test_its_flags_are_its_own(tmp_path):
    code, _, err = run_forked(f"--workdir={tmp_path / 'run'}", "--sigmas=.1")
    assert code == 2
    assert err.strip().endswith("--sigmas is for --mode=benchmark, and --mode is train")
