"""How JAX and PyTorch spell each op, for `tools/compare --all`.

Each entry of tests/ops/ops_entries_*.cpp has a row here, or a reason in EXCEPTIONS
(tests/peers_test.py). A row is one expression for both libraries, where `np` is jax.numpy or torch,
or a pair: first JAX, then PyTorch. None: the library lacks the op.

An expression may use:

- `x0`, `x1`, ...: the inputs of the entry, with axes in memory order; `a0`, `a1`, ...: the same
  with broadcast axes, so that axes of one name meet. Case `v` adds an axis to `x0`.
- `n`, `b`, ...: the dimension of `x0` that the entry calls so; `S["n"]`: the size of this axis
- the functions of ops.py: `al`, `cast`, `on`, `at`, `es`, `put`, `conv` and others
"""

ELEMENTWISE = {
    **{name: f"np.{name}(x0)" for name in (
        "abs sign negative square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt sin"
        " cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh deg2rad rad2deg floor"
        " ceil trunc sinc i0 round signbit logical_not bitwise_not").split()},
    **{name: f"np.{name}(specials(x0))" for name in
       "isfinite isnan isinf isneginf isposinf".split()},
    "reciprocal": ("1 / x0", "torch.reciprocal(x0)"),
    "square of integers": "np.square(x0)",
    "exp of integers": "np.exp(x0)",
    "rsqrt": ("jax.lax.rsqrt(x0)", "torch.rsqrt(x0)"),
    "cbrt": ("jnp.cbrt(x0)", "torch.sign(x0) * torch.abs(x0) ** (1 / 3)"),
    "sigmoid": ("jax.nn.sigmoid(x0)", "torch.sigmoid(x0)"),
    "erf": ("jax.scipy.special.erf(x0)", "torch.erf(x0)"),
    "erfinv": ("jax.scipy.special.erfinv(x0)", "torch.erfinv(x0)"),
    "sinc at 0": "np.sinc(x0 - x0) * x0 + np.sinc(x0)",
    "round to decimals": ("jnp.round(x0, 1)", "torch.round(x0, decimals=1)"),
    "astype to integers": ("x0.astype(jnp.int8)", "x0.to(torch.int8)"),
    "astype to f32": (None, "x0.double().to(x0.dtype)"),
    "stop_gradient": ("x0 * x0 + jax.lax.stop_gradient(x0)", "x0 * x0 + x0.detach()"),
}

BINARY = {
    **{name: f"np.{name}(a0, a1)" for name in (
        "add subtract multiply divide maximum minimum floor_divide fmod arctan2 hypot logaddexp"
        " logaddexp2 nextafter fmax fmin logical_and logical_or logical_xor").split()},
    **{name: f"a0 {sign} a1" for name, sign in {
        "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
        "greater_equal": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
        "left_shift": "<<", "right_shift": ">>", "power": "**",
        "add with the larger on the right": "+", "add in another order": "+",
        "multiply integers by floats": "*", "divide integers": "/", "mod integers": "%"}.items()},
    "power by a number": "x0 ** 3",
    "power by a fraction": "x0 ** 1.5",
    "floor_divide integers": "np.floor_divide(a0, a1)",
    "mod": ("jnp.mod(a0, a1)", "torch.remainder(a0, a1)"),
    "float_power": "a0 ** a1",
    "float_power of integers": ("jnp.float_power(x0, -2)", "x0.float() ** -2"),
    "divmod": ("jnp.divmod(a0, a1)[1]", "torch.remainder(a0, a1)"),
    "isclose": "np.isclose(a0, a1, atol=1)",
    "right_shift of unsigned": ("a0 >> a1", None),
    "where": "np.where(a0, a1, a2)",
    "nonzero": ("(lambda p: p[0] * 10 + p[1])(jnp.nonzero(x0, size=4, fill_value=-1))",
                "(lambda p: p[:4, 0] * 10 + p[:4, 1])(torch.nonzero(x0))"),
    "where with a number": "np.where(x0 > 0, x0 * x0, 0)",
    "clip": "np.clip(x0, -1, 1)",
    "clip by arrays": "np.clip(a0, a1, a2)",
}

