"""Rules of the code that a script can check."""
import configparser
import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".cpp", ".cu", ".inc"}
HEAVY = re.compile(r"#\s*include\s*<(Eigen|dnnl|oneapi|fmt|nlohmann|cuda|iostream|functional|map|"
                   r"unordered_map|regex)\b")
TYPE = re.compile(r"\s*(?:template <.*?> ?)?"
                  r"(?:(?:struct|class|union|concept|enum(?: class)?) (?:\w+::)*(\w+)(?:<[^;{]*>)?"
                  r"(?: final)?(?= :(?!:)| ?\{| =|$)|using (\w\w+) = (.*?);)")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|stub|not implemented)\b")


def files(*folders, suffixes=CODE):
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*")
                  if f.suffix in suffixes and f.is_file())


def lines(*folders, suffixes=CODE):
    """Yields (file:line, text) for every line of the files in the folders."""
    for file in files(*folders, suffixes=suffixes):
        for number, text in enumerate(file.read_text(errors="replace").splitlines(), 1):
            yield f"{file.relative_to(ROOT)}:{number}", text


def twice(code):
    """Returns the names of types that two places define, with the places.

    `code` holds (file:line, text). An alias may repeat itself, or import a name of another
    namespace.
    """
    known = {}
    for at, text in code:
        found = TYPE.match(text)
        if found and not (found[2] and re.search(rf"\b{found[2]}$", found[3])):
            known.setdefault(found[1] or found[2], []).append((at, found[3]))
    return {name: [at for at, _ in all] for name, all in known.items()
            if len(all) > 1 and (all[0][1] is None or len({said for _, said in all}) > 1)}


def class_sizes(code):
    """Returns the lines of each class with its methods, by name and by where it is defined.

    `code` holds (file, text). A class of a header is identified by its folder, one of a .cpp file
    by its file. The methods of the former may be in any file of the folder, or, if it is nested,
    of any folder.
    """
    begins = re.compile(r"^( *)(?:template <.*> )?(?:struct|class) (\w[\w:]*)[^;]*\{$")
    method = re.compile(r"^(?![\s#/}]).*?\b((?:\w+::)*\w+)(?:<\w+>)?::~?\w+\(")
    code = [(file, text.splitlines()) for file, text in code]
    sizes = {}
    for file, text in code:
        open_at = []
        for number, line in enumerate(text):
            if match := begins.match(line):
                open_at.append((match[1] + "};", match[2], number))
            elif open_at and line == open_at[-1][0]:
                _, name, first = open_at.pop()
                key = name, file if file.suffix == ".cpp" else file.parent
                sizes[key] = sizes.get(key, 0) + number + 1 - first
    for file, text in code:
        key = None
        for number, line in enumerate(text):
            if key is None and (match := method.match(line)):
                name = match[1]
                here = [(name, file), (name, file.parent)]
                nested = [k for k in sizes if k[0] == name] if "::" in name else []
                key = next((k for k in here + nested if k in sizes), None)
                first = number
            if key and (line == "}" or line.endswith("}") and number == first
                        or line.endswith(";") and not line.startswith(" ")):
                sizes[key] += number + 1 - first
                key = None
    return sizes


