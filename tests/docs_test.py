"""Checks the pages of the documentation: their code is compiled, their outputs are asserted, and
their links resolve.

A page binds itself to tests with HTML comments in its first lines:
    <!-- code: FILES -->   every paragraph of a ```cpp block is in these files, which the suite
                           compiles and runs. A Python file is a script that runs the page itself,
                           as tests/tutorial_test.py does, and names it.
    <!-- rows: FILES -->   the code in the last column of every table with the header "C++" is in
                           these files.
White space is ignored. A ```text block after a ```cpp block that prints to std::cout shows its
output: each line must be in a string of the files ("..." stands for any text).
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference/api"   # written by tools/docs, which checks its links

FENCE = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1`*$", re.DOTALL | re.MULTILINE)
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])'|R"(\w*)\((.*?)\)\1"|"((?:\\.|[^"\\\n])*)\"""",
    re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "0": "\0"}


def relative(path):
    return path.relative_to(ROOT).as_posix()


def pages():
    """Returns the pages of the documentation, README.md and CONTRIBUTING.md."""
    found = (page for page in DOCS.rglob("*.md") if GENERATED not in page.parents)
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *found])


def squeezed(text):
    return re.sub(r"\s+", "", text)


def blocks(text):
    """Returns (language, content) of each fenced block, in order."""
    return [(language.strip(), content) for _, language, content in FENCE.findall(text)]


def prose(text):
    """Returns the text without blocks, comments and code."""
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "",
                  re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL))


def files_of(text, kind):
    """Returns the files that a page names for its code or its rows."""
    named = re.findall(rf"<!-- {kind}: (.*?) -->", "\n".join(text.splitlines()[:10]))
    return [file for names in named for file in names.split()]


def strings(code):
    """Returns the concatenated string literals of C++ source."""
    def value(match):
        raw, plain = match[2], match[3]
        return raw or re.sub(r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]),
                             plain or "")
    return "".join(value(match) for match in TOKEN.finditer(code))


def slugs(text):
    """Returns the anchors of a page: GitHub's and MyST's names of its headings, and explicit
    targets."""
    found = (set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
             | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)))
    count = {}
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", FENCE.sub("", text), re.MULTILINE):
        heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count[slug] = count.get(slug, -1) + 1
        found.add(f"{slug}-{count[slug]}" if count[slug] else slug)
    return found


def links(text):
    """Returns the targets of links and images, except web addresses."""
    text = prose(text)
    found = (re.findall(r"\]\(<?([^)>\s]+)", text)
             + re.findall(r"^\[[^\]]+\]: +(\S+)", text, re.MULTILINE))
    return [link for link in found + re.findall(r"<img [^>]*src=\"([^\"]+)\"", text)
            if not re.match(r"\w+:", link)]


def missing_code(text, code):
    """Returns the paragraphs of the page's C++ blocks that are not in the code."""
    code = squeezed(code)
    parts = (part for language, block in blocks(text) if language == "cpp"
             for part in re.split(r"\n\s*\n", block))
    return [part.strip() for part in parts if squeezed(part) not in code]


def missing_rows(text, code):
    """Returns the entries in the last columns of tables of C++ that are not in the code. Names of
    environment variables are skipped."""
    code = squeezed(code)
    tables = re.findall(r"^\|.*\| C\+\+ \|\n((?:\|.*\n)+)", FENCE.sub("", text) + "\n",
                        re.MULTILINE)
    rows = re.findall(r"^\|.*\| (.*) \|$", "".join(tables), re.MULTILINE)
    shown = [part.rstrip(";") for row in rows
             for part in re.findall(r"`([^`]+)`", row) if not part.startswith("HALIAX_")]
    return [part for part in shown
            if not all(squeezed(piece) in code for piece in part.replace("\\|", "|").split("..."))]