CREATION = {
    "full": ("jnp.full((2, 3), x0)", "x0.expand(2, 3).contiguous()"),
    "zeros_like": "np.zeros_like(x0)",
    "ones_like": "np.ones_like(x0, dtype=np.int32)",
    "full_like": ("jnp.full_like(x0, x1)", "x1.expand(x0.shape).contiguous()"),
    "arange with a step": "x0 * np.arange(1, 2.5, 0.5)",
    "linspace": "x0 * np.linspace(-1, 1, 5)",
    "arange from an array": "x0 + 2 * np.arange(6).reshape(2, 3)",
    "logspace": "x0 * np.logspace(0, 2, 5, base=3)",
    "geomspace": ("x0 * jnp.geomspace(1, 81, 5)", "x0 * 81 ** torch.linspace(0, 1, 5)"),
    "one_hot": ("jax.nn.one_hot(x0, 5)", "(x0.unsqueeze(-1) == torch.arange(5)).float()"),
}

TOP_K = "jnp.moveaxis(jax.lax.top_k(jnp.moveaxis(x0, n, -1), 2)[{0}], -1, n)"
REDUCTIONS = {
    "sum": "np.sum(x0, n)",
    "sum over all": "np.sum(x0)",
    "sum with a mask": ("jnp.sum(x0, n, where=a1)", "torch.where(a1, x0, 0).sum(n)"),
    "sum of bools": "np.sum(x0, n)",
    "mean": "np.mean(x0)",
    "mean with a mask": ("jnp.mean(x0, n, where=a1)",
                         "torch.where(a1, x0, 0).sum(n) / x1.sum()"),
    "mean of integers": ("jnp.mean(x0, b)", "torch.mean(x0, b, dtype=torch.float32)"),
    "prod": "np.prod(x0, n)",
    "max": ("jnp.max(x0, n)", "torch.amax(x0, n)"),
    "max with a mask": ("jnp.max(x0, n, where=a1, initial=-jnp.inf)",
                        "torch.where(a1, x0, -torch.inf).amax(n)"),
    "min": ("jnp.min(x0, b)", "torch.amin(x0, b)"),
    "min of integers": ("jnp.min(x0)", "torch.amin(x0)"),
    "var": ("jnp.var(x0, n)", "torch.var(x0, n, correction=0)"),
    "var of a sample": ("jnp.var(x0, n, ddof=1)", "torch.var(x0, n, correction=1)"),
    "std_dev": ("jnp.std(x0, n)", "torch.std(x0, n, correction=0)"),
    "var in another dtype": (None, "x0.double().var(n, correction=0)"),
    "ptp": ("jnp.ptp(x0, n)", "x0.amax(n) - x0.amin(n)"),
    "bincount": ("jnp.bincount(x0, x1, length=5)",
                 "torch.zeros(5, dtype=x1.dtype).index_add(0, x0, x1)"),
    "bincount without weights": ("jnp.bincount(x0, length=5)",
                                 "torch.bincount(x0.clamp(0, 5), minlength=6)[:5]"),
    "any": "np.any(x0, n)",
    "all": "np.all(x0, n)",
    "argmax": "np.argmax(x0, n)",
    "argmax of all": "np.argmax(x0)",
    "argmin": "np.argmin(x0, b)",
    "logsumexp": ("jax.nn.logsumexp(x0, n)", "torch.logsumexp(x0, n)"),
    "logsumexp of all": ("jax.nn.logsumexp(x0)", "torch.logsumexp(x0.flatten(), 0)"),
    "softmax": ("jax.nn.softmax(x0, n)", "torch.softmax(x0, n)"),
    "softmax over two axes": ("jax.nn.softmax(x0, (b, n))",
                              "torch.exp(x0 - torch.logsumexp(x0, (b, n), keepdim=True))"),
    "log_softmax": ("jax.nn.log_softmax(x0, n)", "torch.log_softmax(x0, n)"),
    "standardize": ("jax.nn.standardize(x0, n)", "standardize(x0, n)"),
    "cumsum": "np.cumsum(x0, n)",
    "cumprod": "np.cumprod(x0, n)",
    "cumsum in another dtype": "np.cumsum(x0, n, dtype=np.float32)",
    "sort": ("jnp.sort(x0, n)", "torch.sort(x0, dim=n).values"),
    "sort along the first axis": ("jnp.sort(x0, n)", "torch.sort(x0, dim=n).values"),
    "argsort": ("jnp.argsort(x0, n)", "torch.argsort(x0, dim=n, stable=True)"),
    "top_k values": (TOP_K.format(0), "torch.topk(x0, 2, n)[0]"),
    "top_k indices": (TOP_K.format(1), "torch.topk(x0, 2, n)[1]"),
    "dot": "es('bk', x0, x1)",
    "dot over two axes": "es('bm', x0, x1)",
    "dot with a batch": "es('bnm', x0, x1)",
    "dot of three": "es('bm', x0, x1, x2)",
    "dot of all": "es('', x0, x1)",
    "dot with an order": "es('kb', x0, x1)",
    "dot with itself": "np.einsum(L[0] + ',' + L[0].replace('b', 'c') + '->bc', x0, x0)",
    "einsum": "es('kb', x0, x1)",
}

