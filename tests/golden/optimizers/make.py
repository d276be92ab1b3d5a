"""Writes results.safetensors: results of Optax, to test the optimizers and the schedules.

  python3 tests/golden/optimizers/make.py       needs the packages jax and optax

A run starts at the parameters `start` and takes 20 steps. The gradient of parameter p, whose
elements are numbered from 0 in row-major order, at step t is cos(0.7 * number + t) + 0.1 * p.
`<run>/<name>` holds a parameter after the run. `schedule/<name>` holds the values of a schedule at
the steps of COUNTS.
"""
import json
import pathlib
import struct

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS = 20
COUNTS = [0, 1, 2, 5, 9, 10, 11, 25, 50, 99, 100, 101, 150, 1000]
SHAPES = {"embed": (5, 4), "up": (4, 6), "down": (6, 3), "bias": (3,), "layers": (2, 4, 3)}


def number(shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def start(shapes):
    return {name: jnp.asarray(np.sin(number(shape) + 1).astype(np.float32) * np.float32(0.5))
            for name, shape in shapes.items()}


def gradients(params, step):
    return {name: jnp.cos(np.float32(0.7) * number(p.shape) + np.float32(step))
            + np.float32(0.1) * p for name, p in params.items()}


def run(optimizer, change=None, shapes=SHAPES):
    params = start(shapes)
    state = optimizer.init(params)
    for step in range(STEPS):
        if change:
            change(step, state)
        updates, state = optimizer.update(gradients(params, step), state, params)
        params = optax.apply_updates(params, updates)
    return params


def lower_rate(step, state):
    if step == 10:
        state.hyperparams["learning_rate"] = jnp.asarray(0.001, jnp.float32)


def label(params):
    return {name: "lion" if p.ndim > 1 else "sgd" for name, p in params.items()}


def is_matrix(params):
    return {name: p.ndim == 2 for name, p in params.items()}


# The last two axes of a leaf are a matrix: `layers` is a stack of two matrices.
DIMENSIONS = {name: optax.contrib.MuonDimensionNumbers(len(shape) - 2, len(shape) - 1)
              if len(shape) > 1 else None for name, shape in SHAPES.items()}


def muon(**options):
    return optax.contrib.muon(0.02, muon_weight_dimension_numbers=DIMENSIONS, **options)


SCHEDULES = {
    "constant": optax.constant_schedule(0.25),
    "linear": optax.linear_schedule(0.1, 1.0, 90, 10),
    "polynomial": optax.polynomial_schedule(1.0, 0.1, 2.5, 100, 5),
    "cosine": optax.cosine_decay_schedule(0.5, 100, 0.1, 2.0),
    "exponential": optax.exponential_decay(1.0, 20, 0.5, 10),
    "staircase": optax.exponential_decay(1.0, 20, 0.5, 10, True, 0.1),
    "piecewise": optax.piecewise_constant_schedule(1.0, {10: 0.5, 100: 0.1}),
    "join": optax.join_schedules([optax.linear_schedule(0.0, 1.0, 10),
                                  optax.cosine_decay_schedule(1.0, 90),
                                  optax.constant_schedule(0.01)], [10, 100]),
    "warmup_constant": optax.warmup_constant_schedule(0.1, 1.0, 50),
    "warmup_cosine": optax.warmup_cosine_decay_schedule(0.1, 1.0, 10, 100, 0.05),
    "warmup_exponential": optax.warmup_exponential_decay_schedule(0.0, 1.0, 10, 20, 0.5,
                                                                  end_value=0.01),
}

RUNS = {
    "lion": optax.lion(0.01, weight_decay=0.1),
    "lion_scheduled": optax.lion(optax.linear_schedule(0.01, 0.0, 20)),
    "rmsprop": optax.rmsprop(0.01),
    "rmsprop_momentum": optax.rmsprop(0.01, decay=0.95, eps=1e-6, initial_scale=1.0, momentum=0.9,
                                      nesterov=True),
    "rmsprop_centered": optax.rmsprop(0.01, centered=True, eps=1e-3),
    "rmsprop_corrected": optax.rmsprop(0.01, bias_correction=True, eps_in_sqrt=False),
    "adafactor": optax.adafactor(0.01, min_dim_size_to_factor=4),
    "adafactor_momentum": optax.adafactor(0.01, min_dim_size_to_factor=3, momentum=0.9,
                                          weight_decay_rate=0.01, clipping_threshold=None,
                                          multiply_by_parameter_scale=False),
    "adafactor_unfactored": optax.adafactor(0.01, factored=False),
    "muon": muon(),
    "muon_plain": muon(nesterov=False, weight_decay=0.1, consistent_rms=0.2,
                       adam_learning_rate=0.001),
    "muon_adaptive": muon(adaptive=True, ns_steps=3),
    "adam_nesterov": optax.chain(optax.scale_by_adam(nesterov=True), optax.scale(-0.01)),
    "clip_by_block_rms": optax.chain(optax.clip_by_block_rms(0.5), optax.scale(-0.1)),
    "clip": optax.chain(optax.clip(0.3), optax.scale_by_learning_rate(0.1)),
    "sign": optax.chain(optax.scale_by_sign(), optax.scale(-0.01)),
    "param_block_rms": optax.chain(optax.scale_by_param_block_rms(0.2), optax.scale(-0.1)),
    "trust_ratio": optax.chain(optax.scale_by_trust_ratio(0.1, 0.5, 1e-3), optax.scale(-0.1)),
    "ema": optax.chain(optax.ema(0.8), optax.scale(-0.1)),
    "trace": optax.chain(optax.trace(0.8, nesterov=True), optax.scale(-0.01)),
    "masked": optax.masked(optax.lion(0.01), is_matrix),
    "multi_transform": optax.multi_transform(
        {"lion": optax.lion(0.01), "sgd": optax.sgd(0.1, momentum=0.9)}, label),
    "scheduled": optax.chain(optax.scale_by_rms(),
                             optax.scale_by_learning_rate(SCHEDULES["warmup_cosine"])),
}


def injected(rate):
    return optax.inject_hyperparams(optax.adamw)(learning_rate=rate, weight_decay=0.1)


def write(path, tensors):
    """Writes a safetensors file: the length of a JSON header, the header, and the values."""
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape),
                        "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(values.tobytes() for values in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    tensors = {}
    runs = {name: run(optimizer) for name, optimizer in RUNS.items()}
    runs["injected"] = run(injected(0.01), lower_rate)
    runs["injected_schedule"] = run(injected(SCHEDULES["linear"]))
    for name, params in runs.items():
        for leaf, values in params.items():
            tensors[f"{name}/{leaf}"] = np.asarray(values, np.float32)
    for name, schedule in SCHEDULES.items():
        values = [float(schedule(jnp.asarray(count, jnp.int32))) for count in COUNTS]
        tensors[f"schedule/{name}"] = np.asarray(values, np.float32)
    path = pathlib.Path(__file__).with_name("results.safetensors")
    write(path, dict(sorted(tensors.items())))
    print(f"{path.name}: {len(tensors)} tensors, optax {optax.__version__}, jax {jax.__version__}")


if __name__ == "__main__":
    main()
