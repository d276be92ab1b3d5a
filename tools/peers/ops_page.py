"""Writes docs/benchmarks/ops.md from the rows of `tools/compare --all`, with the text of
ops_page.md."""
import datetime
import json
import math
import os
import pathlib
import subprocess

import compare_ops
import ops_table
from compare_ops import PEERS, SIZES, ratio

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEMPLATE = ROOT / "tools/peers/ops_page.md"
PAGE = ROOT / "docs/benchmarks/ops.md"
PICTURE = ROOT / "docs/images/data/ops.json"

COLUMNS = [("f32", "large", "forward"), ("f32", "large", "gradient"), ("f32", "middle", "forward"),
           ("f32", "middle", "gradient"), ("f32", "tiny", "forward"), ("f32", "tiny", "gradient"),
           ("bf16", "large", "forward"), ("bf16", "large", "gradient"),
           ("bf16", "middle", "forward"), ("bf16", "middle", "gradient")]


def number(value):
    digits = 3 if value < 0.1 else 2 if value < 10 else 0
    return f"{value:.{digits}f}"


def duration(row, name):
    if name not in row:
        return ""
    factor, unit = (1, "s") if row[name] >= 1 else (1e3, "ms") if row[name] >= 1e-3 else (1e6, "us")
    return f"{row[name] * factor:.3g} {unit}"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def reason(row):
    """Returns why a case is slower than a peer."""
    of_op = ops_table.REASONS.get(row["op"], ops_table.UNKNOWN)
    return ops_table.REASONS.get((row["op"], row["place"]), of_op)


def summary(rows):
    """Returns one line for each dtype and size: the distribution of the ratios."""
    out = []
    for dtype in ("f32", "bf16"):
        for size in SIZES:
            part = [ratio(r) for r in rows if (r["dtype"], r["size"]) == (dtype, size) and ratio(r)]
            if part:
                mean = math.exp(sum(map(math.log, part)) / len(part))
                shares = [f"{sum(map(f, part)) / len(part):.0%}"
                          for f in (lambda r: r >= 1, lambda r: r >= 0.8, lambda r: r < 0.5)]
                out.append([size, dtype, len(part), f"{mean:.2f}", *shares])
    return out


def columns_of(rows):
    """Returns the columns that have a case."""
    have = {(row["dtype"], row["size"], row["pass"]) for row in rows}
    return [column for column in COLUMNS if column in have]


def by_op(rows):
    """Returns one line for each op: for each column, the lowest ratio of all places of the axis."""
    names = dict.fromkeys(row["op"] for row in rows if row["op"] not in ops_table.EXCEPTIONS)
    out = []
    for name in names:
        cells = []
        for column in columns_of(rows):
            part = [r for r in rows if r["op"] == name
                    and (r["dtype"], r["size"], r["pass"]) == column]
            ratios = [ratio(r) for r in part if ratio(r)]
            cells.append(number(min(ratios)) if ratios else "no peer" if part else "")
        out.append([name, *cells])
    return out


def lacking(rows, peer, place):
    """Returns the ops that a peer lacks: it has no expression, or raises in all cases."""
    names = {row["op"] for row in rows} - set(ops_table.EXCEPTIONS)
    have = {row["op"] for row in rows if peer in row}
    without = {name for name, spelling in ops_table.OPS.items() if spelling[place] is None}
    return ", ".join(f"`{name}`" for name in sorted(without | names - have))


def machine():
    """Returns the model and the number of cores of this machine."""
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo")
             if line.startswith("model name")]
    return f"{model[0] if model else 'unknown processor'}, {os.cpu_count()} cores"


def versions(python):
    code = ("import importlib.metadata as m; "
            "print('PyTorch', m.version('torch').split('+')[0] + ', JAX', m.version('jax'))")
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def write_page(o):
    """Prints the lowest ratios of the file, and writes the page and the data of its picture."""
    rows = list(compare_ops.load(o.rows).values())
    compare_ops.report(rows, o.worst)
    measured = sorted((r for r in rows if ratio(r)), key=ratio)
    large = [r for r in measured if r["size"] != "tiny"]
    worst = [r for r in large if ratio(r) < 0.95]
    lines = [[f"`{r['op']}`", r["place"], r["size"], r["dtype"], r["pass"],
              *(duration(r, name) for name in ("ours", *PEERS)), number(ratio(r)),
              reason(r)] for r in worst]
    heads = [f"{size} {dtype}, {word}" for dtype, size, word in columns_of(rows)]
    PAGE.write_text(TEMPLATE.read_text().format(
        date=datetime.date.today().isoformat(), machine=machine(), versions=versions(o.python),
        count=len(worst), all=len(large), near=sum(ratio(r) >= 0.9 for r in worst),
        summary=table(["size", "dtype", "cases", "geometric mean", "at least 1", "at least 0.8",
                       "below 0.5"], summary(rows)),
        worst=table(["op", "axis", "size", "dtype", "pass", "this library", "PyTorch", "JAX",
                     "ratio", "reason"], lines),
        ops=table(["op", *heads], [[f"`{name}`", *cells] for name, *cells in by_op(rows)]),
        torch=lacking(rows, "torch", 1), jax=lacking(rows, "jax", 0),
        exceptions=table(["entry", "reason"], [[f"`{name}`", reason] for name, reason in
                                               ops_table.EXCEPTIONS.items()])))
    curves = {}
    for dtype in ("f32", "bf16"):
        for size in SIZES:
            part = [round(ratio(r), 3) for r in measured
                    if (r["dtype"], r["size"]) == (dtype, size)]
            step = max(1, len(part) // 100)
            if part:
                curves[f"{size}, {dtype}"] = part[::step]
    PICTURE.write_text(json.dumps({"ratios": curves}) + "\n")