SHAPES = {
    "rearrange": "copied(on(0, 'kbn'))",
    "rearrange by a string": "copied(on(0, 'kbn').reshape(S['k'], -1))",
    "broadcast_axis": "copied(np.broadcast_to(x0, (3, *x0.shape)))",
    "broadcast_to": "copied(np.broadcast_to(x0, (2, *x0.shape)))",
    "flatten_axes": "copied(x0.reshape(-1, S['k']))",
    "flatten_axes in another order": "copied(on(0, 'kbn').reshape(-1, S['n']))",
    "unflatten_axis": "copied(x0.reshape(x0.shape[:h] + (2, 3) + x0.shape[h + 1:]))",
    "ravel": "copied(x0.reshape(-1))",
    "unbind": "x0[at(n, 0)] * x0[at(n, 2)]",
    "split": "copied(x0[at(n, slice(2, 5))])",
    "stack": "np.stack((x0, x1, x0))",
    "concatenate": "np.concatenate((x0, a1), n)",
    "repeat": ("jnp.repeat(x0, 2, n)", "torch.repeat_interleave(x0, 2, n)"),
    "tile": "np.concatenate((x0, x0), n)",
    "roll": "np.roll(x0, 1, n)",
    "roll by an array": ("jnp.roll(x0, x1, n)", "torch.roll(x0, int(x1), n)"),
    "pad": ("jax.lax.pad(x0, x1, [(1, 2, 0) if k == n else (0, 0, 0) for k in range(x0.ndim)])",
            "torch.cat((x1.expand(sized(n, 1)), x0, x1.expand(sized(n, 2))), n)"),
    "repeat by counts": ("jnp.repeat(x0, x1, n, total_repeat_length=5)", None),
    "roll of two axes": "np.roll(x0, (1, -1), (b, n))",
    "pad by reflection": ("jnp.pad(x0, widths(n, 3, 2), mode='reflect')",
                          "F.pad(x0.movedim(n, -1), (3, 2), mode='reflect').movedim(-1, n)"),
    "pad by a ramp": ("jnp.pad(x0, widths(n, 2, 3), mode='linear_ramp')", None),
    "pad by the median": ("jnp.pad(x0, widths(n, 1, 1), mode='median')", None),
    "pad_left": ("jnp.pad(x0, widths(n, 2, 0))",
                 "F.pad(x0.movedim(n, -1), (2, 0)).movedim(-1, n)"),
    "broadcast_arrays": "a0 * a1",
    "flip": "np.flip(x0, (n,))",
    "tril": ("jnp.moveaxis(jnp.where(iota('n') >= iota('k'), x0, 0), (n, k), (-2, -1))",
             "torch.tril(x0.movedim((n, k), (-2, -1)))"),
    "triu": ("jnp.moveaxis(jnp.where(iota('k') > iota('n'), x0, 0), (n, k), (-2, -1))",
             "torch.triu(x0.movedim((n, k), (-2, -1)), 1)"),
    "trace": ("jnp.trace(x0, axis1=n, axis2=k)", "torch.diagonal(x0, 0, n, k).sum(-1)"),
}

