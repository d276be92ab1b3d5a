"""House rules that a machine can check."""
import configparser
import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".h", ".cpp", ".cu", ".inc"}
HEAVY = re.compile(r"#\s*include\s*<(Eigen|dnnl|oneapi|fmt|nlohmann|cuda|iostream|functional|map|unordered_map|regex)\b")
TYPE = re.compile(r"\s*(?:template <.*?> ?)?(?:(?:struct|class|union|concept|enum(?: class)?) (?:\w+::)*(\w+)(?:<[^;{]*>)?"
                  r"(?: final)?(?= :(?!:)| ?\{| =|$)|using (\w\w+) = (.*?);)")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|stub|not implemented)\b")


def files(*folders, suffixes=CODE):
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*") if f.suffix in suffixes and f.is_file())


def lines(*folders, suffixes=CODE):
    """(file:line, text) of every line of the folders' files."""
    for file in files(*folders, suffixes=suffixes):
        for number, text in enumerate(file.read_text(errors="replace").splitlines(), 1):
            yield f"{file.relative_to(ROOT)}:{number}", text


def twice(code):
    """Names of types that two places of (file:line, text) define. An alias may lend one, or say the same twice."""
    known = {}
    for at, text in code:
        found = TYPE.match(text)
        if found and not (found[2] and re.search(rf"\b{found[2]}$", found[3])):
            known.setdefault(found[1] or found[2], []).append((at, found[3]))
    return {name: [at for at, _ in all] for name, all in known.items()
            if len(all) > 1 and (all[0][1] is None or len({said for _, said in all}) > 1)}


