"""Checks docs, comments, error messages, test names, help and identifiers against the word table in
words.toml.

Without an option, runs the test: no group of files may exceed its budget of flagged sentences or
identifiers. To find those of a file and their replacements, use --list.
"""
import argparse
import bisect
import collections
import functools
import pathlib
import re
import sys
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE_FILE = ROOT / "tests/words.toml"
TABLE = tomllib.loads(TABLE_FILE.read_text())
FOLDERS = ("docs", "include", "src", "backends", "tests", "tools", "bench", "examples")
PAGES = ("README.md", "CONTRIBUTING.md")
GROUPS = {"docs": "docs", "include": "headers", "src": "sources", "backends": "sources",
          "tests": "tests", "tools": "tools", "bench": "tools", "examples": "tools"}
CPP = {".h", ".cpp", ".cu", ".inc"}
ITEM = r"(?:[-*+] |\d+\. |@\w+|\|)"   # the start of a list item, a tag or a table row
WORD = re.compile(r"[A-Za-z][a-z']+")

CPP_TOKEN = re.compile(r'''R"(?P<tag>\w*)\(.*?\)(?P=tag)"|"(?P<string>(?:\\.|[^"\\\n])*)"'''
                       r'''|(?<!\w)'(?:\\.|[^'\\\n])+'
                           |//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/''', re.DOTALL | re.VERBOSE)
PYTHON_TOKEN = re.compile(r'''(?P<quote>"{3}|'{3})(?P<block>.*?)(?P=quote)'''
                          r'''|"(?P<string>(?:\\.|[^"\\\n])*)"
                              |'(?P<single>(?:\\.|[^'\\\n])*)'|\#(?P<line>[^\n]*)''',
                          re.DOTALL | re.VERBOSE)
SCRIPT_TOKEN = re.compile(r'''(?:echo|printf|description:)\ ["'](?P<string>[^"'\n]*)["']'''
                          r'''|(?:^|(?<=\s))\#(?!!)(?P<line>[^\n]*)''',
                          re.VERBOSE)
# Also regular expressions that start with ^, and glob patterns that start with *.
CODE_IN_STRING = re.compile(
    r"[;{]\s*(\\n)?$|^\s*[}#]|^[\^*]|\b(float|int|const|void|return|unsigned|auto|__\w+)\b"
    r"|->|[=!]=|&&|\+=|\+\+|%[a-z]\d")
MASKED = re.compile(r"""`[^`]*`|<[^<>\n]*>|\]\([^)]*\)|https?:\S+|\{[^{}]*\}|\\[nt"]"""
                    r"""     # code, tags, links, placeholders
                        |\b\w*(?:_|::|->)\w[\w:.>-]*|\b\w+\.(?:h|cpp|py|md|toml|build)\b"""
                    r"""|\b[a-z]+[A-Z]\w*|\b\w+\(""", re.VERBOSE)
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<! vs)[.!?][\"')*_]*\s+(?=[^a-z\s])")

Text = collections.namedtuple("Text", "line kind words")  # kind: prose, comment, message or name
Flag = collections.namedtuple("Flag", "line words sentence")


def paragraphs(lines, kind):
    """Joins (line number, column, continues, text): neighbors in one column, without a list item
    between them."""
    block = []
    for number, column, continues, text in lines + [(0, 0, False, "")]:
        text = re.sub(r"^[/!<]*", "", text)
        # blank, code in a comment
        if not text.strip(" -=/*") or re.match(r"     | ?namespace ", text):
            text, continues = "", False
        neighbor = block and continues and (number, column) == (block[-1][0] + 1, block[-1][1])
        if block and (not neighbor or re.match(r"\s*" + ITEM, text)):
            yield Text(block[0][0], kind, "\n".join(text for _, _, text in block))
            block = []
        if text:
            block.append((number, column, text))


