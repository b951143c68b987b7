"""The formulas of the papers as float64 loops over scalars, differentiated by complex step.

Every array carries a last axis of perturbations: entry j of it is the computation with input j moved by i * STEP, so
one evaluation gives the value (the real part) and all derivatives (the imaginary parts), without any cancellation.
"""

import itertools
import math
from fractions import Fraction

import numpy as np

STEP = 1e-30


def value_and_gradients(function, inputs):
    """The value of `function(inputs)`, a real array, and the gradients of its sum for every input array."""
    total = sum(array.size for array in inputs.values())
    perturbed, start = {}, 0
    for name, array in inputs.items():
        flat = np.repeat(np.asarray(array, complex).reshape(-1, 1), total, axis=1)
        flat[np.arange(array.size), start + np.arange(array.size)] += 1j * STEP
        perturbed[name] = flat.reshape(*array.shape, total)
        start += array.size
    outputs = function(perturbed)
    gradients = outputs.reshape(-1, total).sum(0).imag / STEP
    sizes = np.cumsum([array.size for array in inputs.values()])[:-1]
    pieces = np.split(gradients, sizes)
    named = {name: piece.reshape(inputs[name].shape) for name, piece in zip(inputs, pieces, strict=True)}
    return outputs[..., 0].real, named


def positions(grid_shape):
    return list(itertools.product(*(range(size) for size in grid_shape)))


def offset_of(t, s, grid_shape, query_grid_shape):
    """s - a_t, a_t = (t + 1/2) S / T - 1/2, exactly: whole numbers on one grid."""
    half, sizes = Fraction(1, 2), zip(t, s, grid_shape, query_grid_shape, strict=True)
    return tuple(k - ((q + half) * keys / queries - half) for q, k, keys, queries in sizes)


def lines_of(grid_shape, query_grid_shape):
    """The offsets of each dimension, in order, which a table has entries for."""
    sizes = zip(grid_shape, query_grid_shape, strict=True)
    return [
        sorted({offset_of((t,), (s,), (keys,), (queries,))[0] for t in range(queries) for s in range(keys)})
        for keys, queries in sizes
    ]


def unit(size):
    """The offset at normalised distance 1; a dimension of size 1 has only the offset 0."""
    return max(size - 1, 1)


def covariance(sigma):
    """Sigma [p, p]: diagonal for sigma [p], L L^T for a factor [p, p], of whose diagonal the magnitude counts."""
    p = len(sigma)
    product = np.zeros((p, p, sigma.shape[-1]), complex)
    for i, j in itertools.product(range(p), repeat=2):
        if sigma.ndim == 2:
            product[i, j] = sigma[i] ** 2 if i == j else 0
            continue
        for k in range(min(i, j) + 1):
            sign = np.sign(sigma[k, k].flat[0].real)
            product[i, j] += (sign if i == k else 1) * sigma[i, k] * (sign if j == k else 1) * sigma[j, k]
    return product


def log_gaussian(offset, precision, reference_shape):
    """ln G = -1/2 x^T Sigma^-1 x, for Sigma^-1 [p, p]; of a diagonal Sigma equation 2."""
    x = [float(o) / unit(size) for o, size in zip(offset, reference_shape, strict=True)]
    exponent = 0
    for i, j in itertools.product(range(len(x)), repeat=2):
        exponent = exponent + x[i] * x[j] * precision[i, j]
    return -0.5 * exponent


def inside(offset, covariance, threshold, reference_shape, dilation=None):
    """Algorithms 6 and 10: |offset_i| <= ceil(sqrt(-2 ln threshold) sqrt(Sigma_ii) (S_i - 1)) for every i.

    With steps D of a dilation it is |offset_i| <= D_i ceil(... / D_i).
    """
    if threshold <= 0:
        return True
    for i, o in enumerate(offset):
        s = math.sqrt(covariance[i, i].flat[0].real)
        step = 1 if dilation is None else dilation[i]
        half = step * math.ceil(math.sqrt(-2 * math.log(threshold)) * s * unit(reference_shape[i]) / step)
        if abs(o) > half:
            return False
    return True