class House(unittest.TestCase):
    maxDiff = None

    def none(self, found):
        found = "\n".join(map(str, found))
        self.assertEqual(found, "")

    def test_no_file_is_over_800_lines(self):
        folders = ("include", "src", "backends", "tests", "examples", "bench", "tools")
        self.none(f for f in files(*folders, suffixes=CODE | {".py"}) if len(f.read_text().splitlines()) > 800)

    def test_no_line_of_the_library_is_over_130_columns(self):
        self.none(at for at, text in lines("include", "src") if len(text) > 130)

    def test_the_reference_backend_stays_under_500_lines(self):
        total = sum(len(f.read_text().splitlines()) for f in files("backends/reference"))
        self.assertLess(total, 500)

    def test_variables_of_the_environment_bear_the_name_of_the_library(self):   # but for what mpirun and srun say
        reads = r'\b(getenv|number_asked|flag_asked|refuse_asked|checks)\((?!const char|variable\b)'
        self.none(where for where, text in lines("include", "src", "backends")
                  if re.search(reads, text) and not re.search(reads + '"(HALIAX|OMPI_COMM_WORLD(_LOCAL)?|PMI|PMIX|SLURM)_[A-Z]+"', text))

    def test_public_headers_include_nothing_heavy(self):
        self.none(at for at, text in lines("include") if HEAVY.match(text.lstrip())
                  and not at.startswith(("include/haliax/fmt.h", "include/haliax/eigen.h")))

    def test_the_umbrella_header_leaves_out_fmt_and_eigen(self):
        text = (ROOT / "include/haliax/haliax.h").read_text()
        self.assertNotRegex(text, r"#include \"haliax/(fmt|eigen)\.h\"")

    def test_public_headers_export_what_they_declare(self):
        opens = 'namespace [[gnu::visibility("default")]] haliax {'
        self.none(f for f in files("include") if f.name != "haliax.h" and f.name != "fmt.h" and opens not in f.read_text())
        self.none(at for at, text in lines("include") if re.match(r"namespace haliax(::\w+)? \{\s*[^c\s]", text)
                  and "fmt.h" not in at)

    def test_passes_ask_rules_and_compare_no_ops(self):
        # But those that the graph itself is made of: leaves, loops, borders and the like, and casts. Two passes rewrite formulas.
        graph = "Loop|Result|Collective|CustomVjp|Enter|Leave|Between|Barrier|Pin|Tracer|Input|Number|Iota|Index|Carry|Cast"
        named = re.compile(rf"&(prim::)?k(?!({graph})\b)[A-Z]\w+|->name ==|\bname == \"")
        # Nor by a function beside the ops, but for numbers and two formulas: the first few of an order, and exp(x - max x).
        formulas = {"is_number", "is_top_k", "picks_top_k", "picks_in_order", "tells_little", "shifted_exp"}
        asked = re.compile(r"prim::((?:is|picks|tells|shifted)_\w+)\(")
        rewriting = ("src/compile/lower/softmax_products.cpp", "src/compile/chunk/late_rows.cpp")
        code = [(at, text) for at, text in lines("src/compile") if not at.startswith(rewriting)]
        self.none(at for at, text in code if named.search(text) or set(asked.findall(text)) - formulas)
        # Nor by what it computes, but for the verifier, which knows what dtypes that takes; nor by its name as a text.
        computes = re.compile(r"op->code\s*[!=]=|switch \(\w+(->|\.)op->code\)|(string_view|strcmp)\(.*->name\b")
        self.none(at for at, text in code if computes.search(text) and not at.startswith("src/compile/verify.cpp"))

    def test_files_and_functions_are_short(self):
        self.none(f for f in files("src/compile") if len(f.read_text().splitlines()) > 600)
        begins = re.compile(r"^( {0,4})(?!namespace|struct|class|enum|union|\s).*[)\w] \{$")
        for f in files("src"):
            open_at = {}
            for number, text in enumerate(f.read_text().splitlines(), 1):
                if match := begins.match(text):
                    open_at[match[1]] = number
                if match := re.match(r"^( {0,4})\}", text):
                    first = open_at.pop(match[1], number)
                    self.assertLessEqual(number - first, 80, f"{f}:{first}")

    def test_what_ops_say_beside_their_operands_is_read_by_its_type(self):
        types = ("src/ops/attr.h", "src/graph/loop.h", "src/compile/lower/masked.h")
        all_of_it = ("src/graph/print.cpp", "src/graph/node.cpp", "src/runtime/eval_cache.cpp")   # whatever it says
        raw = re.compile(r"\battr\.(ints|names|number)\b|\b(key|region)_?(\.|->)(ints|names)\b")
        self.none(at for at, text in lines("src") if raw.search(text) and not at.startswith(types + all_of_it))

    def test_a_name_of_a_type_means_one_thing(self):
        # But what is said with its owner, as in Hop::Kind; and a loop, which a step is where a node was one.
        told = {"Kind", "Impl", "Loop"}
        local = "src/devices/reduce.cpp"   # how elements of each dtype are stored
        found = twice((at, text) for at, text in lines("src") if not at.startswith(local))
        self.none(f"{name}: {', '.join(places)}" for name, places in found.items() if name not in told)

    def test_types_of_one_name_are_found(self):
        one = (("struct Run {", "class Run final : public Base {"), ("struct Planner::Run {", "  enum class Run : char { no };"),
               ("template <class T> struct Run {", "using Run = std::vector<int>;"), ("using Run = A;", "using Run = B;"),
               ("template <class T> concept Run = true;", "struct Run { int a; };"))
        other = (("struct Run {", "struct Run;"), ("struct Run {", "using Run = program::Run;"), ("using Run = A;", "using Run = A;"),
                 ("struct Run {", "// struct Run {"), ("struct Run {", "struct Runs {"), ("class Run : Base {", "class Run* run = x;"))
        for first, second in one:
            self.assertEqual(twice([("a", first), ("b", second)]), {"Run": ["a", "b"]}, first + second)
        for first, second in other:
            self.assertEqual(twice([("a", first), ("b", second)]), {}, first + second)

    def test_headers_are_included_once(self):
        self.none(f for f in files("include", "src", "backends", suffixes={".h"}) if "#pragma once" not in f.read_text())

    def test_nothing_is_left_unfinished(self):
        self.none(at for at, text in lines("include", "src", "backends", "examples") if UNFINISHED.search(text))

    def test_doctest_is_implemented_in_one_file(self):
        macro = "DOCTEST_CONFIG_" + "IMPLEMENT"
        self.assertEqual([f.name for f in files("tests") if macro in f.read_text()], ["main.cpp"])

    def test_test_cases_are_where_the_runner_looks_for_them(self):
        self.none(f for f in files("tests") if re.search(r"^\s*TEST_CASE", f.read_text(), re.MULTILINE)
                  and not (f.name.endswith("_test.cpp") and f.parent.parent.name == "tests"))

    def test_every_room_of_tests_is_built(self):
        listed = re.search(r"^test_directories = \[(.*?)\]$", (ROOT / "tests/meson.build").read_text(), re.M | re.S)[1]
        rooms = {f.parent.name for f in files("tests") if f.name.endswith("_test.cpp")}
        self.assertEqual(set(re.findall(r"'(\w+)'", listed)), rooms)

    def test_tools_can_be_run(self):
        for name in ("tools/setup", "tools/build", "tools/install", "tools/test", "tools/demo", ".ci/run"):
            self.assertTrue(os.access(ROOT / name, os.X_OK), name)

    def test_wraps_name_what_they_provide(self):
        for name in ("eigen", "onednn", "fmt", "doctest", "nlohmann_json", "cli11"):
            wrap = configparser.ConfigParser(interpolation=None)
            wrap.read(ROOT / f"subprojects/{name}.wrap")
            kind = wrap.sections()[0]
            self.assertIn(kind, ("wrap-file", "wrap-git"), name)
            self.assertIn("source_hash" if kind == "wrap-file" else "revision", wrap[kind], name)
            folder = wrap[kind].get("patch_directory")
            self.assertTrue(folder is None or (ROOT / "subprojects/packagefiles" / folder / "meson.build").is_file(), name)


if __name__ == "__main__":
    unittest.main()