def markdown_texts(text):
    # the last: a word table
    not_prose = r"(?ms)^( *)(```|~~~).*?^ *\2|<!--.*?-->|^\| not \| but \|\n(?:\|[^\n]*\n)*"
    text = re.sub(not_prose, lambda match: "\n" * match[0].count("\n"), text)
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(("|", "#")):
            for cell in re.split(r"(?<!\\)\|", line.strip("#| ")):
                yield Text(number, "prose", cell)
        else:
            rows.append((number, 0, True, line.strip() if not line.startswith("    ")
                         or rows and rows[-1][3] else ""))
    yield from paragraphs(rows, "prose")


def code_texts(text, token, kind_of_string):
    """Yields the comments, and the strings that have a kind."""
    starts = [match.end() for match in re.finditer(r"^|\n", text)]
    comments, strings = [], []
    for match in token.finditer(text):
        groups, number = match.groupdict(), bisect.bisect_right(starts, match.start())
        before = text[starts[number - 1]:match.start()]
        string = groups["string"] if groups["string"] is not None else groups.get("single")
        if groups["line"] is not None:
            comments.append((number, len(before), not before.strip(), groups["line"]))
        elif groups.get("block") is not None:
            comments += [(number + k, 0, k > 0, line.strip(" *"))
                         for k, line in enumerate(groups["block"].split("\n"))]
        elif string is not None and strings and not text[strings[-1][1]:match.start()].strip():
            # adjacent literals
            first, end, before, joined = strings[-1]
            strings[-1] = (first, match.end(), before,
                           joined + "\n" * text.count("\n", end, match.start()) + string)
        elif string is not None:
            strings.append((number, match.end(),
                            text[max(0, match.start() - 40):match.start()], string))
    yield from paragraphs(comments, "comment")
    for number, _, before, string in strings:
        if kind := kind_of_string(before, string):
            yield Text(number, kind, string)


def message(_, string):
    return ("message" if len(WORD.findall(string)) >= 3 and " " in string
            and not CODE_IN_STRING.search(string) else None)


def test_name(before, _):
    return "name" if re.search(r"\b(TEST_CASE|SUBCASE)\w*\($", before.rstrip()) else None


def texts(path, name):
    """Yields each Text of a file. `name` is its path from the root of the project."""
    text, kind_of_string = (path.read_text(errors="replace"),
                            test_name if name.startswith("tests/") else message)
    if path.suffix == ".md":
        yield from markdown_texts(text)
    elif path.suffix in CPP:
        yield from code_texts(text, CPP_TOKEN, kind_of_string)
    elif path.suffix == ".py" or re.match(r"#!.*python", text):
        yield from code_texts(text, PYTHON_TOKEN, kind_of_string)
        for match in re.finditer(r"def test_(\w+)", text):
            yield Text(text.count("\n", 0, match.start()) + 1, "name", match[1].replace("_", " "))
    elif path.name == "meson.build" or text.startswith("#!"):
        yield from code_texts(text, SCRIPT_TOKEN, kind_of_string)


def any_of(patterns, start="", end=""):
    """One expression for all patterns, and for each of its groups the pattern that it is a part
    of."""
    owners = [None]
    for pattern in patterns:
        owners += [pattern] * (re.compile(pattern).groups + 1)
    return re.compile(f"{start}(?:{'|'.join(f'({pattern})' for pattern in patterns)}){end}"), owners


NORMAL, _ = any_of(TABLE["normal"]["phrases"], r"\b")
WORDS, COMMENTS = any_of(TABLE["words"], r"\b", r"\b"), any_of(TABLE["comments"])
INSTEAD = TABLE["words"] | TABLE["comments"]
IDENTIFIERS = {re.compile(words): instead for words, instead in TABLE["identifiers"].items()}


def mask(match):
    return re.sub(r"\S", "x", match[0])


def sentences(text):
    """(line, sentence with its code masked, sentence) of each sentence of a text."""
    words, start = MASKED.sub(mask, text.words), 0
    for end in [match.end() for match in SENTENCE_END.finditer(words)] + [len(words)]:
        sentence = words[start:end].strip()
        if len(WORD.findall(sentence)) >= 2:
            before = start + len(words[start:end]) - len(words[start:end].lstrip())
            yield (text.line + text.words.count("\n", 0, before), sentence,
                   text.words[start:end].strip())
        start = end


