"""The instruments of compilers: what they read of programs, what they keep, and that programs compile without a device.

Compilers are of the extras "tpu-aot" and "gpu-aot"; without them what needs them is skipped.
"""

import importlib.util
import json

import pytest

from benchmarks.compilers import compiled, gpu_code, sass, tpu_cycles, tpu_program
from benchmarks.compilers.compiled import Case
from benchmarks.compilers.gpus import GPUS
from benchmarks.compilers.hlo import Module
from tests.support.slow import slow

PROGRAM = """HloModule jit_f

%cond (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[], f32[8]{0:T(256)}) parameter(0)
  %bound = s32[]{:T(128)} constant(5)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %fusion.1 = f32[8]{0:T(256)S(1)} fusion(%x), calls=%f, backend_config={"estimated_cycles":"10"}
  ROOT %tuple = (s32[], f32[8]{0}) tuple(%i, %fusion.1)
}

%near (p: f32[8]) -> f32[8] {
  ROOT %transpose_jvp_posattn_forward__.2 = f32[8] custom-call(%p), custom_call_target="tpu_custom_call", data={a="of
two lines"}, backend_config={"bundle_analysis_data":{"estimated_cycles":"7"}}
}

%far (p: f32[8]) -> f32[8] {
  ROOT %copy = f32[8]{0} copy(%p), backend_config={"estimated_cycles":"100"}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %while.1 = (s32[], f32[8]{0}) while(%t), condition=%cond, body=%body
  %while.2 = (s32[], f32[8]{0}) while(%t), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %call = f32[8]{0} call(%a), to_apply=%near
  ROOT %choice = f32[8]{0} conditional(%i, %a, %a), branch_computations={%near, %far}
}
"""


def test_cycles_of_loops_and_choices():
    """Loops as often as they go round, of a choice the dearest branch."""
    assert tpu_program.by_kernel(PROGRAM) == {"XLA": (5 + 3) * 10 + 100, "posattn_forward": 7}


def test_what_is_known_only_at_run_time_is_refused():
    unknown = PROGRAM.replace("%bound = s32[]{:T(128)} constant(5)", "%bound = s32[] get-tuple-element(%p)")
    with pytest.raises(ValueError, match="while.1: .*known only at run time"):
        Module(unknown).runs(tpu_program.cycles)
    numbers = PROGRAM.replace("data={a=", "operand_layout_constraints={s32[8]{0}}, data={a=")
    with pytest.raises(ValueError, match="posattn_forward reads numbers as it runs"):
        tpu_program.by_kernel(numbers)


LISTING = """
.text.first:
.L_x_0:
        /*0000*/                   MOV R1, R2 ;
.L_x_1:
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0020*/              @!P1 MUFU.EX2 R3, R3 ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
        /*0040*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0050*/               @P0 BRA `(.L_x_0) ;
        /*0060*/                   BRA `(.L_x_9) ;
.text.second:
        /*0000*/                   EXIT ;
"""


def test_the_inner_loop_has_the_products():
    kernels = sass.by_kernel(LISTING)
    large, small = 2 * 64 * 64 * 16, 2 * 16 * 8 * 16
    assert sass.inner_loop(kernels["first"]) == (6, large + small, {"MUFU": 1})
    assert sass.inner_loop([line for line in kernels["first"] if "HMMA" not in line]) == (3, large, {"MUFU": 1})
    assert sass.inner_loop(kernels["second"]) == (0, 0, {})


def test_descriptions_of_gpus():
    """Balanced, with what the compiler goes by."""
    for gpu in GPUS.values():
        text = gpu.description
        assert text.count("{") == text.count("}") == 3
        assert f"core_count: {gpu.cores} " in text and f'name: "{gpu.kind}"' in text
    assert "shared_memory_per_block_optin: 232448 " in GPUS["h200"].description.replace("\n", " ")
    assert "shared_memory_per_block_optin: 65536 " in GPUS["t4"].description.replace("\n", " ")


def test_floors():
    case = Case("v5e", "fused", "2d64", 8, 1, 1, 64, "bfloat16", False)
    floors = tpu_cycles.floors(case)
    pairs = (64 * 17 - 72) ** 2
    assert floors["products"] == pairs * 6 * 64 / (4 * 2 * 128 * 128)
    assert floors["exp"] == pairs / 1024
    assert floors["memory"] == pytest.approx(2 * (4 * 4096 * 64 + 17 * 17 * 64) / (8.2e11 / 1.5e9))


