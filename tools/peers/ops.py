"""Runs the ops of ops_table.py in JAX or PyTorch, for `tools/compare --all`.

    ops.py jax|torch THREADS

Each input line is a case, as `build/bench/bench --all --serve` prints it, or `run`. The reply to a
case is an object with `ready`, or with `missing` and a reason. The reply to `run` is an object with
the seconds per call.
"""
import functools
import json
import os
import pathlib
import re
import sys
import time

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import ops_table   # noqa: E402

SHORT = 0.05   # seconds; a shorter run follows an untimed one that fills the caches
LONG_INDEX = re.compile("index|scatter|take_along")   # PyTorch requires int64 here


@functools.lru_cache(8)
def values(count, low, high, integer, seed):
    """Returns the values of an input, as values_of() in tests/ops/ops_entries.cpp."""
    place = numpy.arange(1, count + 1, dtype=numpy.float64)
    place += 29 * seed
    place *= 0.6180339887498949
    place += 0.03
    place -= numpy.floor(place)
    place *= high - low
    place += low
    return numpy.floor(place) if integer else place


class Case:
    """The functions and names that an expression may use."""

    def __init__(self, spec):
        self.L = ["".join(name for name, _ in array["axes"]) for array in spec["in"]]
        self.sizes = [dict(map(tuple, array["axes"])) for array in spec["in"]]
        self.S = {}
        for sizes in self.sizes:
            for name, size in sizes.items():
                self.S.setdefault(name, size)
        first = max(self.L, key=len, default="")
        self.union = first + "".join(sorted({c for axes in self.L for c in axes} - set(first)))
        self.axis = spec["axis"] or "n"

    def replaced(self, letter):
        """Returns the axes of x0, with another one or none at the place of its axis n."""
        return self.L[0].replace(self.axis, letter)

    def on(self, k, letters):
        """Returns input k with its axes in this order."""
        order = [self.L[k].index(letter) for letter in letters]
        return self.x[k] if order == sorted(order) else self.permuted(self.x[k], order)

    def placed(self, k, letters):
        """Returns input k with its axes as in `letters`, and size 1 for those that it lacks."""
        own = "".join(letter for letter in letters if letter in self.L[k])
        shape = tuple(self.sizes[k].get(letter, 1) for letter in letters)
        y = self.on(k, own)
        return y if tuple(y.shape) == shape else y.reshape(shape)

    def al(self, k, letter):
        return self.placed(k, self.replaced(letter))

    def cast(self, k, letter):
        """Returns input k with all axes of x0, and `letter` or an axis of size 1 at the place of
        n."""
        letters = self.replaced(letter or ".")
        size = {**self.S, ".": 1, **self.sizes[k]}
        return self.np.broadcast_to(self.placed(k, letters), tuple(size[c] for c in letters))

    def dropped(self, k):
        """Returns input k with all axes of x0 but n."""
        letters = self.replaced("")
        return self.np.broadcast_to(self.placed(k, letters), tuple(self.S[c] for c in letters))

    def at(self, dim, index):
        return (slice(None),) * dim + (index,)

    def sized(self, dim, size):
        return tuple(size if k == dim else s for k, s in enumerate(self.x[0].shape))

    def widths(self, dim, low, high):
        return [(low, high) if k == dim else (0, 0) for k in range(self.x[0].ndim)]

    def along(self, dim, vector):
        return vector.reshape([-1 if k == dim else 1 for k in range(self.x[0].ndim)])

    def iota(self, letter):
        return self.along(self.L[0].index(letter), self.np.arange(self.S[letter]))

    def es(self, out, *arrays):
        extra = "v" if "v" in self.L[0] else ""
        return self.np.einsum(",".join(self.L[:len(arrays)]) + "->" + extra + out, *arrays)

    def specials(self, x):
        p = self.np.arange(6)
        inf = float("inf")
        return self.np.where(p == 0, inf, self.np.where(p == 2, -inf,
                             self.np.where(p == 4, float("nan"), x)))

    def function(self, text, names):
        """Returns a function of the inputs that evaluates the expression."""
        count = len(self.L)

        def aligned(match):
            k = int(match[1])
            own = "".join(letter for letter in self.union if letter in self.L[k])
            meets = self.L[k] == own and self.union.endswith(own)
            return f"x{k}" if meets else f"placed({k}, {self.union!r})"

        text = re.sub(r"\ba(\d)\b", aligned, text)
        helpers = {name: getattr(self, name) for name in dir(self) if not name.startswith("__")}
        dims = {letter: k for k, letter in enumerate(self.L[0])} if self.L else {}
        scope = {**names, **helpers, **dims, "self": self}
        inputs = ", ".join(f"x{k}" for k in range(count))
        needs = re.search(r"\b(" + "|".join(helpers) + r")\b", text)
        keep = f"    self.x = ({inputs},)\n" if needs else ""
        exec(f"def f({inputs}):\n{keep}    return {text}\n", scope)
        return scope["f"]


