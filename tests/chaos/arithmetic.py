# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of proto/wire/ARITHMETIC.md, written from that page alone with numpy. replay.py
calls it. Arrays are fp32. Values of the wire's types are float32, float16, or uint16 with the bits
of bf16. Numbers in brackets are sections of the page."""

import math

import numpy as np

TINY = np.float32(2.0**-126)


def flush(x):
    """Flushes to zero: a denormal becomes a zero of its sign."""
    small = np.abs(x) < TINY
    if small.any():
        x = np.where(small, np.copysign(np.float32(0), x), x)
    return x


def fma(a, b, c):
    """Returns a*b + c, rounded once. The product is exact in double. The sum is rounded there to
    odd, so that the second rounding, to fp32, gives what a single rounding gives."""
    p = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c = np.broadcast_to(np.asarray(c, np.float64), p.shape)
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)
    bits = s.view(np.int64)
    even = (error != 0) & (bits & 1 == 0) & np.isfinite(s)
    away = (error > 0) == (s > 0)  # Away from zero.
    s = np.where(even, (bits + np.where(away, 1, -1)).view(np.float64), s)
    return flush(s.astype(np.float32))


# --- [1] conversions ---


def widen(x):
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def narrow(x, kind):
    if kind == "f32":
        return x
    if kind == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16)
    bits = x.view(np.uint32)
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), (bits >> 16 | 0x40).astype(np.uint16), rounded)


# --- [2] sums ---


def wire_sum(operands, kind, numel, q):
    if not operands:
        return narrow(np.zeros(numel, np.float32), kind)
    if len(operands) == 1 and q == 1:
        return operands[0]
    s = None
    with np.errstate(all="ignore"):
        for x in operands:
            x = flush(widen(x))
            if q != 1:
                x = flush(x * q)
            s = x if s is None else flush(s + x)
    return narrow(np.where(np.isnan(s), np.float32("nan"), s), kind)


def reduced(ranks, kind, numel, predivide):
    """Reduces one tensor. ranks: (node, gradient or None) in rank order."""
    q = np.float32(1.0 / predivide) if len(ranks) > 1 else np.float32(1)
    nodes = {}  # In the order of their lowest rank.
    for node, gradient in ranks:
        nodes.setdefault(node, []).append(gradient)
    sums = []
    for operands in nodes.values():
        operands = [x for x in operands if x is not None]
        if operands:
            sums.append(wire_sum(operands, kind, numel, q))
    return wire_sum(sums, kind, numel, np.float32(1))


# --- [2a] coded images ---


def stands(y, most, block):
    """What the codes of one segment stand for."""
    out = np.zeros_like(y)
    for at in range(0, len(y), block):
        part = y[at : at + block]
        top = np.max(np.abs(part).view(np.uint32)).view(np.float32)
        if not np.isfinite(top):
            out[at : at + block] = np.nan
        elif top > np.float32(2.0**-100):
            code = np.rint(part * (np.float32(most) / top))
            out[at : at + block] = code * (top / np.float32(most))
    return out


def coded_image(p, image, kind, most, block):
    """Returns the next image of one segment."""
    with np.errstate(all="ignore"):
        i = flush(widen(image))
        new = flush(i + stands(flush(p - i), most, block))
    return narrow(np.where(np.isnan(new), np.float32("nan"), new), kind)


# --- [3] sum of squares ---


def segment_squares(w):
    total = 0.0
    for at in range(0, len(w), 4096):
        block = flush(widen(w[at : at + 4096])).astype(np.float64)
        block = np.concatenate([block, np.zeros(-len(block) % 16)]).reshape(-1, 16)
        lane = np.cumsum(np.concatenate([np.zeros((1, 16)), block * block]), axis=0)[-1]
        for half in (8, 4, 2, 1):
            lane = lane[:half] + lane[half : 2 * half]
        total += float(lane[0])
    return total


def squares(layout, gradients, chunk_elems, elems):
    """Takes gradients: tensor name → reduced gradient."""
    total = 0.0
    for first in range(0, elems, chunk_elems):
        chunk = 0.0
        for name, at, numel, frozen in layout:
            lo, hi = max(at, first), min(at + numel, first + chunk_elems)
            if lo < hi and not frozen:
                chunk += segment_squares(gradients[name][lo - at : hi - at])
        total += chunk
    return total


# --- [4] the multiplier ---


def multiplier(total, weights, loss_scale, predivide, clip):
    weight_sum = weights[0]
    for w in weights[1:]:
        weight_sum += w
    divisor = loss_scale * weight_sum
    if len(weights) > 1:
        divisor /= predivide
    norm = math.sqrt(total) / divisor
    factor = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
    return np.float32(factor / divisor), norm, factor, weight_sum


# --- [5], [6] optimizers: each takes p, its states, g, its settings, lr and t, and returns p' and
# the states' new values ---


def _adam(p, s, g, h, lr, t, decoupled):
    f = np.float32
    step_size, bc2_sqrt = f(lr / (1 - h["beta1"] ** t)), f(math.sqrt(1 - h["beta2"] ** t))
    m, v = s
    if decoupled:
        p1 = flush(p * f(1 - lr * h["weight_decay"]))
    else:
        p1, g = p, fma(f(h["weight_decay"]), p, g)
    m = fma(f(1 - h["beta1"]), flush(g - m), m)
    v = fma(flush(f(1 - h["beta2"]) * g), g, flush(f(h["beta2"]) * v))
    d = flush(flush(flush(np.sqrt(v)) / bc2_sqrt) + f(h["eps"]))
    return fma(-step_size, flush(m / d), p1), [m, v]


def adamw(p, s, g, h, lr, t):
    return _adam(p, s, g, h, lr, t, True)


def adam(p, s, g, h, lr, t):
    return _adam(p, s, g, h, lr, t, False)


def sgd(p, s, g, h, lr, t):
    f = np.float32
    d = fma(f(h["weight_decay"]), p, g)
    b = fma(f(h["momentum"]), s[0], d)
    u = fma(f(h["momentum"]), b, d) if h["nesterov"] else b
    return fma(-f(lr), u, p), [b]


def adagrad(p, s, g, h, lr, t):
    f = np.float32
    d = fma(f(h["weight_decay"]), p, g)
    total = fma(d, d, s[0])
    return fma(-f(lr), flush(d / flush(flush(np.sqrt(total)) + f(h["eps"]))), p), [total]


def lion(p, s, g, h, lr, t):
    f = np.float32
    c = fma(f(1 - h["beta1"]), g, flush(f(h["beta1"]) * s[0]))
    u = np.where(c > 0, f(lr), np.where(c < 0, -f(lr), f(0)))
    m = fma(f(1 - h["beta2"]), g, flush(f(h["beta2"]) * s[0]))
    return flush(flush(p * f(1 - lr * h["weight_decay"])) - u), [m]


OPTIMIZERS = {f.__name__: f for f in (adamw, adam, sgd, adagrad, lion)}


# --- [7] what is stored ---


def apply(optimizer, p, states, w, mult, hyper, lr, t):
    """Updates one tensor. Returns p' and states'."""
    with np.errstate(all="ignore"):
        g = flush(flush(widen(w)) * mult)
        p1, s1 = OPTIMIZERS[optimizer](p, states, g, hyper, lr, t)
        good = np.isfinite(p1)
        for s in s1:
            good &= np.isfinite(s)
        return np.where(good, p1, p), [np.where(good, new, old) for new, old in zip(s1, states)]
