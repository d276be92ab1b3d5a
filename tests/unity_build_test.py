"""Checks that files that are compiled as one unit define different internal names.

A first build compiles several files of a folder as one unit (tools/unity_build.py). A rebuild
compiles a changed file alone, so it does not detect conflicting names.
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
import unity_build  # noqa: E402

# Comments, strings, attributes and directives.
NOT_CODE = re.compile(r'//(?! namespace)[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\[\[.*?\]\] ?'
                      r'|^#(?:\\\n|[^\n])*', re.DOTALL | re.MULTILINE)
# Definitions start in the first column, because the contents of namespaces are not indented.
STARTS = re.compile(r"^(?:namespace ?(?P<opens>[\w:]*) \{|(?P<closes>\}) +// namespace"
                    r"|(?!template\b|extern\b|using namespace\b)(?=\w)"
                    r"|template <(?:[^<>]|<[^<>]*>)*> (?=\w))", re.MULTILINE)
TYPE = re.compile(r"(?:struct|class|enum class|enum|union) (?:alignas\(\w+\) )?(\w+)\b(?!::)")
ALIAS = re.compile(r"using (\w+) *$")
FUNCTION = re.compile(r"[^(]*[\s&*%](\w+)\(")
VARIABLE = re.compile(r"[\s&*%](\w+)%*\s*$")


def blank(text, *pairs):
    """Returns the text with each bracket and its contents replaced by %."""
    for opens, closes in pairs:
        inner = re.compile(rf"\{opens}[^{opens}{closes}]*\{closes}")
        while inner.search(text):
            text = inner.sub(lambda m: "%" * len(m[0]), text)
    return text


def until(text, at, ends):
    """Returns the text from `at` to the first of `ends` outside of parentheses, and that end."""
    depth = 0
    for k in range(at, len(text)):
        if not depth and text[k] in ends:
            return text[at:k], text[k]
        depth += {"(": 1, ")": -1}.get(text[k], 0)
    return text[at:], ""


def types(parameters):
    """Returns the types of a parameter list, without qualifiers of their names."""
    commas = [m.start() for m in re.finditer(",", blank(parameters, "<>", "()", "{}"))]
    bounds = zip([-1, *commas], [*commas, len(parameters)])
    each = [parameters[a + 1:b].split("=")[0].strip() for a, b in bounds]
    return [re.sub(r"(?<=[\s&*>])\w+$|\w+::|\s", "", one) for one in each]


def qualified(namespaces, name):
    return "::".join([*filter(None, namespaces), name])


def definitions(text):
    """Yields (qualified name, signature) of each definition at namespace scope. The signature is
    the parameter types of a function, the text of an alias, and empty otherwise."""
    text = NOT_CODE.sub(lambda m: '""' if m[0][0] in '"R' else "", text)
    namespaces = []
    for start in STARTS.finditer(text):
        if start["opens"] is not None:
            namespaces.append(start["opens"])
            continue
        if start["closes"]:
            namespaces.pop()
            continue
        head, end = until(text, start.end(), "{;=")
        statement = until(text, start.end(), ";")[0]
        plain = blank(head, "<>")
        name, signature = None, ""
        if TYPE.match(head):
            name = end == "{" and TYPE.match(head)[1]
            if name and not head.startswith("enum class") and head.startswith("enum"):
                for enumerator in re.findall(r"[{,]\s*(\w+)", statement):
                    yield qualified(namespaces, enumerator), ""
        elif ALIAS.match(head):
            name, signature = ALIAS.match(head)[1], statement
        elif "(" in plain:   # a declaration may be repeated
            if end == "{" and "operator" not in head and (function := FUNCTION.match(plain)):
                parameters = until(head, function.end(), ")")[0]
                name, signature = function[1], f"({types(parameters)}"
        elif not head.startswith("using "):
            for part in blank(statement, "()", "{}", "[]", "<>").split(","):
                if variable := VARIABLE.search(" " + part.split("=")[0]):
                    yield qualified(namespaces, variable[1]), ""
        if name:
            yield qualified(namespaces, name), signature


def may_coexist(first, second):
    """Returns true if two definitions of one name with these signatures do not conflict: functions
    with different parameters, or equal aliases."""
    if first[:1] == second[:1] == "(":
        return first != second
    return bool(first) and first == second


def conflicts(texts):
    """Returns `name: file, file` for each name that two of {file: text} define."""
    known, found = {}, []
    for file, text in texts.items():
        for name, signature in dict.fromkeys(definitions(text)):
            for other, other_signature in known.get(name, []):
                if other != file and not may_coexist(signature, other_signature):
                    found.append(f"{name}: {other}, {file}")
            known.setdefault(name, []).append((file, signature))
    return found


class UnityBuild(unittest.TestCase):
    def test_files_of_one_unit_define_different_names(self):
        found = []
        for folder, files in unity_build.files_by_folder(ROOT).items():
            units = {}
            for file, unit in unity_build.assign_units(ROOT, folder, files, 10**9).items():
                if unit and not file.endswith("_test.cpp"):   # tests have a namespace each
                    units.setdefault(unit, {})[file] = (ROOT / file).read_text()
            headers = {header.relative_to(ROOT).as_posix(): header.read_text()
                       for header in (ROOT / folder).glob("*.h")}
            for texts in units.values():
                found += [conflict for conflict in conflicts(headers | texts) if ".cpp" in conflict]
        self.assertEqual("\n".join(found), "")

    def check(self, first, second, expected):
        """Checks which names are reported for two files with these contents."""
        texts = {file: "namespace haliax {\nnamespace {\n\n" + text +
                 "\n\n}  // namespace\n}  // namespace haliax\n"
                 for file, text in (("a.cpp", first), ("b.cpp", second))}
        names = [conflict.split(":")[2] for conflict in conflicts(texts)]
        self.assertEqual(names, expected, f"{first}\n{second}")

    def test_conflicting_definitions_are_reported(self):
        for first, second, name in (
                ("constexpr int kRows = 3;", "const std::map<int, int> kRows{{1, 2}};", "kRows"),
                ("thread_local int one = 0, two = 0;", "static std::string two;", "two"),
                ("int f(int a, float b = 2) { return 1; }",
                 "float f(int c, float) {\n  return 2;\n}", "f"),
                ("template <class T> T f(std::vector<T> a) { return a[0]; }",
                 "template <class T>\nT f(std::vector<T>) {", "f"),
                ("struct Step {\n  int a;\n};", "enum class Step { first };", "Step"),
                ("enum Field { kType = 0, kRows = 2 };", "constexpr int kRows = 3;", "kRows"),
                ("class Step final : public Base {};", "using Step = program::Step;", "Step"),
                ("using Step = program::Step;", "using Step = program::Chunk;", "Step"),
                ("int count(int k) { return k; }", "const int count = 3;", "count")):
            self.check(first, second, [name])

    def test_definitions_that_may_coexist_are_not_reported(self):
        for first, second in (
                ("int f(int a) { return 1; }", "int f(const std::pair<int, int>& a) { return 2; }"),
                ("int f(int a);", "int f(int a) { return 2; }"),
                ("struct Step;", "struct Step {};"),
                ("using Step = program::Step;", "using Step = program::Step;"),
                ("int A::size() { return 1; }", "int B::size() { return 1; }"),
                ("int f() {\n  int size = 1;\n}", "int g() {\n  int size = 1;\n}"),
                ("// int f() { }\nconst char* kText = R\"(\nint f() {}\n)\";", "int f() {}"),
                ("}  // namespace\nnamespace prim {\nint f() {}\n}  // namespace prim\n"
                 "namespace {",
                 "int f() {}")):
            self.check(first, second, [])


if __name__ == "__main__":
    unittest.main()