def pairs(value, count):
    """Returns one pair of paddings for each of `count` axes."""
    return value if isinstance(value, tuple) else ((value, value),) * count


def each(value, count):
    return value if isinstance(value, tuple) else (value,) * count


class JaxCase(Case):
    def __init__(self, spec):
        import jax
        import jax.numpy as jnp

        super().__init__(spec)
        self.jax, self.np = jax, jnp

    def permuted(self, x, order):
        return self.np.transpose(x, order)

    def copied(self, x):
        return x

    def put(self, method, ids, updates, **options):
        dim = self.L[0].index(self.axis)
        grid = [self.along_rank(k, ids) for k in range(ids.ndim)]
        grid[dim] = ids
        return getattr(self.x[0].at[tuple(grid)], method)(updates, **options)

    def along_rank(self, k, ids):
        return self.np.arange(ids.shape[k]).reshape([-1 if j == k else 1
                                                     for j in range(ids.ndim)])

    def convolve(self, spatial, kernel, stride, padding, dilation, groups, lhs_dilation=None):
        count = len(spatial)
        left = self.L[0] if "b" in self.L[0] else "b" + self.L[0]
        x = self.x[0] if "b" in self.L[0] else self.x[0][None]

        def named(text, batch, channel):
            return "".join({batch: "N", channel: "C"}.get(c, c) for c in text)

        right = self.L[1].replace("o", "O").replace("c", "I")
        numbers = (named(left, "b", "c"), right, named(left, "b", "c"))
        return self.jax.lax.conv_general_dilated(
            x, kernel, each(stride, count), padding, lhs_dilation=lhs_dilation,
            rhs_dilation=each(dilation, count), dimension_numbers=numbers,
            feature_group_count=groups)

    def conv(self, spatial, stride=1, padding=0, dilation=1, groups=1):
        return self.convolve(spatial, self.x[1], stride, pairs(padding, len(spatial)), dilation,
                             groups)

    def conv_transpose(self, spatial, stride=1, padding=0, extra=0):
        count = len(spatial)
        around = [(self.sizes[1][c] - 1 - low, self.sizes[1][c] - 1 - high + extra)
                  for c, (low, high) in zip(spatial, pairs(padding, count))]
        return self.convolve(spatial, self.x[1], 1, around, 1, 1, each(stride, count))

    def pool(self, f, start, window, strides, padding=None, x=None):
        x = self.x[0] if x is None else x
        return self.jax.lax.reduce_window(x, numpy.asarray(start, x.dtype), f, window, strides,
                                          padding or ((0, 0),) * len(window))


class TorchCase(Case):
    def __init__(self, spec):
        import torch

        super().__init__(spec)
        self.torch, self.np = torch, torch

    def permuted(self, x, order):
        return x.permute(order)

    def copied(self, x):
        return x.contiguous() if not x.is_contiguous() else x.clone()

    def standardize(self, x, dim):
        if dim == x.ndim - 1:
            return self.torch.nn.functional.layer_norm(x, x.shape[-1:])
        var, mean = self.torch.var_mean(x, dim, correction=0, keepdim=True)
        return (x - mean) * self.torch.rsqrt(var + 1e-5)

    def conv(self, spatial, stride=1, padding=0, dilation=1, groups=1):
        functional = self.torch.nn.functional
        x = self.on(0, ("b" if "b" in self.L[0] else "") + "c" + spatial)
        if isinstance(padding, tuple) and any(low != high for low, high in padding):
            x = functional.pad(x, [n for pair in reversed(padding) for n in pair])
            padding = 0
        elif isinstance(padding, tuple):
            padding = tuple(low for low, _ in padding)
        f = getattr(functional, f"conv{len(spatial)}d")
        return f(x, self.x[1], None, stride, padding, dilation, groups)

    def conv_transpose(self, spatial):
        x, kernel = self.on(0, "bc" + spatial), self.on(1, "co" + spatial)
        kernel = kernel.flip(*range(2, kernel.ndim))   # PyTorch reverses it
        return getattr(self.torch.nn.functional, f"conv_transpose{len(spatial)}d")(x, kernel)

    def ragged(self, x, weights, sizes):
        sizes = sizes.tolist()
        parts = [part @ w for part, w in zip(x.split([*sizes, len(x) - sum(sizes)]), weights)]
        rest = x.new_zeros(len(x) - sum(sizes), weights.shape[-1])
        return self.torch.cat([*parts, rest])