@pytest.fixture
def made(monkeypatch):
    """Figures that no compiler made; the cases that were compiled."""
    asked = []

    def figures(case, instrument, seconds):
        asked.append(case)
        if case.implementation == "dense":
            return {"absent": "it failed"}
        if instrument.mark == "tpu_cycles":
            return {"cycles": {"XLA": 1000, "posattn_forward": 2500}}
        code = sass.Code(168, 4, 900, 100, 2 * 64 * 64 * 16, {"MUFU": 3})
        xla = {"launches": 7, "warp_instructions": 500.0, "library_calls": 0}
        return {"kernels": [{"name": "forward", **code._asdict(), "shared_bytes": 2048}], "xla": xla, "temp_mib": 1.5}

    monkeypatch.setattr(compiled, "figures_of", figures)
    monkeypatch.setattr(compiled.metadata, "version", lambda name: "1.2")
    return asked


@pytest.mark.parametrize("command, target", [(tpu_cycles, "v5e"), slow(gpu_code, "h200")])
def test_results_are_kept_and_put_into_a_page(made, tmp_path, capsys, monkeypatch, command, target):
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    mark = command.INSTRUMENT.mark
    page.write_text(f"before\n<!-- {mark} -->\nold\n<!-- /{mark} -->\nafter\n")
    arguments = ["", f"--targets={target}", "--shapes=2d64:8", f"--out={out}", f"--into={page}"]
    assert command.run([*arguments, "--implementations=fused,dense"]) == 0
    assert len(made) == 4 and len(json.loads(out.read_text())["cases"]) == 4
    assert command.run([*arguments, "--implementations=fused,tiled"]) == 0
    assert [case.implementation for case in made[4:]] == ["tiled", "tiled"]
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert (
        f"- dense, {target}, 2d64, 64 features, forward; dense, {target}, 2d64, 64 features, backward: it failed."
        in text
    )
    assert "jax 1.2" in text
    if command is tpu_cycles:
        assert "| 2d64: 8 | 1, 1, 64 | v5e | forward | 3.90 (memory) | 3.50 | 3.50 | - |" in text
        assert "| 2d64: 8 | 1, 1, 64 | v5e | forward | 2.50 | 1.00 |" in text
    else:
        assert "| 2d64: 8 | 64 | h200 | forward | forward | 168 | 4 | 2.00 | 100 | 128 | MUFU 3 |" in text
    monkeypatch.setattr(compiled, "source_of", lambda case, instrument: "another")
    assert command.run([*arguments, "--layouts=fused"]) == 0  # as the flag was called
    assert [case.implementation for case in made[6:]] == ["fused", "fused"]
    capsys.readouterr()