def check(text):
    """How many sentences a text has, and the flagged ones."""
    count, found = 0, []
    for line, masked, original in sentences(text):
        count += 1
        lower = re.sub(r"^[-*+>|. ]+|\*\*", lambda match: " " * len(match[0]),
                       masked).lower().replace("\n", " ")
        skipped = len(lower) - len(lower.lstrip())
        matches = {}
        for expression, owners in (WORDS, COMMENTS) if text.kind == "comment" else (WORDS,):
            if not expression.search(lower.lstrip()):
                continue
            for match in expression.finditer(NORMAL.sub(mask, lower).lstrip()):
                at = line + masked.count("\n", 0, skipped + match.start())
                matches.setdefault(f"'{match[0].strip()}' -> {INSTEAD[owners[match.lastindex]]}",
                                   at)
        if matches:
            found.append(Flag(min(matches.values()), " | ".join(matches),
                              " ".join(original.split())))
    return count, found


def files(paths=()):
    """(path, name) of the files to check: all of the project, or those below the paths."""
    roots = ([pathlib.Path(path).resolve() for path in paths]
             or [ROOT / name for name in FOLDERS + PAGES])
    for root in roots:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            name = (path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT)
                    else path.as_posix().lstrip("/"))
            known = (path.suffix in CPP | {".md", ".py"} or path.name == "meson.build"
                     or not path.suffix)
            if known and path.is_file() and (paths or name not in TABLE["paths"]["skip"]):
                yield path, name


@functools.cache
def group_of(name, kind):
    top = name.split("/")[0]
    if kind == "message" and top in ("include", "src", "backends"):
        return "messages"
    return GROUPS.get(top, "docs")


@functools.cache
def instead_of(identifier):
    """Returns the replacement of the first flagged word of an identifier, or None."""
    words = re.findall(r"[A-Z]?[a-z]+", identifier)
    return next((instead for word in words for flagged, instead in IDENTIFIERS.items()
                 if flagged.fullmatch(word.lower())), None)


def flagged_identifiers(text):
    """Returns the lines of the identifiers of C++ code that have a flagged word, and replacements.
    """
    found = {}
    for match in re.finditer(r"\b[A-Za-z_]\w*", CPP_TOKEN.sub(mask, text)):
        if match[0] not in found and (instead := instead_of(match[0])):
            found[match[0]] = (text.count("\n", 0, match.start()) + 1, instead)
    return found


def identifier_counts():
    """The number of flagged identifiers of each group. An identifier counts once in each file."""
    result = collections.Counter()
    for path, name in files():
        if path.suffix in CPP:
            result[group_of(name, "comment")] += len(flagged_identifiers(path.read_text()))
    return result


def counts(paths=()):
    """[sentences, flagged sentences] of each group, and of each folder of a group."""
    result = collections.defaultdict(lambda: [0, 0])
    for path, name in files(paths):
        folder = "/".join(name.split("/")[:-1][:3 if name.startswith("src/compile/") else 2]) or "."
        for text in texts(path, name):
            total, found = check(text)
            for key in (group := group_of(name, text.kind)), f"{group:<9} {folder}":
                result[key][0] += total
                result[key][1] += len(found)
    return result


def update():
    sentences = {group: flagged for group, (_, flagged) in counts().items() if " " not in group}
    text = TABLE_FILE.read_text()
    for table, actual in ("budgets", sentences), ("identifier_budgets", identifier_counts()):
        lines = [f"{group} = {min(flagged, TABLE[table].get(group, flagged))}\n"
                 for group, flagged in sorted(actual.items())]
        text = re.sub(rf"(?m)^\[{table}\]\n(\w+ = \d+\n)*", f"[{table}]\n" + "".join(lines), text)
    TABLE_FILE.write_text(text)