class Peer:
    def arrays(self, spec, text):
        out = []
        for seed, array in enumerate(spec["in"]):
            shape = [size for _, size in array["axes"]]
            floats = array["dtype"] in ("f32", "bf16")
            data = values(int(numpy.prod(shape)), array["low"], array["high"], not floats, seed)
            out.append(self.array(data.reshape(shape), array["dtype"], text))
        return out

    def prepare(self, spec):
        text = ops_table.OPS[spec["op"]][self.place]
        if text is None:
            raise ValueError(f"{self.name} lacks the op")
        case = self.case(spec)
        x = self.arrays(spec, text)
        floats = [k for k, array in enumerate(spec["in"]) if array["dtype"] in ("f32", "bf16")]
        call = self.calls(case.function(text, self.names), x,
                          floats if spec["pass"] == "gradient" else None)
        start = time.perf_counter()
        results = call()
        first = time.perf_counter() - start
        out = {"ready": spec["op"], "first": first}
        if "checksum" in spec:
            out["checksum"] = self.checksum(results)
        del results
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        self.call, self.last = call, once
        self.count = int(min(max(1e-3 / max(once, 1e-6), 1), 1000))
        return out

    def checksum(self, results):
        flat = [self.numpy(y) for y in results if y is not None]
        return [float(sum(y.sum() for y in flat)), float(sum((y * y).sum() for y in flat))]

    def run(self):
        start = time.perf_counter()
        for _ in range(self.count):
            self.call()
        return (time.perf_counter() - start) / self.count


class JaxPeer(Peer):
    name, place, case = "jax", 0, JaxCase

    def __init__(self, threads):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import jax.numpy as jnp

        self.jax, self.jnp = jax, jnp
        self.names = {"jax": jax, "jnp": jnp, "np": jnp}
        self.dtypes = {"f32": jnp.float32, "bf16": jnp.bfloat16, "i32": jnp.int32,
                       "u32": jnp.uint32, "bool": jnp.bool_}

    def array(self, data, dtype, text):
        return self.jnp.asarray(data, self.dtypes[dtype])

    def calls(self, f, x, floats):
        if floats is None:
            compiled = self.jax.jit(lambda *x: (f(*x),))
            return lambda: self.jax.block_until_ready(compiled(*x))
        y = self.jax.eval_shape(f, *x)

        def back(x, cotangent):
            def of_floats(*some):
                all_of_them = list(x)
                for k, value in zip(floats, some):
                    all_of_them[k] = value
                return f(*all_of_them)
            return self.jax.vjp(of_floats, *(x[k] for k in floats))[1](cotangent)

        cotangent, compiled = self.jnp.ones(y.shape, y.dtype), self.jax.jit(back)
        return lambda: self.jax.block_until_ready(compiled(x, cotangent))

    def numpy(self, y):
        return numpy.asarray(y, numpy.float64)

    def forget(self):
        self.call = None
        self.cases = getattr(self, "cases", 0) + 1
        if self.cases % 100 == 0:
            self.jax.clear_caches()


class TorchPeer(Peer):
    name, place, case = "torch", 1, TorchCase

    def __init__(self, threads):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        # names of jax.numpy that PyTorch spells in another way
        torch.concatenate, torch.permute_dims = torch.cat, torch.permute
        self.names = {"torch": torch, "np": torch, "F": torch.nn.functional}
        self.dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32,
                       "u32": torch.uint32, "bool": torch.bool}

    def array(self, data, dtype, text):
        if dtype == "i32" and LONG_INDEX.search(text):
            return self.torch.from_numpy(data.astype(numpy.int64))
        plain = {"i32": numpy.int32, "u32": numpy.uint32, "bool": numpy.bool_}
        return self.torch.from_numpy(data.astype(plain.get(dtype, numpy.float32))).to(
            self.dtypes[dtype])

    def calls(self, f, x, floats):
        torch = self.torch
        if floats is None:
            def forward():
                with torch.no_grad():
                    return (f(*x),)
            return forward
        leaves = [x[k].requires_grad_() for k in floats]
        with torch.no_grad():
            cotangent = torch.ones_like(f(*x), memory_format=torch.preserve_format)
        return lambda: torch.autograd.grad(f(*x), leaves, cotangent, allow_unused=True)

    def numpy(self, y):
        return y.detach().to(self.torch.float64).numpy()

    def forget(self):
        self.call = None


def main():
    peer = {"jax": JaxPeer, "torch": TorchPeer}[sys.argv[1]](int(sys.argv[2]))

    def reply(**what):
        print(json.dumps(what), flush=True)

    for line in sys.stdin:
        if line == "run\n":
            if peer.last < SHORT:
                peer.run()
            peer.last = peer.run()
            reply(seconds=peer.last)
            continue
        peer.forget()
        try:
            reply(**peer.prepare(json.loads(line)))
        except Exception as error:   # a peer may lack the op or the dtype
            reply(missing=f"{type(error).__name__}: {str(error).strip()[:160]}")


if __name__ == "__main__":
    main()