ALONG = ("jnp.take_along_axis(x0, cast(1, 'k'), n)", "torch.take_along_dim(x0, cast(1, 'k'), n)")
INDEX = {
    "take": ("jnp.take(x0, x1, n)", "x0.index_select(n, x1)"),
    # the axis of the ids is the first one
    "take with a shared axis": (f"jnp.moveaxis({ALONG[0]}, n, 0)", f"{ALONG[1]}.movedim(n, 0)"),
    "slice": "copied(x0[at(n, slice(1, 4))])",
    "slice from an array": ("jax.lax.dynamic_slice_in_dim(x0, x1, 2, n)",
                            "x0.narrow(n, int(x1), 2).clone()"),
    "at": "copied(x0[at(n, 2)])",
    "at an array": ("jax.lax.dynamic_index_in_dim(x0, x1, n, False)",
                    "x0.select(n, int(x1)).clone()"),
    "updated_slice": ("jax.lax.dynamic_update_slice_in_dim(x0, cast(1, 'n'), x2, n)",
                      "x0.slice_scatter(cast(1, 'n'), n, int(x2), int(x2) + 2)"),
    "ds": ("jax.lax.dynamic_slice_in_dim(x0, x1, 2, n)", "x0.narrow(n, int(x1), 2).clone()"),
    "index": "copied(x0[at(n, slice(1, 6, 2))])",
    "index backwards": ("x0[at(n, slice(5, 0, -2))]", "x0[at(n, slice(1, 6, 2))].flip(n)"),
    "index by an array": ("jnp.take(x0[at(b, 1)], x1, n - (b < n))",
                          "x0.select(b, 1).index_select(n - (b < n), x1)"),
    "index by an array with a shared axis": ALONG,
    "at_get": ("x0.at[at(n, x1)].get(mode='fill', fill_value=3.)",
               "torch.where(along(n, (x1 >= -S['n']) & (x1 < S['n'])),"
               " x0.index_select(n, x1 % S['n']), 3.)"),
    "at_set by an array with a shared axis": ("put('set', cast(1, ''), cast(2, ''))",
                                              "x0.scatter(n, cast(1, ''), cast(2, ''))"),
    "at_add by an array with a shared axis": (
        "put('add', cast(1, 'k'), cast(2, 'k'), mode='clip')",
        "x0.scatter_add(n, torch.where(cast(1, 'k') < 0, cast(1, 'k') + S['n'], cast(1, 'k'))"
        ".clamp(0, S['n'] - 1), cast(2, 'k'))"),
    "at_mul by an array": ("x0.at[at(n, x1)].multiply(al(2, 'k'))",
                           "x0.index_reduce(n, x1, cast(2, 'k'), 'prod')"),
    "at_min by an array": ("put('min', cast(1, 'k'), cast(2, 'k'))",
                           "x0.scatter_reduce(n, cast(1, 'k'), cast(2, 'k'), 'amin')"),
    "at_max by an array": ("x0.at[at(n, x1)].max(al(2, 'k'))",
                           "x0.index_reduce(n, x1, cast(2, 'k'), 'amax')"),
    "at_divide": ("x0.at[at(n, x1)].divide(al(2, 'k'))",
                  "x0.index_reduce(n, x1, 1 / cast(2, 'k'), 'prod')"),
    "at_power": ("x0.at[at(n, x1)].power(al(2, 'k'))", None),
    "at_set": ("x0.at[at(n, 3)].set(al(1, ''))", "x0.select_scatter(dropped(1), n, 3)"),
    "at_add": ("x0.at[at(n, x1)].add(al(2, 'k'))", "x0.index_add(n, x1, cast(2, 'k'))"),
    "at_mul": ("x0.at[at(n, 3)].multiply(al(1, ''))",
               "x0.select_scatter(x0.select(n, 3) * dropped(1), n, 3)"),
    "at_min": ("x0.at[at(n, 3)].min(al(1, ''))",
               "x0.select_scatter(x0.select(n, 3).minimum(dropped(1)), n, 3)"),
    "at_max": ("x0.at[at(n, 3)].max(al(1, ''))",
               "x0.select_scatter(x0.select(n, 3).maximum(dropped(1)), n, 3)"),
}

LOOPS = {
    "fold": ("jax.lax.scan(lambda c, v: (jnp.sin(c) + v, None),"
             " jnp.ones(S['b'], x0.dtype), on(0, 'nb'))[0]", None),
    "scan": ("jax.lax.scan(lambda c, v: (c + v * v, c * v),"
             " jnp.ones(S['b'], x0.dtype), on(0, 'nb'))[1]", None),
    "checkpoint": ("jax.checkpoint(lambda v: jnp.sin(v) * v)(x0)", "torch.sin(x0) * x0"),
    "custom_vjp": "x0 * x0 * x0",
}

