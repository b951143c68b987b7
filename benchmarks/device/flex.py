"""PyTorch's FlexAttention on the same arrays: the rival that a compiler makes of a formula.

  python -m benchmarks.device.flex CASE OUT.json      (what `measure` starts; CASE is a `Timing` as JSON)

The window is its block mask; its `score_mod` adds scale (q_t + v) . E_{s-t} from a table [b h t w], made by one product
for the w offsets inside the span, and multiplies by the Gaussian, another table [w]. The table's product is timed with
the rest. Backward has the gradients of all arrays but sigma, which leaves it less to do than our layouts have.
"""

import importlib
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.device import measure
from benchmarks.device.cases import Timing
from benchmarks.device.exact import attend_exactly
from benchmarks.device.programs import in_a_row
from posattn_jax.benchmarks import table
from posattn_jax.benchmarks.shapes import Point, make_inputs
from posattn_jax.benchmarks.timing import Program, interleave, seconds
from posattn_jax.ops import grid
from posattn_jax.system.files import write_json

BLOCK = 128


def block_counts(point: Point, block: int) -> np.ndarray:
    """The pairs inside the spans by block of queries and block of keys, [N / block, N / block]."""
    where, strides = grid.positions(point.grid_shape), grid.strides(point.grid_shape)
    reaches = [np.arange(-half, half + 1) for half in point.half]
    offsets = np.stack(np.meshgrid(*reaches, indexing="ij"), -1).reshape(-1, len(reaches))
    rows = []
    for queries in where.reshape(-1, block, len(reaches)):
        keys = queries[:, None] + offsets
        inside = np.all((keys >= 0) & (keys < np.asarray(point.grid_shape)), -1)
        rows.append(np.bincount((keys[inside] @ strides) // block, minlength=len(where) // block))
    return np.stack(rows)


def make_attend(torch: Any, point: Point, sigma: np.ndarray, device: str) -> Callable:
    """(tensors by name, dtype of the table) -> outputs [b t h d]."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    dims = list(zip(point.grid_shape, grid.strides(point.grid_shape).tolist(), point.half, strict=True))
    centre = tuple(slice(size - 1 - half, size + half) for size, _, half in dims)
    axes = [np.arange(-half, half + 1) / max(size - 1, 1) for size, _, half in dims]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(dims))
    gaussian = torch.tensor(np.exp(-0.5 * ((x / sigma) ** 2).sum(-1)), dtype=torch.float32, device=device)

    def along(q, k, size, stride):
        return (k // stride) % size - (q // stride) % size

    def mask_mod(b, h, q, k):
        inside = q >= 0
        for size, stride, half in dims:
            inside = inside & (torch.abs(along(q, k, size, stride)) <= half)
        return inside

    block = BLOCK if point.num_positions % BLOCK == 0 else point.num_positions
    counts = block_counts(point, block)
    full = counts == block * block
    partial = (counts > 0) & ~full
    listed = []
    for kind in (partial, full):
        listed.append(torch.tensor(kind.sum(-1)[None, None], dtype=torch.int32, device=device))
        first = np.argsort(~kind, axis=-1, kind="stable")
        listed.append(torch.tensor(first[None, None], dtype=torch.int32, device=device))
    block_mask = flex.BlockMask.from_kv_blocks(*listed, BLOCK_SIZE=block, mask_mod=mask_mod)

    def attend(tensors, table_dtype):
        query = tensors["query"]
        scale = 1 / math.sqrt(query.shape[-1])
        encoding = tensors["relative_encoding"][centre].flatten(0, len(dims) - 1)
        scores = torch.einsum("bthd,whd->bhtw", query + tensors["position_bias"], encoding)
        positional = (scale * scores).to(table_dtype)

        def score_mod(score, b, h, q, k):
            place = 0
            for size, stride, half in dims:
                # Partial blocks are scored as a whole and masked later: no pair may read outside the table.
                offset = torch.clamp(along(q, k, size, stride) + half, 0, 2 * half)
                place = place * (2 * half + 1) + offset
            return (score + positional[b, h, q, place]) * gaussian[place]

        sides = (query + tensors["content_bias"], tensors["key"], tensors["value"])
        outputs = flex.flex_attention(
            *(side.transpose(1, 2) for side in sides), score_mod=score_mod, block_mask=block_mask, scale=scale
        )
        return outputs.transpose(1, 2)

    attend.block_mask = block_mask
    return attend


def measure_pass(torch: Any, case: Timing, backward: bool, table_dtype: str) -> dict[str, Any]:
    """Compiles, checks and times one pass."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, case.dtype)
    arrays = make_inputs(case.point, case.batch, case.heads, case.head_dim, case.dtype)
    exact = attend_exactly(arrays, case.point, positional=True)
    tensors = {
        name: torch.tensor(np.asarray(array, np.float32), dtype=dtype, device=device, requires_grad=backward)
        for name, array in arrays.items()
        if name != "sigma"
    }
    cotangent = torch.tensor(exact.cotangent, dtype=dtype, device=device)
    attend = make_attend(torch, case.point, np.asarray(arrays["sigma"], np.float64), device)
    if device == "cuda":
        attend = torch.compile(attend, dynamic=False)

    def once(cotangent):
        with torch.set_grad_enabled(backward):
            outputs = attend(tensors, getattr(torch, table_dtype))
            if not backward:
                return outputs, {}
            return outputs, dict(
                zip(tensors, torch.autograd.grad(outputs, [*tensors.values()], cotangent), strict=True)
            )

    def wait(_):
        if device == "cuda":
            torch.cuda.synchronize()

    def array(tensor):
        return tensor.detach().float().cpu().numpy()

    started = time.perf_counter()
    outputs, gradients = once(cotangent)
    wait(outputs)
    compile_seconds = time.perf_counter() - started
    errors = exact.errors(array(outputs), {name: array(each) for name, each in gradients.items()})
    made_bytes = sum(each.numel() * each.element_size() for each in (outputs, *gradients.values()))
    del outputs, gradients
    temp_bytes = 0
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        wait(once(cotangent))
        temp_bytes = torch.cuda.max_memory_allocated() - before - made_bytes
    dense_cotangent = tensors["query"].detach()
    runs = in_a_row(lambda: once(dense_cotangent), wait)
    run = lambda: wait(runs.run())
    program = Program(run, compile_seconds, temp_bytes, seconds(run))
    (times,) = interleave([program], measure.REPEATS, measure.SECONDS)
    measured = table.measurement(program, [each / runs.calls for each in times])
    return measured | {
        "calls": runs.calls,
        "table": table_dtype,
        **measure.judged(errors, measure.TOLERANCES["gpu"][case.dtype]),
    }


def measure_case(case: Timing) -> dict[str, dict[str, Any]]:
    """Both passes; the table is of the arrays' dtype, or float32 where that fails."""
    torch = importlib.import_module("torch")
    torch.set_float32_matmul_precision("high")  # TF32, as JAX does by default
    results = {}
    for name in measure.PASSES:
        for table_dtype in dict.fromkeys((case.dtype, "float32")):
            try:
                results[name] = measure_pass(torch, case, name == "forward_backward", table_dtype)
                break
            except Exception as error:
                lines = str(error).strip().splitlines() or ["no message"]
                results[name] = {"absent": f"{type(error).__name__}: {lines[0]}"}
    return results


if __name__ == "__main__":
    write_json(pathlib.Path(sys.argv[2]), measure_case(Timing(**json.loads(sys.argv[1]))))
