"""Checks that every public name of include/haliax has a comment for the reference: `///`, directly above its declaration.

  python3 tests/reference_test.py                   run the test: there may be at most BUDGET names without a comment
  python3 tests/reference_test.py --list [FILE...]  print file:line: name for each name without a comment (default: all headers)

Public names are the functions, types, concepts, aliases and constants of the namespace haliax and of the namespaces in it, except
`detail` and `reflect`. Operators need no comment. Overloads that follow each other directly share the comment of the first.
"""
import collections
import pathlib
import re
import sys
import unittest

BUDGET = 0   # public names without a comment; may only fall
ROOT = pathlib.Path(__file__).resolve().parent.parent
INTERNAL = {"detail", "reflect"}
NOT_CODE = re.compile(r'''//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'
                          |^[ ]*\#(?:[^\n]*\\\n)*[^\n]*''', re.DOTALL | re.MULTILINE | re.VERBOSE)
NAMESPACE = re.compile(r"(?:inline )?namespace\s+(?:\[\[.*?\]\]\s*)?([\w:]*)\s*$")
EXPRESSION = re.compile(r"(=|requires|&&|\|\|)\s*requires\s*(\(.*\))?\s*$", re.DOTALL)   # the next brace is no body
TYPE = re.compile(r"(?:struct|class|union|enum(?: class| struct)?)\s+(?:\[.*?\]+\s*)?(\w+)(?!\s*[\w<])")
FUNCTION = re.compile(r"\b(?!(?:decltype|alignas|explicit|noexcept|requires|sizeof|auto)\b)(\w+)\s*\(")

Name = collections.namedtuple("Name", "line first name scope documented end")


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def closing(text, start):
    """The position after the bracket that closes the one at `start`; angle brackets count if `start` is one."""
    pairs = {"(": ")", "[": "]", "{": "}"} | ({"<": ">"} if text[start] == "<" else {})
    depth = 0
    for k in range(start, len(text)):
        if text[k] in pairs:
            depth += 1
        elif text[k] in pairs.values() and text[k - 1] + text[k] != "->":
            depth -= 1
            if depth == 0:
                return k + 1
    return len(text)


def flat(head):
    """A declaration's text of the same length in which the content of brackets and of template arguments is blank."""
    for opening in "([<{":
        k = 0
        while (k := head.find(opening, k)) >= 0:
            if opening == "<" and not re.search(r"\w\s*$", head[:k]):   # an operator
                k += 1
                continue
            end = closing(head, k)
            head = head[:k + 1] + blank(head[k + 1:end - 1]) + head[end - 1:]
            k = end
    return head


def without_template(head):
    """A declaration's text of the same length in which the template parameters, constraints and attributes before it are blank."""
    start = 0
    while prefix := re.match(r"\s*(template\s*(?=<)|requires\s*(?=\()|\[\[[^\]]*\]\])", head[start:]):
        start += prefix.end()
        if not prefix[1].startswith("[["):
            start = closing(head, start)
    return blank(head[:start]) + head[start:]


def names_of(head, has_body, code):
    """Position and name of each public name that a declaration declares. A template may have specializations alone."""
    head = flat(without_template(head))
    text = head.strip()
    if re.match(r"using\s|concept\s", text):
        found = [(m.start(1), m[1]) for m in [re.match(r"\s*(?:using|concept)\s+(\w+)\s*=", head)] if m]
    elif re.match(r"(struct|class|union|enum)\b", text):
        found = [(m.start(1), m[1]) for m in [TYPE.match(head, len(head) - len(head.lstrip()))]
                 if m and (has_body or re.search(rf"\b(struct|class) {m[1]}<", code))]
    elif not text or re.match(r"(static_assert|extern template|typedef|friend)\b|[\w:]+\s*\([^)]*\)\s*->", text) or "operator" in text:
        found = []
    else:
        offset, found = 0, []
        for part in re.split(r",(?=\s*\w+\s*\()", head.split("=")[0]):
            if m := FUNCTION.search(part) or re.search(r"(\w+)\s*(\[\s*\]\s*)?$", part):
                found.append((offset + m.start(1), m[1]))
            offset += len(part) + 1
    return found


def public_names(text):
    """Yields each public name of a header, in order."""
    lines = text.split("\n")
    code = NOT_CODE.sub(lambda match: blank(match[0]), text)
    scopes, at, last = [], 0, None   # last: the name before this one
    while at < len(code):
        at += len(code[at:]) - len(code[at:].lstrip())
        if at >= len(code):
            return
        if code[at] in "};":
            if code[at] == "}" and scopes:
                scopes.pop()
            at, last = at + 1, None if code[at] == "}" else last
            continue
        end, body = at, False
        while end < len(code) and code[end] not in ";}":
            if code[end] == "{":
                if NAMESPACE.match(code[at:end]):
                    break
                is_value = EXPRESSION.search(code[at:end]) or re.search(r"=[^()]*$", flat(code[at:end]))
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
        line = code.count("\n", 0, at)
        documented = line > 0 and lines[line - 1].lstrip().startswith("///")
        head = code[at:end]
        found = names_of(head[:head.index("{")] if body else head, body, code) if scope[:1] == ["haliax"] else []
        for k, (position, name) in enumerate(found if not INTERNAL & set(scope) else []):
            follows = last and last.documented and last.name == name and "\n\n" not in text[last.end:at]
            where = code.count("\n", 0, at + position) + 1
            last = Name(where, line, name, "::".join(scope), bool(documented and k == 0 or follows), end)
            yield last
        at = end + (end < len(code) and code[end] == ";")


def headers():
    return sorted((ROOT / "include/haliax").glob("*.h"))


def undocumented(files):
    """file:line: name of each public name without a comment."""
    return [f"{file}:{name.line}: {name.scope}::{name.name}" for file in files
            for name in public_names(pathlib.Path(file).read_text()) if not name.documented]


class Reference(unittest.TestCase):
    def test_public_names_have_a_comment(self):
        found = undocumented(headers())
        shown = "\n".join(str(line).replace(f"{ROOT}/", "") for line in found)
        self.assertLessEqual(len(found), BUDGET, f"public names without a comment that starts with ///:\n{shown}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        print("\n".join(undocumented(sys.argv[2:] or [file.relative_to(pathlib.Path.cwd()) for file in headers()])))
    else:
        unittest.main()
