"""Checks the direction of includes: a file may include files of its own layer and of the layers
below it. Only backends and tests include backends."""
import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# From the lowest layer to the highest. The folders of TOP are above all of them.
LAYERS = ["include/haliax", "src/base", "src/program", "src/graph", "src/ops", "src/transforms",
          "src/nn", "src/compile/analysis", "src/compile/memory", "src/compile/loops",
          "src/compile/lower", "src/compile/sharding", "src/compile/chunk", "src/compile",
          "src/devices", "src/io", "src/runtime", "src/report"]
# Neither of these two layers may include the other.
SEPARATE = {"src/compile/sharding", "src/compile/chunk"}
TOP = ["examples", "bench", "tools", "tests"]
OP_ENTRIES = "tests/ops/ops_entries.h"   # `bench --all` times the entries of the tests
BACKEND_INCLUDES = ["include/haliax", "src/base", "src/program"]
# Folders of backends/cuda, and those that each may include in addition to itself. "": the headers
# at the top. The sources at the top may include all.
CUDA = {"device": [], "kernels": [], "": ["kernels"], "nvidia": ["", "kernels"],
        "engine": ["", "kernels"], "sim": ["", "kernels", "engine"]}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(haliax/[^>]+)>)')


def layer_of(path):
    return next((layer for layer in LAYERS + TOP + ["backends"] if path.startswith(layer + "/")),
                None)


def target_of(root, file, name):
    """Returns the path of an included file: next to the including file, in include/, in src/ or in
    the root. Returns None for files of other projects."""
    for folder in (file.parent, root / "include", root / "src", root):
        if (folder / name).is_file():
            return (folder / name).resolve().relative_to(root).as_posix()
    # A header that does not exist yet still has a layer.
    for prefix in ("include/", "src/", ""):
        if layer_of(prefix + name):
            return prefix + name
    return None


def allowed_in_cuda(source, target):
    folders = [re.fullmatch(r"backends/cuda/(?:(\w+)/)?[^/]+", path) for path in (source, target)]
    if not all(folders):
        return True
    mine, other = (match[1] or "" for match in folders)
    return mine == other or other in CUDA[mine] or (not mine and source.endswith(".cpp"))


def allowed(here, there, source, target):
    if here == "backends":   # a backend may also include files of its own folder
        same = source.split("/")[:2] == target.split("/")[:2]
        return there in BACKEND_INCLUDES or (there == "backends" and same
                                             and allowed_in_cuda(source, target))
    if here == "bench" and target == OP_ENTRIES:
        return True
    if here in TOP:
        return (there in LAYERS or there in (here, "examples")
                or (here == "tests" and there == "backends"))
    if here != there and {here, there} == SEPARATE:
        return False
    return there in LAYERS and LAYERS.index(there) <= LAYERS.index(here)


def violations(root):
    root = root.resolve()
    found = []
    folders = [root / folder for folder in ("include", "src", "backends", *TOP)]
    for file in sorted(f for d in folders for f in d.rglob("*")
                       if f.suffix in {".h", ".cpp", ".cu", ".inc"}):
        source = file.relative_to(root).as_posix()
        here = layer_of(source)
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            target = match and target_of(root, file, match[1] or match[2])
            there = target and layer_of(target)
            if here and there and not allowed(here, there, source, target):
                found.append(f"{source}:{number}: {here} must not include {target}")
    return found


