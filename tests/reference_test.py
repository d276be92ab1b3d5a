"""Checks that every public name of include/haliax has a comment for the reference: `///`, directly
above its declaration.

  python3 tests/reference_test.py                   run the test: there may be at most BUDGET names
                                                    without a comment
  python3 tests/reference_test.py --list [FILE...]  print file:line: name for each name without a
                                                    comment (default: all headers)

Public names are the functions, types, concepts, aliases and constants of the namespace haliax and
of the namespaces in it, except `detail` and `reflect`. Operators need no comment. Overloads that
follow each other directly share the comment of the first.
"""
import collections
import os
import pathlib
import re
import sys
import unittest

BUDGET = 0   # public names without a comment; may only fall
ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = sorted((ROOT / "include/haliax").glob("*.h"))
INTERNAL = {"detail", "reflect"}
NOT_CODE = re.compile(r'''//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'''
                      r'''|(?<!\w)'(?:\\.|[^'\\\n])+'
                          |^[ ]*\#(?:[^\n]*\\\n)*[^\n]*''', re.DOTALL | re.MULTILINE | re.VERBOSE)
NAMESPACE = re.compile(r"(?:inline )?namespace\s+(?:\[\[.*?\]\]\s*)?([\w:]*)\s*$")
# a brace after these is an expression
EXPRESSION = re.compile(r"(=|requires|&&|\|\|)\s*requires\s*(\(.*\))?\s*$", re.DOTALL)
TYPE = re.compile(
    r"(?:struct|class|union|enum(?: class| struct)?)\s+(?:\[.*?\]+\s*)?(\w+)(?!\s*[\w<])",
    re.DOTALL)
# the last: a deduction guide
NO_NAME = re.compile(r"(static_assert|extern template|typedef|friend)\b|\w+\s*\([^)]*\)\s*->")
FUNCTION = re.compile(
    r"\b(?!(?:decltype|alignas|explicit|noexcept|requires|sizeof|auto|void)\b)(\w+)\s*\(")

Name = collections.namedtuple("Name", "line name scope documented end")


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def closing(text, start):
    """Returns the position after the bracket that closes the one at `start`. Angle brackets count
    only if `start` is one."""
    pairs = {"(": ")", "[": "]", "{": "}"} | ({"<": ">"} if text[start] == "<" else {})
    depth = 0
    for k in range(start, len(text)):
        depth += (text[k] in pairs) - (text[k] in pairs.values() and text[k - 1:k + 1] != "->")
        if depth == 0:
            return k + 1
    return len(text)


def flat(head):
    """Returns the declaration with blanks for the contents of brackets and template arguments. The
    length does not change."""
    for opening in "([<{":
        end = 0
        while (k := head.find(opening, end)) >= 0:
            # the last: an operator
            end = closing(head, k) if opening != "<" or re.search(r"\w\s*$", head[:k]) else k + 1
            head = head[:k + 1] + blank(head[k + 1:end - 1]) + head[max(end - 1, k + 1):]
    return head


def without_template(head):
    """Returns the declaration with blanks for the template parameters, constraints and attributes
    before it. The length does not change."""
    start = 0
    while prefix := re.match(r"\s*(template\s*(?=<)|requires\s*(?=\()|\[\[[^\]]*\]\])",
                             head[start:]):
        start += prefix.end()
        if not prefix[1].startswith("[["):
            start = closing(head, start)
    return blank(head[:start]) + head[start:]


def names_of(head, has_body, code):
    """Returns (position, name) of each public name of a declaration. A class template that has only
    specializations counts as declared."""
    head = flat(without_template(head))
    text = head.strip()
    if re.match(r"using\s|concept\s", text):
        matches = [re.match(r"\s*(?:using|concept)\s+(\w+)\s*=", head)]
    elif re.match(r"(struct|class|union|enum)\b", text):
        matches = [match for match in [TYPE.match(head, len(head) - len(head.lstrip()))]
                   if match and (has_body or re.search(rf"\b(struct|class) {match[1]}<", code))]
    elif not text or NO_NAME.match(text) or "operator" in text:
        matches = []
    else:   # one or several functions, or a constant
        head = head.split("=")[0]
        matches = [FUNCTION.search(head) or re.search(r"(\w+)\s*(\[\s*\]\s*)?$", head),
                   *re.finditer(r",\s*(\w+)\s*\(", head)]
    return [(match.start(1), match[1]) for match in matches if match]


def public_names(text):
    """Yields each public name of a header, in order."""
    lines = text.split("\n")
    code = NOT_CODE.sub(lambda match: blank(match[0]), text)
    scopes, at, last = [], 0, None   # last: the name before this one
    while at < len(code):
        if code[at].isspace() or code[at] in "};":
            if code[at] == "}":
                scopes, last = scopes[:-1], None
            at += 1
            continue
        end, body = at, False
        while end < len(code) and code[end] not in ";}":
            if code[end] == "{":
                if NAMESPACE.match(code[at:end]):
                    break
                is_value = (EXPRESSION.search(code[at:end])
                            or re.search(r"=[^()]*$", flat(code[at:end])))
                end, body = closing(code, end), not is_value
                if body and not TYPE.match(without_template(code[at:end]).strip()):
                    break
            elif code[end] in "([":
                end = closing(code, end)
            else:
                end += 1
        if space := NAMESPACE.match(code[at:end]):
            scopes.append(space[1])
            at, last = end + 1, None
            continue
        scope = [name for space in scopes for name in space.split("::")]
        documented = lines[code.count("\n", 0, at) - 1].lstrip().startswith("///")
        head = code[at:end].partition("{")[0] if body else code[at:end]
        public = scope[:1] == ["haliax"] and not INTERNAL & set(scope)
        for k, (position, name) in enumerate(names_of(head, body, code) if public else []):
            follows = (last and last.documented and last.name == name
                       and "\n\n" not in text[last.end:at])
            number = code.count("\n", 0, at + position) + 1
            last = Name(number, name, "::".join(scope), bool(documented and k == 0 or follows), end)
            yield last
        at = end + (end < len(code) and code[end] == ";")


def undocumented(files):
    """Returns `file:line: name` of each public name without a comment."""
    return [f"{os.path.relpath(file)}:{name.line}: {name.scope}::{name.name}" for file in files
            for name in public_names(pathlib.Path(file).read_text()) if not name.documented]


class Reference(unittest.TestCase):
    def test_public_names_have_a_comment(self):
        found = undocumented(HEADERS)
        self.assertLessEqual(
            len(found), BUDGET,
            "public names without a comment that starts with ///:\n" + "\n".join(found))

    def test_each_kind_of_name_is_found(self):
        text = ("namespace haliax {\nstruct Later;\n// plain\nstruct A {\n  int x = 0;\n};\n"
                "/// good\nA f(int a = {});\nA f(char);\n\n"
                "template <class T> auto g(T t) {\n  return t;\n}\nA h(A), i(A);\n"
                "namespace detail {\nint j();\n}\n"
                "using B = A;\ninline constexpr int c = 1;\nenum class E { a };\n"
                "A operator+(A, A);\n}  // namespace haliax\n")
        names = [(name.line, name.name, name.documented) for name in public_names(text)]
        self.assertEqual([name for _, name, documented in names if documented], ["f", "f"])
        self.assertEqual([(line, name) for line, name, documented in names if not documented],
                         [(4, "A"), (11, "g"), (14, "h"), (14, "i"), (18, "B"), (19, "c"),
                          (20, "E")])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        print("\n".join(undocumented(sys.argv[2:] or HEADERS)))
    else:
        unittest.main()