def missing_output(text, code):
    """Returns the lines that a page shows as output of its C++ and that no string of the code
    has."""
    known, missing = squeezed(strings(code)), []
    shown = blocks(text)
    for (before, program), (language, output) in zip(shown, shown[1:]):
        if language == "text" and before == "cpp" and "std::cout" in program:
            missing += [line for line in output.splitlines()
                        if not all(squeezed(p) in known for p in line.split("..."))]
    return missing


class Docs(unittest.TestCase):
    maxDiff = None

    def none(self, found):
        self.assertEqual("\n".join(map(str, found)), "")

    def bound(self, kind, check):
        """Fails with all results of a check of the pages that name files of this kind."""
        found = []
        for page in pages():
            text = page.read_text()
            names = files_of(text, kind)
            found += [f"{relative(page)} names {name}, which does not exist"
                      for name in names if not (ROOT / name).is_file()]
            names = [name for name in names if (ROOT / name).is_file()]
            scripts = [name for name in names if name.endswith(".py")]
            found += [f"{name} does not name {relative(page)}" for name in scripts
                      if relative(page) not in (ROOT / name).read_text()]
            code = "\n".join((ROOT / name).read_text() for name in names if name not in scripts)
            if code:
                found += [f"{relative(page)} is bound to {' '.join(names)}, which lack: {part}"
                          for part in check(text, code)]
        self.none(found)

    def test_code_of_pages_is_compiled_by_the_tests_that_they_name(self):
        self.bound("code", missing_code)

    def test_outputs_of_pages_are_asserted_by_the_tests_that_they_name(self):
        self.bound("code", missing_output)

    def test_code_in_tables_is_compiled_by_the_tests_that_pages_name(self):
        self.bound("rows", missing_rows)
        text = (DOCS / "get-started/from-haliax.md").read_text()
        self.assertGreater(len(re.findall(r"^\|.*`.*\| .*`.* \|$", text, re.MULTILINE)), 50)

    def test_pages_with_cpp_blocks_name_a_test(self):
        self.none(relative(page) for page in pages() for text in [page.read_text()]
                  if not files_of(text, "code")
                  and any(language == "cpp" for language, _ in blocks(text)))

    def test_code_in_pages_is_marked_as_cpp(self):
        code = re.compile(r"\b(auto \w+ =|NamedArray&)")
        self.none(f"{relative(page)}: {block}" for page in pages() if page.name != "CONTRIBUTING.md"
                  for language, block in blocks(page.read_text())
                  if not language and code.search(block))

    def test_tests_of_documents_belong_to_a_page(self):
        named = {name for page in pages() for name in (files_of(page.read_text(), "code")
                                                       + files_of(page.read_text(), "rows"))}
        self.none(relative(file) for file in (ROOT / "tests/docs").glob("*_test.cpp")
                  if relative(file) not in named)

    def test_links_and_anchors_resolve(self):
        found = []
        for page in [*pages(), *(ROOT / "tests").rglob("*.md")]:
            for link in links(page.read_text()):
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                if not target.exists():
                    if GENERATED not in (target, *target.parents):
                        found.append(f"{relative(page)}: {link} does not exist")
                elif anchor and target.suffix == ".md" and anchor not in slugs(target.read_text()):
                    found.append(f"{relative(page)}: {link} has no such heading")
        self.none(found)

    def test_every_page_is_linked_from_another_one(self):
        linked = {(page.parent / link.split("#")[0]).resolve()
                  for page in pages() for link in links(page.read_text())
                  if not link.startswith("#")
                  and (page.parent / link.split("#")[0]).resolve() != page}
        self.none(relative(page) for page in pages()
                  if page not in linked and page.name not in ("README.md", "CONTRIBUTING.md"))

    def test_the_glossary_has_at_most_25_terms_of_this_project(self):
        page = (DOCS / "reference/glossary.md").read_text()
        own = page.split("## Terms of this project\n")[1].split("\n## ")[0]
        terms = re.findall(r"^- \*\*(.+?)\.\*\*", own, re.MULTILINE)
        self.assertEqual(terms, sorted(terms, key=str.lower))
        self.assertIn(len(terms), range(10, 26))

    def test_pages_that_source_files_mention_exist(self):
        named = re.compile(r"\bdocs/[\w/-]+\.md\b")
        sources = [
            file for folder in ("include", "src", "backends", "examples", "bench", "tests", "tools")
            for file in (ROOT / folder).rglob("*") if file.suffix in (".h", ".cpp", ".py", ".inc")]
        self.none(f"{relative(file)}: {name}" for file in sources
                  for name in sorted(set(named.findall(file.read_text(errors="replace"))))
                  if not (ROOT / name).is_file())

    def test_the_install_page_lists_the_headers_that_haliax_h_does_not_include(self):
        folder = ROOT / "include/haliax"
        included, todo = set(), ["haliax.h"]
        while todo:
            name = todo.pop()
            if name not in included:
                included.add(name)
                todo += re.findall(r'#include [<"]haliax/(\w+\.h)', (folder / name).read_text())
        others = {header.name for header in folder.glob("*.h")} - included
        page = (DOCS / "get-started/install.md").read_text()
        listed = set(re.findall(r"`haliax/(\w+\.h)`", page))
        self.assertEqual(others - listed, set())

    def test_code_in_contributing_is_code_of_the_sources(self):
        sources = [file for folder in ("include", "src", "backends", "tests")
                   for file in sorted((ROOT / folder).rglob("*"))
                   if file.suffix in (".h", ".cpp", ".cu", ".inc")]
        all_code = squeezed("".join(file.read_text() for file in sources))
        shown = [line for language, block in blocks((ROOT / "CONTRIBUTING.md").read_text())
                 if not language for line in block.splitlines()]
        self.assertGreater(len(shown), 10)
        found = []
        for line in shown:
            code, _, file = line.partition("  // ")
            if squeezed(code) not in (squeezed((ROOT / file).read_text()) if file else all_code):
                found.append(line)
        self.none(found)

    def test_changed_code_is_found(self):
        page = "```cpp\nauto x =\n    f(1);\n\nauto y = g(2);\n```\n"
        self.assertEqual(missing_code(page, "{ auto x = f(1);\n\n  auto y = g(2); }"), [])
        self.assertEqual(missing_code(page, "auto x = f(1); auto y = g(3);"), ["auto y = g(2);"])

    def test_changed_rows_are_found(self):
        page = "| Python | C++ |\n|---|---|\n| `f(1)` | `g(1)`, `h(...)`; or `HALIAX_X=1` |\n"
        page += "\n| a | b |\n|---|---|\n| `c` | `d` |\n"
        self.assertEqual(missing_rows(page, "g( 1); h(2)"), [])
        self.assertEqual(missing_rows(page, "g(2); h(2)"), ["g(1)"])

    def test_changed_outputs_are_found(self):
        page = '```cpp\nstd::cout << x;\n```\nprints\n```text\nf32 "a"\n2 of ... rows\n```\n'
        self.assertEqual(
            missing_output(page, r'''CHECK(out == "f32 \"a\"\n" "2 of 3" " rows"); // f32'''), [])
        self.assertEqual(missing_output(page, 'CHECK(out == R"(2 of 3 rows)");  // "f32 a"'),
                         ['f32 "a"'])

    def test_headings_have_the_anchors_of_code_hosts(self):
        page = ("# One `jit` & [two](x.md): 3-D\n## Limits\n```sh\n# no heading\n```\n### Limits\n"
                "(by-hand)=\n")
        self.assertEqual(slugs(page), {"one-jit--two-3-d", "limits", "limits-1", "by-hand"})

    def test_links_are_found_outside_of_code(self):
        page = ("[a](b.md#c) `[x](y)` ![d](e.svg) <https://f> [g](https://h)\n```cpp\n[i](j)\n"
                "```\n[k]: l.md\n")
        self.assertEqual(links(page), ["b.md#c", "e.svg", "l.md"])


if __name__ == "__main__":
    unittest.main()