class Layers(unittest.TestCase):
    def test_layers_of_this_repository(self):
        self.assertEqual("\n".join(violations(ROOT)), "")

    def test_every_source_is_in_a_layer(self):
        stray = [f.relative_to(ROOT).as_posix() for f in (ROOT / "src").rglob("*.*")
                 if f.suffix in {".h", ".cpp"} and not layer_of(f.relative_to(ROOT).as_posix())]
        self.assertFalse(stray)

    def check(self, source, include, expected):
        """Checks whether the include is reported, in a tree with only this source."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("include/haliax/axis.h", "src/base/name.h", "src/program/program.h",
                         "src/graph/node.h", "src/transforms/grad.h", "backends/cpu/step.h",
                         "backends/reference/run.h"):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).touch()
            (root / source).parent.mkdir(parents=True, exist_ok=True)
            (root / source).write_text(f"// text\n#include {include}\n")
            self.assertEqual(bool(violations(root)), expected, f"{source} includes {include}")

    def test_upward_includes_are_reported(self):
        self.check("src/graph/node.cpp", '"transforms/grad.h"', True)
        self.check("src/graph/node.cpp", '"../transforms/grad.h"', True)
        self.check("src/base/name.cpp", '"graph/missing.h"', True)
        self.check("include/haliax/array.h", '"graph/node.h"', True)
        self.check("src/program/plan.cpp", '"graph/node.h"', True)
        self.check("src/runtime/jit.cpp", '"backends/cpu/step.h"', True)
        self.check("src/nn/layers.cpp", '"compile/pipeline.h"', True)
        self.check("src/compile/loops/merge.cpp", '"compile/lower/fuse.h"', True)
        self.check("src/compile/chunk/search.cpp", '"compile/pipeline.h"', True)
        self.check("src/compile/chunk/search.cpp", '"compile/sharding/planner.h"', True)
        self.check("src/compile/sharding/planner.cpp", '"compile/chunk/region.h"', True)

    def test_downward_includes_are_not_reported(self):
        self.check("src/transforms/grad.cpp", '"graph/node.h"', False)
        self.check("src/graph/node.cpp", '"node.h"', False)
        self.check("src/base/name.cpp", "<haliax/axis.h>", False)
        self.check("src/base/name.cpp", "<vector>", False)
        self.check("src/compile/pipeline.cpp", '"compile/chunk/search.h"', False)
        self.check("src/compile/chunk/search.cpp", '"compile/lower/lower.h"', False)
        self.check("tests/ops/a_test.cpp", '"transforms/grad.h"', False)

    def test_programs_may_include_any_layer(self):
        self.check("tests/ops/a_test.cpp", '"examples/models/gpt2.h"', False)
        self.check("bench/a.cpp", '"examples/models/gpt2.h"', False)
        self.check("bench/a.cpp", '"backends/cpu/step.h"', True)
        self.check("examples/gpt2/main.cpp", '"tests/ops/ops_entries.h"', True)
        self.check("bench/all_ops.cpp", '"tests/ops/ops_entries.h"', False)
        self.check("bench/all_ops.cpp", '"tests/support/near.h"', True)
        self.check("src/runtime/jit.cpp", '"examples/models/gpt2.h"', True)

    def test_a_backend_may_include_only_base_and_program(self):
        self.check("backends/cpu/step.cpp", '"graph/node.h"', True)
        self.check("backends/cpu/step.cpp", '"backends/reference/run.h"', True)
        self.check("backends/cpu/step.cpp", '"step.h"', False)
        self.check("backends/cpu/step.cpp", '"program/program.h"', False)
        self.check("backends/cpu/step.cpp", '"haliax/axis.h"', False)

    def test_folders_of_cuda_include_in_one_direction(self):
        self.check("backends/cuda/engine/device.cpp", '"backends/cuda/kernels/nest.h"', False)
        self.check("backends/cuda/engine/device.cpp", '"backends/cuda/api.h"', False)
        self.check("backends/cuda/plugin.cpp", '"backends/cuda/engine/engine.h"', False)
        self.check("backends/cuda/api.h", '"backends/cuda/engine/engine.h"', True)
        self.check("backends/cuda/engine/device.cpp", '"backends/cuda/nvidia/nvrtc.h"', True)
        self.check("backends/cuda/kernels/nest.cpp", '"backends/cuda/api.h"', True)
        self.check("backends/cuda/kernels/nest.cpp", '"backends/cuda/engine/engine.h"', True)


if __name__ == "__main__":
    unittest.main()