def test_results_depend_on_code_and_not_on_words(monkeypatch, tmp_path):
    """Nor on the kernels of another device, or on those of another implementation, wherever the package is."""
    tmp_path /= "fused/cuda/tpu"
    path = {"tpu": tmp_path / "ops/tpu/kernel.py", "gpu": tmp_path / "ops/cuda/kernel.py"}
    path["all"], path["none"] = tmp_path / "ops/scores.py", tmp_path / "ops/attention/select.py"
    for name in ("hlo", "shapes", "timing", *tpu_cycles.INSTRUMENT.parts, *gpu_code.INSTRUMENT.parts):
        (tmp_path / "benchmarks").mkdir(parents=True, exist_ok=True)
        (tmp_path / "benchmarks" / f"{name}.py").touch()
    for each in path.values():
        each.parent.mkdir(parents=True, exist_ok=True)
        each.write_text('"""Words."""\n\ndef f(x):\n    """Words."""\n    return x + 1  # words\n')
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path)

    def sources():
        fused, tiled = (Case("v5e", each, "2d64", 8, 1, 1, 64, "bfloat16", False) for each in ("fused", "tiled"))
        asked = [(fused, tpu_cycles), (fused, gpu_code), (tiled, tpu_cycles)]
        return [compiled.source_of(case, command.INSTRUMENT) for case, command in asked]

    def changed(name, old, new):
        before = sources()
        path[name].write_text(path[name].read_text().replace(old, new))
        return [one != two for one, two in zip(before, sources(), strict=True)]

    assert changed("tpu", "ords", "hat it does") == [False] * 3
    assert changed("tpu", "x + 1", "x + 2") == [True, False, False]
    assert changed("gpu", "x + 1", "x + 2") == [False, True, False]
    assert changed("all", "x + 1", "x + 2") == [True] * 3
    assert changed("none", "x + 1", "x + 2") == [False] * 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--targets=v9"], "--targets=v9: expected some of v5e"),
        (["--implementations=native"], "--implementations=native: expected some of fused"),
        (["--passes=both"], "--passes=both"),
        (["--shapes=2d64"], "--shapes=2d64"),
        (["--head_dims=x"], "--head_dims=x"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert tpu_cycles.run(["", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.strip().splitlines()) == 1


def test_a_missing_compiler_is_told(capsys, monkeypatch):
    def missing(name):
        raise compiled.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(compiled.metadata, "version", missing)
    for command, extra in ((tpu_cycles, "tpu-aot"), (gpu_code, "gpu-aot")):
        assert command.run([""]) == 2
        assert f"posattn_jax[{extra}]" in capsys.readouterr().err


def test_what_a_process_dies_of(monkeypatch, tmp_path):
    """The first line of a fatal error, or the last that was told."""
    case = Case("v5e", "fused", "2d8", 2, 1, 1, 8, "bfloat16", False)
    program = tmp_path / "dying.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    instrument = tpu_cycles.INSTRUMENT._replace(program="dying")
    fatal = "F1125 00:16:16.1 1 dumper.cc:1] no such copy"
    for said, reason in (([fatal, "a trace"], "no such copy"), (["warning", "ValueError: no"], "ValueError: no")):
        program.write_text(f"import sys\nsys.exit({chr(10).join(said)!r})\n")
        assert compiled.figures_of(case, instrument, 60.0) == {"absent": reason}
    program.write_text("import time\ntime.sleep(60)\n")
    assert compiled.figures_of(case, instrument, 0.01) == {"absent": "no answer after 0.01 s"}


needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason='needs the extra "tpu-aot"')
needs_cuda = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason='needs the extra "gpu-aot"'
)


def figures(command, *case):
    found = compiled.figures_of(Case(*case), command.INSTRUMENT, 600.0)
    assert "absent" not in found, found
    return found


@needs_libtpu
@pytest.mark.parametrize("backward", [False, True])
def test_a_program_for_a_tpu(backward):
    cycles = figures(tpu_cycles, "v5e", "fused", "2d16", 2, 1, 2, 64, "bfloat16", backward)["cycles"]
    assert min(cycles.values()) > 0 and cycles.keys() > {"posattn_forward"}


@needs_cuda
@pytest.mark.parametrize("backward", [False, True])
def test_a_program_for_a_gpu(backward):
    found = figures(gpu_code, "h200", "fused", "2d16", 2, 1, 1, 64, "bfloat16", backward)
    assert len(found["kernels"]) == (3 if backward else 1) and found["xla"]["launches"] > 0
    assert all(code["loop_flops"] > 0 and code["registers"] <= 255 for code in found["kernels"])


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, half, num_heads, backward, of_kernels, of_all",
    [
        ("2d64", 8, 1, False, 150, 250),
        ("2d64", 8, 1, True, 450, 700),
        ("2d64", 8, 8, False, 850, 1200),
        ("1d8192", 256, 1, False, 150, 300),
        ("1d8192", 256, 1, True, 650, 950),
        ("1d8192", 256, 8, False, 1300, 1550),
    ],
)
def test_cycles_on_a_tpu_have_a_limit(shape, half, num_heads, backward, of_kernels, of_all):
    """In thousands, of our kernels, and with XLA's work around them."""
    cycles = figures(tpu_cycles, "v5e", "fused", shape, half, 1, num_heads, 64, "bfloat16", backward)["cycles"]
    assert sum(each for name, each in cycles.items() if name != "XLA") < 1000 * of_kernels
    assert sum(cycles.values()) < 1000 * of_all


LOCAL = 64  # a thread's bytes: a few registers for which there is no room


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_little_is_spilled_forward(head_dim):
    (kernel,) = figures(gpu_code, "h200", "fused", "2d64", 8, 8, 8, head_dim, "bfloat16", False)["kernels"]
    assert kernel["local_bytes"] <= LOCAL


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS)
def test_implementations_of_xla_compile_for_every_gpu(gpu):
    for implementation in ("tiled", "dense"):
        found = figures(gpu_code, gpu, implementation, "2d16", 2, 1, 2, 32, "float32", True)
        assert found["kernels"] == [] and found["xla"]["launches"] > 0