LAYERS = {
    "conv": "conv('t')",
    "conv with padding": "conv('t', padding=1)",
    "conv with a stride": "conv('t', stride=2, padding=1)",
    "conv with a stride and a dilation": (
        "conv('t', stride=3, padding=((1, 2),), dilation=2)",
        "conv('t', stride=3, padding=((1, 2),), dilation=2)"),
    "conv of adjacent windows": "conv('rs', stride=(2, 3))",
    "conv of one position": "conv('t', stride=2)",
    "conv over two axes, channels first": "conv('rs', padding=((1, 1), (0, 1)))",
    "conv over two axes, channels last": "conv('rs', stride=(2, 1), padding=1)",
    "conv over three axes": "conv('qrs')",
    "conv in groups": "conv('t', groups=2)",
    "conv of single channels": "conv('t', padding=1, groups=3)",
    "conv_transpose": "conv_transpose('t')",
    "conv_transpose with a stride": (
        "conv_transpose('rs', stride=(2, 3), padding=((1, 0), (0, 1)), extra=1)", None),
    "max_pool": ("pool(jax.lax.max, -jnp.inf, (1, 2, 3), (1, 2, 3))",
                 "F.max_pool2d(x0, (2, 3), (2, 3))"),
    "max_pool with padding": (
        "pool(jax.lax.max, -jnp.inf, (1, 2, 3), (1, 1, 1), ((0, 0), (1, 1), (1, 1)))",
        "F.max_pool2d(x0, (2, 3), 1, 1)"),
    "min_pool": ("pool(jax.lax.min, jnp.inf, (2, 1), (2, 1), ((0, 1), (0, 0)))",
                 "-F.max_pool2d(-x0[None], (2, 1), (2, 1), ceil_mode=True)[0]"),
    "mean_pool": ("pool(jax.lax.add, 0, (1, 2, 3), (1, 2, 2), ((0, 0), (0, 1), (0, 1)))"
                  " / pool(jax.lax.add, 0, (1, 2, 3), (1, 2, 2), ((0, 0), (0, 1), (0, 1)),"
                  " jnp.ones_like(x0))", "F.avg_pool2d(x0, (2, 3), 2, ceil_mode=True)"),
    "ragged_dot": ("jax.lax.ragged_dot(on(0, 'nd'), x1, x2)", "ragged(on(0, 'nd'), x1, x2)"),
    "ragged_dot of two axes": (
        "jax.lax.ragged_dot(on(0, 'nhd').reshape(S['n'], -1),"
        " on(1, 'ehdmk').reshape(S['e'], S['h'] * S['d'], -1), x2)", None),
}

# For each op, the expression of JAX and of PyTorch.
OPS = {name: spelling if isinstance(spelling, tuple) else (spelling, spelling)
       for part in (ELEMENTWISE, BINARY, CREATION, REDUCTIONS, SHAPES, INDEX, LOOPS, LAYERS)
       for name, spelling in part.items()}

CONSTANT = "has no input: jit computes the constant when it compiles"
RETURNED = "returns its argument"
CHUNKS = "the entry iterates over chunks of two positions, which times the loop alone"
RANGE = "JAX moves a slice that is out of range; this library reads and writes the part in range"
EXCEPTIONS = {
    **{name: CONSTANT for name in ("zeros", "ones", "arange", "one_hot of a number")},
    "linspace of a name": "the peers have no axes without a size",
    "sum over none": RETURNED,
    "positive": RETURNED,
    "rename": "changes names only",
    "ds out of range": RANGE,
    "at_set at a dynamic slice": RANGE,
    "chunked_reduce": CHUNKS,
    "chunked_reduce recomputed for its gradient": CHUNKS,
    "chunked_reduce that keeps the axis": CHUNKS,
}

# For an op, or for an op with a place of its axis: why a case is slower than a peer. The reasons
# come from profiles, bandwidths and the steps of the compiled programs.
UNKNOWN = "not examined"
MEMORY = "limited by memory"
ARITHMETIC = "limited by arithmetic, with errors of at most 2 ulp"
MATMUL = "limited by the kernel of matmuls"
CONV = "the copy of the padding, and rows that fill vectors in part"
SHORT_ROWS = "rows of 3 or 5 elements are read and written by permutations"
REASONS = {
    **dict.fromkeys(("isfinite", "isnan", "logical_and", "logical_xor", "max", "min", "prod",
                     "sum over all"), MEMORY),
    **dict.fromkeys(("cos", "erfinv", "log10", "sin", "tan"), ARITHMETIC),
    **dict.fromkeys(("conv of adjacent windows", "dot with itself", "einsum"), MATMUL),
    **dict.fromkeys(("conv over two axes, channels last", "conv with a stride"), CONV),
    **dict.fromkeys((("pad_left", "last"), ("split", "last")), SHORT_ROWS),
    "broadcast_arrays": "each of two sums reads the cotangent",
    "conv_transpose with a stride": "the phases of the stride are interleaved by copies",
    "max_pool with padding": "the padded array is stored between the maxima over two axes",
    "nonzero": "four steps: counts, positions, a scatter, and a division by the sizes of axes",
    ("repeat by counts", "last"): "a gather along the last axis",
    ("scan", "last"): "an iteration reads one element of each row",
    "take with a shared axis": "elements are added to a table at random positions",
    ("tril", "last"): "the last two axes are transposed",
    ("unbind", "last"): SHORT_ROWS + "; a part without a cotangent is cleared by a copy",
}