class House(unittest.TestCase):
    maxDiff = None

    def none(self, found):
        found = "\n".join(map(str, found))
        self.assertEqual(found, "")

    def test_files_have_at_most_800_lines(self):
        folders = ("include", "src", "backends", "tests", "examples", "bench", "tools")
        self.none(f for f in files(*folders, suffixes=CODE | {".py"})
                  if len(f.read_text().splitlines()) > 800)

    def test_lines_have_at_most_100_columns(self):
        folders = ("include", "src", "backends", "tests", "examples", "bench", "tools")
        # Tests of pages quote lines of output as the pages show them.
        self.none(at for at, text in lines(*folders)
                  if len(text) > 100 and not at.startswith("tests/docs/"))

    def test_the_reference_backend_has_at_most_700_lines(self):
        total = sum(len(f.read_text().splitlines()) for f in files("backends/reference"))
        self.assertLessEqual(total, 700)

    # Except variables that mpirun and srun set.
    def test_environment_variables_start_with_the_name_of_the_library(self):
        reads = r'\b(getenv|env_integer|env_flag|fail_env|checks)\((?!const char|variable\b)'
        named = reads + '"(HALIAX|OMPI_COMM_WORLD(_LOCAL)?|PMI|PMIX|SLURM)_[A-Z]+"'
        self.none(at for at, text in lines("include", "src", "backends")
                  if re.search(reads, text) and not re.search(named, text))

    def test_public_headers_include_nothing_heavy(self):
        self.none(at for at, text in lines("include") if HEAVY.match(text.lstrip())
                  and not at.startswith(("include/haliax/fmt.h", "include/haliax/eigen.h")))

    def test_the_umbrella_header_does_not_include_fmt_and_eigen(self):
        text = (ROOT / "include/haliax/haliax.h").read_text()
        self.assertNotRegex(text, r"#include \"haliax/(fmt|eigen)\.h\"")

    def test_public_headers_export_what_they_declare(self):
        opens = 'namespace [[gnu::visibility("default")]] haliax {'
        self.none(f for f in files("include") if f.name not in ("haliax.h", "fmt.h")
                  and opens not in f.read_text())
        self.none(at for at, text in lines("include")
                  if re.match(r"namespace haliax(::\w+)? \{\s*[^c\s]", text) and "fmt.h" not in at)

    def test_passes_use_rules_and_never_compare_ops(self):
        # Allowed: structural ops (leaves, loops, region boundaries, casts, axis changes), and the
        # op that a pass writes for `lower`. Analyses recognize ops, and two passes rewrite
        # formulas.
        graph = ("Loop|Result|Collective|CustomVjp|Enter|Leave|Between|Barrier|ShardingConstraint|"
                 "Tracer|Input|Data|Number|Iota|Index|Carry|Cast|Stop|Fit|Place|"
                 "MaskedMatmul")
        named = re.compile(rf"&(prim::)?k(?!({graph})\b)[A-Z]\w+|op->name ==")
        # Allowed functions that recognize ops: numbers and top-k.
        formulas = {"is_number", "is_top_k", "picks_top_k", "picks_in_order",
                    "sends_least_blockwise"}
        asked = re.compile(r"prim::((?:is|picks|sends)_\w+)\(")
        allowed = ("src/compile/analysis/", "src/compile/lower/softmax_matmuls.cpp",
                   "src/compile/chunk/defer_normalization.cpp")
        folders = ["compile", "devices", "graph", "io", "nn", "report", "runtime", "transforms"]
        code = [(at, text) for folder in folders for at, text in lines(f"src/{folder}")
                if not at.startswith(allowed)]
        self.none(at for at, text in code
                  if named.search(text) or set(asked.findall(text)) - formulas)
        # Only the verifier, and the rules of graph that follow from a code, read op codes.
        computes = re.compile(r"op->code\s*[!=]=|switch \(\w+(->|\.)op->code\)|"
                              r"(string_view|strcmp)\(.*op->name\b")
        by_code = ("src/compile/verify.cpp", "src/graph/node.cpp", "src/graph/loop.cpp")
        self.none(at for at, text in code
                  if computes.search(text) and not at.startswith(by_code))

    def test_only_one_rewrite_reads_the_backward_flag(self):
        reads = re.compile(r"origin\.backward\b(?! = )")
        # Sets the flag, reports it, or caches graphs by it.
        allowed = ("src/graph/node.cpp", "src/transforms/vjp.cpp", "src/transforms/scores.cpp",
                   "src/runtime/eval_cache.cpp", "src/compile/sharding/report/",
                   "src/compile/analysis/modules.cpp", "src/compile/analysis/purpose.cpp",
                   "src/compile/chunk/search.cpp")
        rewrites = {at.partition(":")[0] for at, text in lines("src")
                    if reads.search(text) and not at.startswith(allowed)}
        self.assertEqual(rewrites, {"src/compile/chunk/defer_normalization.cpp"})

    def test_passes_do_not_read_the_context_of_a_trace(self):
        # The environment is read at the line of the call.
        self.none(at for at, text in lines("src/compile") if "context()" in text
                  and not at.startswith("src/compile/debug_options.cpp"))

    def test_the_name_of_a_backend_decides_nothing(self):
        name = r'"(cpu|cuda|reference|cuda-sim)"'
        compares = re.compile(rf"[!=]= {name}|{name} [!=]=")
        self.none(at for at, text in lines("src", "backends", "include") if compares.search(text))

    def test_functions_have_at_most_100_lines(self):
        other = r"(?:template <.*> )?(?:namespace|struct|class|enum|union)|//|\s"
        begins = re.compile(rf"^( {{0,4}})(?!{other}).*[)\w] \{{$")
        for f in files("src", "backends"):
            open_at = {}
            for number, text in enumerate(f.read_text().splitlines(), 1):
                if match := begins.match(text):
                    open_at[match[1]] = number
                if match := re.match(r"^( {0,4})\}", text):
                    first = open_at.pop(match[1], number)
                    self.assertLessEqual(number - first, 100, f"{f}:{first}")

    def test_five_classes_have_more_than_300_lines(self):
        sizes = class_sizes((f, f.read_text()) for f in files("src", "backends"))
        large = {name for (name, _), size in sizes.items() if size > 300}
        self.assertEqual(large, {"NestCode", "VectorOps",      # one method for each op
                                 "Lowering", "RegionMembers",
                                 "Machine"})                   # the simulated one

    def test_methods_outside_of_a_class_count_for_it(self):
        declared = "struct A {\n  void f();\n};\n"
        method = "void A::f() {\n  g();\n}\n"
        folder = ROOT / "src" / "graph"
        here, there = folder / "a.h", folder / "a.cpp"
        self.assertEqual(class_sizes([(here, declared), (there, method)]), {("A", folder): 6})
        # A class of another file with the same name.
        other = folder / "b.cpp"
        self.assertEqual(class_sizes([(here, declared), (other, declared + method)]),
                         {("A", folder): 3, ("A", other): 6})
        nested = declared.replace("A", "A::B"), method.replace("A", "A::B")
        elsewhere = ROOT / "src" / "ops" / "c.cpp"
        self.assertEqual(class_sizes([(here, nested[0]), (elsewhere, nested[1])]),
                         {("A::B", folder): 6})

    def test_attributes_are_read_through_their_types(self):
        types = ("src/ops/attr.h", "src/graph/loop.h", "src/compile/lower/masked_matmuls.h")
        # these copy or print attributes of any type
        all_of_it = ("src/graph/print.cpp", "src/graph/node.cpp", "src/runtime/eval_cache.cpp")
        raw = re.compile(r"\battr\.(ints|names|number)\b|\b(key|region)_?(\.|->)(ints|names)\b")
        self.none(at for at, text in lines("src")
                  if raw.search(text) and not at.startswith(types + all_of_it))

    def test_a_type_name_is_defined_once(self):
        # Allowed: nested names such as ReshardStep::Kind, and Loop, of a graph and of a Program.
        told = {"Kind", "Impl", "Loop"}
        local = "src/devices/reduce.cpp"   # how elements of each dtype are stored
        found = twice((at, text) for at, text in lines("src") if not at.startswith(local))
        self.none(f"{name}: {', '.join(places)}" for name, places in found.items()
                  if name not in told)

    def test_repeated_type_names_are_detected(self):
        one = (("struct Run {", "class Run final : public Base {"),
               ("struct Planner::Run {", "  enum class Run : char { no };"),
               ("template <class T> struct Run {", "using Run = std::vector<int>;"),
               ("using Run = A;", "using Run = B;"),
               ("template <class T> concept Run = true;", "struct Run { int a; };"))
        other = (("struct Run {", "struct Run;"), ("struct Run {", "using Run = program::Run;"),
                 ("using Run = A;", "using Run = A;"), ("struct Run {", "// struct Run {"),
                 ("struct Run {", "struct Runs {"), ("class Run : Base {", "class Run* run = x;"))
        for first, second in one:
            found = twice([("a", first), ("b", second)])
            self.assertEqual(found, {"Run": ["a", "b"]}, first + second)
        for first, second in other:
            self.assertEqual(twice([("a", first), ("b", second)]), {}, first + second)

    def test_headers_have_pragma_once(self):
        self.none(f for f in files("include", "src", "backends", suffixes={".h"})
                  if "#pragma once" not in f.read_text())

    def test_no_code_is_marked_as_unfinished(self):
        self.none(at for at, text in lines("include", "src", "backends", "examples")
                  if UNFINISHED.search(text))

    def test_doctest_is_implemented_in_one_file(self):
        macro = "DOCTEST_CONFIG_" + "IMPLEMENT"
        self.assertEqual([f.name for f in files("tests") if macro in f.read_text()], ["main.cpp"])

    def test_test_cases_are_in_files_that_the_runner_finds(self):
        self.none(f for f in files("tests")
                  if re.search(r"^\s*TEST_CASE", f.read_text(), re.MULTILINE)
                  and not (f.name.endswith("_test.cpp") and f.parent.parent.name == "tests"))

    def test_every_directory_of_tests_is_built(self):
        text = (ROOT / "tests/meson.build").read_text()
        listed = re.search(r"^test_directories = \[(.*?)\]$", text, re.M | re.S)[1]
        folders = {f.parent.name for f in files("tests") if f.name.endswith("_test.cpp")}
        self.assertEqual(set(re.findall(r"'(\w+)'", listed)), folders)

    def test_tools_are_executable(self):
        for name in ("tools/setup", "tools/build", "tools/install", "tools/test", "tools/demo",
                     "tools/compiler_dumps", ".ci/run"):
            self.assertTrue(os.access(ROOT / name, os.X_OK), name)

    def test_wraps_pin_a_version(self):
        for name in ("eigen", "onednn", "fmt", "doctest", "nlohmann_json", "cli11", "zlib", "pcre2",
                     "utf8proc"):
            wrap = configparser.ConfigParser(interpolation=None)
            wrap.read(ROOT / f"subprojects/{name}.wrap")
            kind = wrap.sections()[0]
            self.assertIn(kind, ("wrap-file", "wrap-git"), name)
            self.assertIn("source_hash" if kind == "wrap-file" else "revision", wrap[kind], name)
            folder = wrap[kind].get("patch_directory")
            files_of_wrap = ROOT / "subprojects/packagefiles" / (folder or "")
            self.assertTrue(folder is None or (files_of_wrap / "meson.build").is_file(), name)


if __name__ == "__main__":
    unittest.main()
