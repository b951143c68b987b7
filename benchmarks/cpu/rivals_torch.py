# pyright: reportMissingImports=false
"""Runs PyTorch's attention when asked to, for `benchmarks.cpu.rivals`: it imports nothing but torch.

  python benchmarks/cpu/rivals_torch.py

Each line on stdin is a JSON object, each answered by one on stdout: {"prepare": case} by {} or {"error": reason}, and
{"run": case} by {"seconds": s}. A case has shape, half (null: no span), causal, positions, batch, heads, head_dim,
dtype, backward and rival: "sdpa", scaled_dot_product_attention of all pairs, which knows no positions; or "flex", the
compiled FlexAttention with the span as its block mask and, with positions, one learned number an offset and head. It
runs on a GPU if there is one.
"""

import itertools
import json
import math
import sys
import time

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK = 128 if DEVICE == "cuda" else 64  # of FlexAttention's mask
CALLS = 20  # that follow one another on a GPU


def make(case):
    """A function that runs the case once."""
    n, h, d = math.prod(case["shape"]), case["heads"], case["head_dim"]
    dtype, backward = getattr(torch, case["dtype"]), case["backward"]
    torch.manual_seed(0)
    arrays = [torch.randn(case["batch"], h, n, d, dtype=dtype, requires_grad=backward) for _ in range(3)]
    attend = {"sdpa": sdpa, "flex": flex}[case["rival"]](case, arrays)
    cotangent = torch.randn(case["batch"], h, n, d, dtype=dtype)

    def run():
        if not backward:
            with torch.no_grad():
                return attend(*arrays[:3])
        return torch.autograd.grad(attend(*arrays[:3]), arrays, cotangent)

    return run


def sdpa(case, arrays):
    """All pairs, or the keys that are not after a query."""
    return lambda query, key, value: scaled_dot_product_attention(query, key, value, is_causal=case["causal"])


def flex(case, arrays):
    """Pairs within the span, and a number for every offset, which is appended to the arrays that have a gradient."""
    from torch.nn.attention.flex_attention import flex_attention

    shape, half, h = case["shape"], case["half"], case["heads"]
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]

    def offsets(t, s):
        return [(s // stride) % size - (t // stride) % size for stride, size in zip(strides, shape, strict=True)]

    def inside(b, head, t, s):
        found = s <= t if case["causal"] else s >= 0
        for offset, reach in zip(offsets(t, s), half or [None] * len(shape), strict=True):
            if reach is not None:
                found = found & (offset.abs() <= reach)
        return found

    mask = block_mask(inside, math.prod(shape))
    compiled = torch.compile(flex_attention)
    if not case["positions"]:
        return lambda query, key, value: compiled(query, key, value, block_mask=mask)
    table = torch.randn(h, *(2 * size - 1 for size in shape), requires_grad=case["backward"])
    if case["backward"]:
        arrays.append(table)

    def biased(score, b, head, t, s):
        at = [offset + size - 1 for offset, size in zip(offsets(t, s), shape, strict=True)]
        return score + table[(head, *at)]

    return lambda query, key, value: compiled(query, key, value, score_mod=biased, block_mask=mask)


def block_mask(inside, n):
    """The blocks of pairs of n positions with some, and with all of them, inside; a row of blocks at a time."""
    from torch.nn.attention.flex_attention import BlockMask

    keys, counts = torch.arange(n), []
    for first in range(0, n, BLOCK):
        found = inside(0, 0, torch.arange(first, min(first + BLOCK, n))[:, None], keys)
        counts.append(pad(found.int(), (0, -n % BLOCK)).view(len(found), -1, BLOCK).sum((0, 2)))
    counts, listed = torch.stack(counts), []
    full = counts == BLOCK * BLOCK
    for kind in ((counts > 0) & ~full, full):
        listed.append(kind.sum(-1, dtype=torch.int32)[None, None])
        listed.append(kind.int().argsort(descending=True, stable=True).int()[None, None])
    return BlockMask.from_kv_blocks(*listed, BLOCK_SIZE=BLOCK, mask_mod=inside, seq_lengths=(n, n))


def seconds(run):
    """The time of a call; on a GPU of several that follow one another, by its events."""
    if DEVICE == "cpu":
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(CALLS):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / CALLS / 1e3


def main():
    """Answers until stdin ends."""
    torch.set_default_device(DEVICE)
    ready = {}
    for line in sys.stdin:
        asked = json.loads(line)
        ((what, case),) = asked.items()
        name = json.dumps(case, sort_keys=True)
        try:
            if what == "prepare":
                ready[name] = make(case)
                for _ in itertools.repeat(None, 2):
                    ready[name]()
                answer = {"version": torch.__version__, "threads": torch.get_num_threads()}
            else:
                answer = {"seconds": seconds(ready[name])}
        except Exception as error:
            answer = {"error": (str(error).strip() or type(error).__name__).splitlines()[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