def print_stats(paths):
    print(f"{'group and folder':<40}{'sentences':>10}{'flagged':>9}{'share':>8}")
    for name, (total, flagged) in sorted(counts(paths).items()):
        print(f"{name:<40}{total:>10}{flagged:>9}{100 * flagged / max(total, 1):>7.1f}%")


def print_flags(paths):
    for path, name in files(paths):
        for flag in sorted(flag for text in texts(path, name) for flag in check(text)[1]):
            print(f"{name}:{flag.line}: {flag.words}\n    {flag.sentence}")
        if path.suffix in CPP:
            found = flagged_identifiers(path.read_text())
            for identifier, (line, instead) in sorted(found.items(), key=lambda item: item[1]):
                print(f"{name}:{line}: identifier {identifier} -> {instead}")


class Words(unittest.TestCase):
    def test_groups_stay_within_their_budgets(self):
        actual = counts()
        for group, budget in TABLE["budgets"].items():
            with self.subTest(group):
                flagged, hint = (actual[group][1],
                                 "run tests/words_test.py with --list PATH, or with --update")
                self.assertLessEqual(flagged, budget, hint)
                self.assertGreaterEqual(flagged, budget - budget // 20 - 5, hint)

    def test_groups_stay_within_their_budgets_of_identifiers(self):
        actual = identifier_counts()
        for group, budget in TABLE["identifier_budgets"].items():
            with self.subTest(group):
                hint = "run tests/words_test.py with --list PATH, or with --update"
                self.assertLessEqual(actual[group], budget, hint)
                self.assertGreaterEqual(actual[group], budget - budget // 20 - 5, hint)

    def test_words_of_identifiers_are_flagged(self):
        code = 'int kWholeRows = whole_; // whole\nf("whole", wholesale, rows);'
        self.assertEqual(sorted(flagged_identifiers(code)), ["kWholeRows", "whole_"])

    def test_comments_and_messages_are_read(self):
        code = ('int a;  // bytes per device\n// a sentence on\n// two lines\n'
                'fail("jit", "no mesh is in scope "\n     "here");')
        found = [(text.line, text.kind, text.words)
                 for text in code_texts(code, CPP_TOKEN, message)]
        self.assertEqual(found, [(1, "comment", " bytes per device"),
                                 (2, "comment", " a sentence on\n two lines"),
                                 (4, "message", "no mesh is in scope \nhere")])

    def test_docstrings_of_scripts_without_an_ending_are_read(self):
        found = [text.words for text in texts(ROOT / "tools/figures", "tools/figures")
                 if (text.line, text.kind) == (2, "comment")]
        self.assertEqual(found, ["Draws the pictures of the documentation, docs/images/*.svg."])

    def test_private_words_are_flagged(self):
        for sentence in TABLE["examples"]["flagged"]:
            self.assertEqual(len(check(Text(1, "prose", sentence))[1]), 1, sentence)

    def test_normal_english_is_not_flagged(self):
        for sentence in TABLE["examples"]["passed"]:
            self.assertEqual(check(Text(1, "prose", sentence))[1], [], sentence)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False, epilog="Other arguments are those of `python3 -m unittest`: -v prints "
                                   "each test; Words.NAME runs one.")
    parser.add_argument("--list", nargs="*", metavar="PATH",
                        help="print file:line, the flagged words with replacements, and the"
                             " sentence, for these files and folders; default: all")
    parser.add_argument("--stats", nargs="*", metavar="PATH",
                        help="print counts and shares by group and folder; default: all files")
    parser.add_argument("--update", action="store_true",
                        help="lower the budgets in words.toml to the current counts")
    options, arguments = parser.parse_known_args()
    if options.list is not None:
        print_flags(options.list)
    elif options.stats is not None:
        print_stats(options.stats)
    elif options.update:
        update()
    else:
        unittest.main(argv=[sys.argv[0], *arguments])


if __name__ == "__main__":
    main()
