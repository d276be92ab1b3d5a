"""The part of tools/compare that times every op (--all): runs the cases and saves their times."""
import collections
import json
import math
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

import ops_table

PEERS = ("torch", "jax")
TITLES = {"torch": "PyTorch", "jax": "JAX"}
SIZES = ("large", "middle", "tiny")
LONG = 0.5       # seconds; a library that is slower runs twice only
BEHIND = 3       # a library that needs this multiple of the shortest time runs twice only
PATIENCE = 60    # seconds until a peer counts as stuck; 10 times as long for this library
CLOSE = 1e-3     # relative difference of checksums
# The peers reuse freed memory, as this library does. Otherwise, page faults dominate the times of
# large results.
REUSE = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000",
         "MALLOC_TOP_PAD_": "268435456", "MALLOC_ARENA_MAX": "1"}


class Runner:
    """A process that runs many cases. It is paused while another one runs."""

    def __init__(self, name, command, patience=PATIENCE, errors=subprocess.DEVNULL):
        self.name, self.command, self.patience, self.errors = name, command, patience, errors
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, bufsize=0,
                                        env={**os.environ, **REUSE})
        self.buffer = b""

    def line(self):
        """Returns the next line of the output. Returns None if there is none in time."""
        end = time.monotonic() + self.patience
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], end - time.monotonic())
            more = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not more:
                return None
            self.buffer += more
        text, _, self.buffer = self.buffer.partition(b"\n")
        return text.decode()

    def answer(self):
        """Returns the next JSON object, and pauses the process. Ends a process that is stuck or
        has failed, and returns an empty object."""
        while (text := self.line()) is not None and not text.startswith("{"):
            pass
        if text is None:
            self.close()
            return {}
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(text)

    def request(self, text):
        if self.process is None:
            self.start()
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(text.encode() + b"\n")
        return self.answer()

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


def near(a, b):
    return all(math.isclose(x, y, rel_tol=CLOSE, abs_tol=CLOSE) or x != x and y != y
               for x, y in zip(a, b))


def time_case(o, case, ours, peers):
    """Runs one case in all processes in turn. Returns its row, with the shortest times."""
    row = {key: case[key] for key in ("op", "place", "size", "pass")}
    row |= {"case": case["ready"], "dtype": o.dtype, "missing": {}}
    row["shape"] = [array["axes"] for array in case["in"]]
    running = [ours]
    exception = ops_table.EXCEPTIONS.get(case["op"])
    if exception:
        row["missing"] = dict.fromkeys(PEERS, exception)
    for peer in () if exception else peers:
        reply = peer.request(json.dumps(case))
        if "ready" not in reply:
            row["missing"][peer.name] = reply.get("missing", "is stuck or has failed")
            continue
        if "checksum" in case and not near(case["checksum"], reply["checksum"]):
            row["missing"][peer.name] = f"differs: {reply['checksum']}, not {case['checksum']}"
            continue
        running.append(peer)
    times = collections.defaultdict(list)
    for k in range(o.runs):
        best = min((min(seconds) for seconds in times.values() if seconds), default=0)
        for runner in running:
            own = min(times[runner.name], default=0)
            if not runner.process or k >= 2 and own > min(LONG, BEHIND * best):
                continue
            reply = runner.request("run")
            if "seconds" in reply:
                times[runner.name].append(reply["seconds"])
    for name, seconds in times.items():
        if seconds:
            row[name] = float(f"{min(seconds):.4g}")
    return row


def ratio(row, names=PEERS):
    """Returns the time of the fastest peer over the time of this library."""
    times = [row[name] for name in names if name in row]
    return min(times) / row["ours"] if times and row.get("ours") else None


def load(file):
    """Returns the rows of the file. The shortest times of all rows of a case
    count."""
    rows = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        row = json.loads(line)
        key = row["case"], row["dtype"]
        before = rows.get(key, {})
        for name in ("ours", *PEERS):
            times = [r[name] for r in (before, row) if name in r]
            if times and before.get("shape") == row["shape"]:
                row[name] = min(times)
        rows[key] = row
    return rows


def report(rows, count):
    """Prints the rows with the lowest ratios, and the rows that have no peer."""
    measured = sorted((r for r in rows if ratio(r)), key=ratio)
    print("best peer / ours   ours         PyTorch      JAX          dtype  case")
    for row in measured[:count]:
        times = " ".join(f"{row[name] * 1e6:9.1f} us" if name in row else f"{'-':>12}"
                         for name in ("ours", *PEERS))
        shape = " ".join("".join(f"{a}{n}" for a, n in axes) for axes in row["shape"])
        print(f"{ratio(row):16.3f} {times}  {row['dtype']:<5}  {row['case']}   {shape}")
    for row in rows:
        for name, reason in row["missing"].items():
            if "lacks the op" not in reason and row["op"] not in ops_table.EXCEPTIONS:
                print(f"{TITLES[name]} has no {row['case']}, {row['dtype']}: {reason}",
                      file=sys.stderr)


def pattern(o):
    """Returns the regular expression of the cases to time."""
    if o.below is None:
        return "|".join(o.case) or "."
    names = [row["case"] for row in load(o.rows).values()
             if (ratio(row) or math.inf) < o.below and row["dtype"] == o.dtype
             and row["size"] in o.size and re.search("|".join(o.case) or ".", row["case"])]
    return "^(" + "|".join(sorted(names)) + ")$"


def run(o):
    """Times the cases of --all that match, appends their rows to the file, and prints the worst."""
    here = pathlib.Path(__file__).resolve().parent / "ops.py"
    bench = [str(o.bench), "--all", "--serve", "--case", pattern(o), "--dtype", o.dtype,
             "--threads", str(o.threads), "--size", ",".join(o.size)]
    peers = [Runner(name, [o.python, str(here), name, str(o.threads)]) for name in PEERS]
    ours, rows = Runner("ours", bench, 10 * PATIENCE, None), []
    try:
        ours.start()
        case = ours.answer()
        with o.rows.open("a") as kept:
            while "ready" in case:
                rows.append(time_case(o, case, ours, peers))
                kept.write(json.dumps(rows[-1]) + "\n")
                kept.flush()
                if not ours.process or not ours.request("done"):
                    sys.exit(f"compare: bench ended in {case['ready']}")
                ours.process.send_signal(signal.SIGCONT)
                case = ours.answer()
    finally:
        for runner in (ours, *peers):
            runner.close()
    report(rows, o.worst)
