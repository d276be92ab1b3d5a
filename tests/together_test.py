"""Files of a folder are compiled as one from nothing (tools/sources.py), so what each names for itself differs. A file that was
changed is compiled alone: building again does not show it."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
import sources  # noqa: E402

ASIDE = re.compile(r'//(?! namespace)[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\[\[.*?\]\]|^#(?:\\\n|[^\n])*',
                   re.DOTALL | re.MULTILINE)
# Definitions begin where a line does, as what stands in namespaces is not indented.
STARTS = re.compile(r"^(?:namespace ?(?P<opens>[\w:]*) \{|(?P<closes>\}) +// namespace"
                    r"|(?!template\b|extern\b|using namespace\b)(?=\w)|template <(?:[^<>]|<[^<>]*>)*> (?=\w))", re.MULTILINE)
TYPE = re.compile(r"(?:struct|class|enum class|enum|union) (?:alignas\(\w+\) )?(\w+)\b(?!::)")
ALIAS = re.compile(r"using (\w+) *$")
FUNCTION = re.compile(r"[^(]*[\s&*%](\w+)\(")
VARIABLE = re.compile(r"[\s&*%](\w+)%*\s*$")


def blank(text, *pairs):
    """The same, with % for what stands in brackets."""
    for opens, closes in pairs:
        inner = re.compile(rf"\{opens}[^{opens}{closes}]*\{closes}")
        while inner.search(text):
            text = inner.sub(lambda m: "%" * len(m[0]), text)
    return text


def until(text, at, ends):
    """What stands there, to the first of `ends` outside of brackets, and that one."""
    depth = 0
    for k in range(at, len(text)):
        if not depth and text[k] in ends:
            return text[at:k], text[k]
        depth += {"(": 1, ")": -1}.get(text[k], 0)
    return text[at:], ""


def types(parameters):
    commas = [m.start() for m in re.finditer(",", blank(parameters, "<>", "()", "{}"))]
    each = [parameters[a + 1:b].split("=")[0].strip() for a, b in zip([-1, *commas], [*commas, len(parameters)])]
    return [re.sub(r"(?<=[\s&*>])\w+$|\w+::|\s", "", one) for one in each]


def defined(text):
    """(name in its namespaces, what tells it from others of that name) of what stands in no body."""
    text = ASIDE.sub(lambda m: '""' if m[0][0] in '"R' else "", text)
    around = []
    for start in STARTS.finditer(text):
        if start["opens"] is not None:
            around.append(start["opens"])
            continue
        if start["closes"]:
            around.pop()
            continue
        head, end = until(text, start.end(), "{;=")
        whole = until(text, start.end(), ";")[0]
        plain = blank(head, "<>")
        name, told = None, ""
        if TYPE.match(head):
            name = end == "{" and TYPE.match(head)[1]
            if name and not head.startswith("enum class") and head.startswith("enum"):
                for one in re.findall(r"[{,]\s*(\w+)", whole):
                    yield "::".join([*filter(None, around), one]), ""
        elif ALIAS.match(head):
            name, told = ALIAS.match(head)[1], whole
        elif "(" in plain:   # a declaration may stand twice
            if end == "{" and "operator" not in head and (function := FUNCTION.match(plain)):
                name, told = function[1], f"({types(until(head, function.end(), ')')[0])}"
        elif not head.startswith("using "):
            for part in blank(whole, "()", "{}", "[]", "<>").split(","):
                if variable := VARIABLE.search(" " + part.split("=")[0]):
                    yield "::".join([*filter(None, around), variable[1]]), ""
        if name:
            yield "::".join([*filter(None, around), name]), told


def twice(texts):
    """Of {file: text}: what two of them define. Functions of one name differ in their parameters; an alias may be said twice."""
    known, found = {}, []
    for file, text in texts.items():
        for name, told in dict.fromkeys(defined(text)):
            for other, of_other in known.get(name, []):
                functions = told[:1] == of_other[:1] == "("
                if other != file and (functions and told == of_other or not functions and not (told and told == of_other)):
                    found.append(f"{name}: {other}, {file}")
            known.setdefault(name, []).append((file, told))
    return found


class Together(unittest.TestCase):
    def test_files_that_are_compiled_together_have_no_two_things_of_one_name(self):
        found = []
        for folder, files in sources.files_by_folder(ROOT).items():
            units = {}
            for file, unit in sources.together(ROOT, folder, files, 10**9).items():
                if unit and not file.endswith("_test.cpp"):   # tests have a namespace each
                    units.setdefault(unit, {})[file] = (ROOT / file).read_text()
            headers = {h.relative_to(ROOT).as_posix(): h.read_text() for h in (ROOT / folder).glob("*.h")}
            for texts in units.values():
                found += [one for one in twice(headers | texts) if ".cpp" in one]
        self.assertEqual("\n".join(found), "")

    def check(self, a, b, expected):
        """Is a name found that two files define, in namespaces?"""
        texts = {f: f"namespace haliax {{\nnamespace {{\n\n{text}\n\n}}  // namespace\n}}  // namespace haliax\n"
                 for f, text in (("a.cpp", a), ("b.cpp", b))}
        self.assertEqual([f.split(":")[2] for f in twice(texts)], expected, f"{a}\n{b}")

    def test_two_things_of_one_name_are_found(self):
        self.check("constexpr int kRows = 3;", "const std::map<int, int> kRows{{1, 2}};", ["kRows"])
        self.check("thread_local int one = 0, two = 0;", "static std::string two;", ["two"])
        self.check("int f(int a, float b = 2) { return 1; }", "float f(int c, float) {\n  return 2;\n}", ["f"])
        self.check("template <class T> T f(std::vector<T> a) { return a[0]; }", "template <class T>\nT f(std::vector<T>) {", ["f"])
        self.check("struct Step {\n  int a;\n};", "enum class Step { first };", ["Step"])
        self.check("enum Field { kType = 0, kRows = 2 };", "constexpr int kRows = 3;", ["kRows"])
        self.check("class Step final : public Base {};", "using Step = program::Step;", ["Step"])
        self.check("using Step = program::Step;", "using Step = program::Chunk;", ["Step"])
        self.check("int turns(int k) { return k; }", "const int turns = 3;", ["turns"])

    def test_what_may_have_one_name_is_not_found(self):
        self.check("int f(int a) { return 1; }", "int f(const std::pair<int, int>& a) { return 2; }", [])
        self.check("int f(int a);", "int f(int a) { return 2; }", [])
        self.check("struct Step;", "struct Step {};", [])
        self.check("using Step = program::Step;", "using Step = program::Step;", [])
        self.check("int A::size() { return 1; }", "int B::size() { return 1; }", [])
        self.check("int f() {\n  int size = 1;\n}", "int g() {\n  int size = 1;\n}", [])
        self.check("// int f() { }\nconst char* kText = R\"(\nint f() {}\n)\";", "int f() {}", [])
        self.check("}  // namespace\nnamespace prim {\nint f() {}\n}  // namespace prim\nnamespace {", "int f() {}", [])


if __name__ == "__main__":
    unittest.main()