def attention(
    x,
    grid_shape,
    *,
    query_grid_shape=None,
    threshold=0.1,
    span_mode="multiply",
    reference_shape=None,
    key_mask=None,
    mask=None,
    segment_ids=None,
    is_causal=False,
    dilation=None,
    scale=None,
):
    """Formula 1, Algorithm 8 and softmax. `x` has query, value and any of key, encoding, u, v, bias, sigma."""
    b, n, h, d = x["query"].shape[:4]
    reference_shape = reference_shape or grid_shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    outputs = np.zeros((b, n, h, *x["value"].shape[3:]), complex)
    query_grid_shape = query_grid_shape or grid_shape
    where, queries, lines = positions(grid_shape), positions(query_grid_shape), lines_of(grid_shape, query_grid_shape)
    if "sigma" in x:
        sigmas = [x["sigma"]] * h if x["sigma"].ndim == 2 else [x["sigma"][j % len(x["sigma"])] for j in range(h)]
        covariances = [covariance(sigma) for sigma in sigmas]
        precisions = [np.moveaxis(np.linalg.inv(np.moveaxis(c, -1, 0)), 0, -1) for c in covariances]

    def of_keys(head):
        return head * x["value"].shape[2] // h

    for i, j, t in itertools.product(range(b), range(h), range(n)):
        logits = {}
        for s, place in enumerate(where):
            offset = offset_of(queries[t], place, grid_shape, query_grid_shape)
            index = tuple(line.index(o) for line, o in zip(lines, offset, strict=True))
            if (key_mask is not None and not key_mask[i, s]) or (is_causal is True and s > t):
                continue
            if is_causal and is_causal is not True and any(o > 0 for o, c in zip(offset, is_causal, strict=True) if c):
                continue
            if dilation is not None and any(o % step for o, step in zip(offset, dilation, strict=True)):
                continue
            if segment_ids is not None and segment_ids[i, t] != segment_ids[i, s]:
                continue
            if mask is not None and not mask[i % len(mask), j % mask.shape[1], t, s]:
                continue
            a = 0
            for f in range(d):
                q = x["query"][i, t, j, f]
                if "key" in x:
                    u = x["content_bias"][j, f] if "content_bias" in x else 0
                    a = a + (q + u) * x["key"][i, s, of_keys(j), f]
                if "relative_encoding" in x:
                    v = x["position_bias"][j, f] if "position_bias" in x else 0
                    a = a + (q + v) * x["relative_encoding"][(*index, j, f)]
            a = a * scale
            if "relative_bias" in x:
                a = a + x["relative_bias"][(*index, j)]
            if "bias" in x:
                a = a + x["bias"][i % len(x["bias"]), j % x["bias"].shape[1], t, s]
            if "sigma" in x:
                if not inside(offset, covariances[j], threshold, reference_shape, dilation):
                    continue
                if span_mode != "box":
                    log_g = log_gaussian(offset, precisions[j], reference_shape)
                    a = np.exp(log_g) * a if span_mode == "multiply" else a + log_g
            logits[s] = a
        if not logits:
            continue
        largest = max(a.flat[0].real for a in logits.values())
        exps = {s: np.exp(a - largest) for s, a in logits.items()}
        for s, e in exps.items():
            for f in range(d):
                outputs[i, t, j, f] += e / sum(exps.values()) * x["value"][i, s, of_keys(j), f]
    return outputs


def siren(params, x, omega_initial=10.0, omega=10.0, num_layers=3):
    """Algorithm 5 for one coordinate vector `x` (floats): features [c, perturbations]."""
    hidden = list(x)
    for layer in range(1, num_layers + 1):
        kernel, bias = params[f"kernel_{layer}"], params[f"bias_{layer}"]
        z = []
        for c in range(kernel.shape[1]):
            total = bias[c]
            for i, value in enumerate(hidden):
                total = total + value * kernel[i, c]
            z.append(total)
        w = omega_initial if layer == 1 else omega
        hidden = z if layer == num_layers else [np.sin(w * value) for value in z]
    return hidden


def siren_encoding(params, grid_shape, num_heads, head_dim, query_grid_shape=None):
    """E [*R, h, d, perturbations]."""
    lines = lines_of(grid_shape, query_grid_shape or grid_shape)
    shape = [len(line) for line in lines]
    perturbations = params["kernel_1"].shape[-1]
    encoding = np.zeros((*shape, num_heads, head_dim, perturbations), complex)
    for index in itertools.product(*(range(size) for size in shape)):
        x = [float(line[i]) / unit(size) for line, i, size in zip(lines, index, grid_shape, strict=True)]
        features = siren(params, x)
        for j, f in itertools.product(range(num_heads), range(head_dim)):
            encoding[(*index, j, f)] = features[j * head_dim + f]
    return encoding


def layer(x, grid_shape, num_heads, head_dim, **options):
    """The whole attention layer (Algorithm 1 with the biases of the paper's code), from inputs to outputs."""
    inputs = x["inputs"]
    b, n, c = inputs.shape[:3]
    fused = np.zeros((3, b, n, num_heads, head_dim, inputs.shape[-1]), complex)
    for which, i, t, j, f in np.ndindex(*fused.shape[:-1]):
        fused[which, i, t, j, f] = x["projections_bias"][which, j, f]
        for k in range(c):
            fused[which, i, t, j, f] += inputs[i, t, k] * x["projections_kernel"][k, which, j, f]
    parts = {name: x[name] for name in ("content_bias", "position_bias", "sigma") if name in x}
    parts |= {"query": fused[0], "key": fused[1], "value": fused[2]}
    siren_params = {name.removeprefix("siren_"): array for name, array in x.items() if name.startswith("siren_")}
    parts["relative_encoding"] = siren_encoding(siren_params, grid_shape, num_heads, head_dim)
    attended = attention(parts, grid_shape, **options)
    outputs = np.zeros(inputs.shape, complex)
    for i, t, k in np.ndindex(b, n, c):
        outputs[i, t, k] = x["output_bias"][k]
        for j, f in np.ndindex(num_heads, head_dim):
            outputs[i, t, k] += attended[i, t, j, f] * x["output_kernel"][j, f, k]
    return outputs
