"""The cases `loop_*` of the benchmark program in JAX, for tools/compare.

    PYTHON tools/peers/loops.py --only REGEX [--threads N]

Prints one line of JSON per case. With --serve, waits for a line "run" before each run.
"""
import argparse
import json
import os
import re
import statistics
import sys
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--only", default="")
parser.add_argument("--peer", default="jax", choices=["jax"])
parser.add_argument("--dtype", default="f32", choices=["f32"])
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--serve", action="store_true")
options = parser.parse_args()
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.threads])

import jax   # noqa: E402
import jax.numpy as jnp   # noqa: E402
from jax.nn import sigmoid   # noqa: E402

jax.config.update("jax_platforms", "cpu")


def normal(seed, shape, scale=1.0):
    return jax.random.normal(jax.random.key(seed), shape) * scale


def fold(step, init, xs=None, length=None):
    return jax.lax.scan(lambda c, x: (step(c, x), None), init, xs, length)[0]


def rk4_step(derivative, x, dt):
    k1 = derivative(x)
    k2 = derivative(x + k1 * (dt / 2))
    k3 = derivative(x + k2 * (dt / 2))
    k4 = derivative(x + k3 * dt)
    return x + (k1 + k2 * 2 + k3 * 2 + k4) * (dt / 6)


def ode(x, w):
    return fold(lambda s, _: rk4_step(lambda y: jnp.tanh(y @ w), s, 1e-3), x, length=20000)


def kalman(a, noise, h, observed):
    def step(state, z):
        mean, cov = state
        m = a @ mean
        p = a @ cov @ a.T + noise
        ph = p @ h
        gain = ph / (ph @ h + 0.1)
        return m + gain * (z - h @ m), p - jnp.outer(gain, ph)

    return fold(step, (jnp.zeros(8), noise), observed)


def lotka(start, rates):
    def example(s, r):
        def derivative(x):
            met = x[0] * x[1]
            return jnp.stack([x[0] * r[0] - met * r[1], met * r[2] - x[1] * r[3]])

        return fold(lambda x, _: rk4_step(derivative, x, 1e-3), s, length=2000)

    return jax.vmap(example)(start, rates)


def gates(count):
    return [(normal(3 * k, (128, 128), .1), normal(3 * k + 1, (128, 128), .1),
             normal(3 * k + 2, (128,), .1)) for k in range(count)]


def gate(weights, x, h):
    w, u, b = weights
    return x @ w + h @ u + b


def lstm(g, xs):
    def step(carry, x):
        h, c = carry
        c = sigmoid(gate(g[0], x, h)) * c + sigmoid(gate(g[1], x, h)) * jnp.tanh(gate(g[2], x, h))
        return sigmoid(gate(g[3], x, h)) * jnp.tanh(c), c

    zero = jnp.zeros(xs.shape[1:])
    return fold(step, (zero, zero), xs)[0]


def gru(g, xs):
    def step(h, x):
        reset, update = sigmoid(gate(g[0], x, h)), sigmoid(gate(g[1], x, h))
        new = jnp.tanh(gate(g[2], x, reset * h))
        return new + update * (h - new)

    return fold(step, jnp.zeros(xs.shape[1:]), xs)


def arm(angles, links, target):
    def distance(q):
        def joint(pose, link):
            part, angle = link
            return pose @ (part[0] + part[1] * jnp.cos(angle) + part[2] * jnp.sin(angle))

        hand = fold(joint, jnp.zeros(4).at[3].set(1.0), (links, q))
        return jnp.sum((hand - target)**2)

    return fold(lambda q, _: q - jax.grad(distance)(q) * 0.01, angles, length=1000)


def recurrent(f, count, batch):
    return f, lambda: (gates(count), normal(99, (256, batch, 128)))


FORWARD = {
    "loop_ode": (ode, lambda: (normal(0, (16,)), normal(1, (16, 16), .25))),
    "loop_kalman": (kalman, lambda: (jnp.eye(8) * .9 + normal(0, (8, 8), .02), jnp.eye(8) * .01,
                                     normal(1, (8,)), normal(2, (2000,)))),
    "loop_lotka": (lotka, lambda: (jax.random.uniform(jax.random.key(0), (1000, 2)) + 1,
                                   jax.random.uniform(jax.random.key(1), (1000, 4)) + .5)),
    "loop_lstm_1": recurrent(lstm, 4, 1),
    "loop_gru_1": recurrent(gru, 3, 1),
    "loop_lstm_32": recurrent(lstm, 4, 32),
    "loop_gru_32": recurrent(gru, 3, 32),
    "loop_arm": (arm, lambda: (normal(0, (7,)), normal(1, (7, 3, 4, 4), .4), normal(2, (4,)))),
}


def gradient(f):
    return lambda args: jax.grad(lambda a: jnp.sum(f(*a)))(args)


def cases():
    for name, (f, inputs) in FORWARD.items():
        yield name, f, inputs
        if name not in ("loop_kalman", "loop_arm"):
            yield name + "_grad", gradient(f), lambda inputs=inputs: (inputs(),)


def say(**what):
    print(json.dumps(what), flush=True)


for name, f, inputs in cases():
    if not re.search(options.only, name):
        continue
    args = jax.block_until_ready(inputs())
    compiled = jax.jit(f)
    run = lambda: jax.block_until_ready(compiled(*args))
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    run()

    def timed():
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    times = []
    if options.serve:
        say(ready=name)
        while sys.stdin.readline() == "run\n":
            run()
            times.append(timed())
            say(seconds=times[-1])
    else:
        times = [timed() for _ in range(7)]
    if times:
        say(peer="jax", case=name, dtype="f32", median_s=statistics.median(times), first_s=first)
