#!/usr/bin/env python3
"""Writes the differences of the classes of characters of the package `tokenizers` from those of
PCRE2 with Unicode 14, as src/io/tokenizer/unicode_changes.cpp, and cases for the tests.

    PYTHON tools/unicode_changes.py

PYTHON has the package. The library of PCRE2 must have the tables of Unicode 14 (10.40 to 10.42).
"""
import argparse
import ctypes
import functools
import json
import pathlib
import random
import subprocess
import textwrap

if __name__ == "__main__":   # --help needs no package
    argparse.ArgumentParser(description=__doc__,
                            formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

from tokenizers import Regex, Tokenizer, pre_tokenizers   # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHANGES = ROOT / "src/io/tokenizer/unicode_changes.cpp"
GOLDEN = ROOT / "tests/golden/tokenizer"
# All characters, but for planes that are reserved or for private use.
TEXT = "".join(map(chr, (*range(0xd800), *range(0xf900, 0x20000), *range(0x2a6d0, 0x2a6f0),
                         *range(0x2b730, 0x2b750), *range(0x2b810, 0x2b830),
                         *range(0x2cea0, 0x2ceb8), *range(0x2ebd0, 0x2ee70),
                         *range(0x2f7f0, 0x2fa30), *range(0x2fff0, 0x30010),
                         *range(0x31340, 0x323c0), *range(0xe0000, 0xe01f8))))
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf "
              "Co").split()
BINARY = "Alphabetic Uppercase Lowercase Emoji Emoji_Presentation Extended_Pictographic".split()
SCRIPTS = """
    Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali
    Bhaiksuki Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian
    Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret
    Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Garay
    Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul
    Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi
    Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kawi Kayah_Li Kharoshthi
    Khitan_Small_Script Khmer Khojki Khudawadi Kirat_Rai Lao Latin Lepcha Limbu Linear_A Linear_B
    Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi
    Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian
    Mro Multani Myanmar Nabataean Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu
    Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Ol_Onal Old_Hungarian Old_Italic Old_North_Arabian
    Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya
    Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan
    Saurashtra Sharada Shavian Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese
    Sunuwar Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut
    Telugu Thaana Thai Tibetan Tifinagh Tirhuta Todhri Toto Tulu_Tigalari Ugaritic Vai Vithkuqi
    Wancho Warang_Citi Yezidi Yi Zanabazar_Square""".split()
# The patterns of the test.
PATTERNS = [
    *(rf"\p{{{name}}}" for name in (*CATEGORIES, *"LMNPSZC", "LC", *BINARY, *SCRIPTS)),
    r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\h", r"\H", r"[\w]", r"[^\w]", r"[\W]", r"[\D\d]",
    r"[^\S]", r"[^\s\p{L}\p{N}]", r"[\P{L}]", r"[^\P{L}]", r"[^\P{M}a]", r"[\p{Lu}\p{Lt}\p{Lo}]",
    r"[\p{L}&&[^\p{Han}]]", r"[^\p{L}&&\P{Lu}]", r"[a-f[\p{Han}\d]]", r"\P{C}", r"[^\p{C}\p{Z}]",
    r"\p{^S}", r"\P{^S}", r"[[:alpha:]]", r"[[:^alpha:]]", r"[[:punct:]]", r"[[:digit:]]",
    r"[[:upper:]]", r"[[:lower:]]", r"[[:space:]]", r"[[:alnum:]]", r"[[:word:]]", r"[[:cntrl:]]",
    r"[[:blank:]]", r"[[:xdigit:]]", r"\p{Uppercase_Letter}", r"\p{other symbol}", r"\p{han}"]
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
# Patterns of published tokenizers.
SPLITS = {
    "cases": [rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{CONTRACTIONS}?|"
              rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{CONTRACTIONS}?|"
              rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"],
    "symbols": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
                rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"],
    "han": [rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[{LOWER}{UPPER}&&[^\p{{Han}}]]+|\p{{N}}{{1,3}}+|"
            rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"],
    "words": [r"\b\w+\b|[\W_]|\d"]}


def removed(pre_tokenizer):
    """Returns the ranges of characters that a pre-tokenizer with the behavior `removed` removes."""
    out, last = [], 0
    for _, (begin, end) in pre_tokenizer.pre_tokenize_str(TEXT):
        out.append((last, begin))
        last = end
    out.append((last, len(TEXT)))
    return joined(ord(TEXT[i]) for begin, end in out for i in range(begin, end))


def of_package(pattern):
    return removed(pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "removed"))


def of_digits():
    """Returns the digits of the pre-tokenizer, whose behavior is not an option."""
    text = "".join(f"a{c}b" for c in TEXT)
    pieces = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str(text)
    return joined(ord(piece) for piece, (begin, _) in pieces if len(piece) == 1 and begin % 3 == 1)


def joined(points):
    """Returns characters in ascending order as ranges (first, last)."""
    out = []
    for c in points:
        if out and out[-1][1] + 1 == c:
            out[-1][1] = c
        else:
            out.append([c, c])
    return [tuple(r) for r in out]


def points(ranges):
    return {c for first, last in ranges for c in range(first, last + 1)}


class Pcre2:
    """The library of 32-bit characters."""

    def __init__(self):
        self.lib = ctypes.CDLL("libpcre2-32.so.0")
        for name in "compile", "match_data_create", "get_ovector_pointer":
            getattr(self.lib, f"pcre2_{name}_32").restype = ctypes.c_void_p
        version = ctypes.create_string_buffer(64 * 4)
        self.lib.pcre2_config_32(10, version)   # PCRE2_CONFIG_UNICODE_VERSION
        if version.raw.decode("utf-32-le").split("\0")[0] != "14.0.0":
            raise SystemExit("PCRE2 must have the tables of Unicode 14")

    def of(self, pattern):
        """Returns the ranges of characters that a pattern matches, or None if it is invalid."""
        code_units = pattern.encode("utf-32-le")
        error, at = ctypes.c_int(), ctypes.c_size_t()
        utf_ucp = 0x00080000 | 0x00020000
        code = self.lib.pcre2_compile_32(code_units, ctypes.c_size_t(len(pattern)), utf_ucp,
                                         ctypes.byref(error), ctypes.byref(at), None)
        if not code:
            return None
        code = ctypes.c_void_p(code)
        data = ctypes.c_void_p(self.lib.pcre2_match_data_create_32(1, None))
        ends = ctypes.cast(self.lib.pcre2_get_ovector_pointer_32(data),
                           ctypes.POINTER(ctypes.c_size_t))
        text, start, out = TEXT.encode("utf-32-le"), 0, []
        while self.lib.pcre2_match_32(code, text, ctypes.c_size_t(len(TEXT)),
                                      ctypes.c_size_t(start), 0x40000000, data, None) > 0:
            start = ends[1]
            out += map(ord, TEXT[ends[0]:ends[1]])
        return joined(out)


def in_table(ranges):
    return " ".join(f"{a:x}" if a == b else f"{a:x}-{b:x}" for a, b in ranges)


@functools.cache
def differences():
    """Returns names of classes, and the characters that each has in the package only. The name has
    the prefix - for characters that it has in PCRE2 only."""
    library, out = Pcre2(), []
    for name in sorted(CATEGORIES + BINARY + SCRIPTS):
        here = points(of_package(rf"\p{{{name}}}"))
        prefix = "sc:" if name in SCRIPTS else ""
        there = points(library.of(rf"\p{{{prefix}{name.replace('_', '')}}}+") or [])
        key = name.replace("_", "").lower()
        out.append((key, joined(sorted(here - there))))
        out.append(("-" + key, joined(sorted(there - here))))
    category = points(of_package(r"\p{P}"))
    here = points(removed(pre_tokenizers.Punctuation("removed")))
    here -= {c for c in here if c < 0x80}
    out.append(("punctuation", joined(sorted(here - category))))
    out.append(("-punctuation", joined(sorted(c for c in category - here if c >= 0x80))))
    out.append(("digits", joined(sorted(points(of_digits()) - points(of_package(r"\p{N}"))))))
    return [row for row in out if row[1]]


def write_changes():
    rows = []
    for key, ranges in differences():
        text = textwrap.wrap(in_table(ranges), 80)
        strings = " ".join(json.dumps(line + " " * (line is not text[-1])) for line in text)
        rows.append(f'{{"{key}", {strings}}},')
    CHANGES.write_text(
        "// Written by tools/unicode_changes.py. The characters of properties, which the package\n"
        "// `tokenizers` has in addition to those of Unicode 14; with the prefix -, those that it\n"
        "// lacks. The last three rows belong to the pre-tokenizers Punctuation and Digits.\n"
        '#include "io/tokenizer/unicode_changes.h"\n\n'
        "namespace haliax {\n\nstd::span<const UnicodeChange> unicode_changes() {\n"
        "static constexpr UnicodeChange changes[] = {\n" + "\n".join(rows) + "\n};\n"
        "return changes;\n}\n\n}  // namespace haliax\n")
    subprocess.run(["clang-format", "-i", CHANGES], check=True)


def digest_of(characters):
    """Returns FNV-1a of characters instead of bytes."""
    out = 2166136261
    for c in characters:
        out = (out ^ c) * 16777619 & 0xffffffff
    return out


def write_classes():
    """Writes the characters of the version of Unicode of the package, and for each pattern and
    pre-tokenizer a digest of those that it matches."""
    known = of_package(r"[^\p{Cn}\p{Co}]")
    members = {p: of_package(p) for p in PATTERNS}
    members["Punctuation"] = removed(pre_tokenizers.Punctuation("removed"))
    members["Digits"] = of_digits()
    all_known = points(known)
    digests = {name: digest_of(sorted(points(ranges) & all_known))
               for name, ranges in members.items()}
    (GOLDEN / "classes.json").write_text(
        json.dumps({"known": in_table(known), "digests": digests}, indent=0) + "\n")


def odd_texts():
    """Returns strings with characters of Unicode 15 and newer, and others of a special class."""
    draw = random.Random(3)
    changed = [r for _, ranges in differences() for r in ranges]
    special = "\u00b2\u00bc\u0085\u00a0\u200c\u200d\u180e\u2028\u24b6\u017f\u0130\u203f"
    plain = ["ab", "X", " x", "12345", "'S", "\n ", "  ", ".", "-", "中文", "a\u0301"]

    def part():
        kind = draw.random()
        if kind < 0.5:
            return draw.choice(plain if kind < 0.4 else special)
        return chr(draw.randint(*draw.choice(changed)))
    return ["".join(part() for _ in range(16)) for _ in range(24)]


def write_cases():
    """Writes the ids of tokenizers of make.py, and of one of them with other pre-tokenizers."""
    texts, cases = odd_texts(), {}
    for name in "gpt2", "llama3", "metaspace":
        cases[name] = {"base": name}
    steps = {name: [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
             for name, patterns in SPLITS.items()}
    steps["parts"] = [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation(),
                      pre_tokenizers.Digits(individual_digits=True)]
    for name, parts in steps.items():
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer = Tokenizer.from_file(str(GOLDEN / "gpt2.json"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, level])
        cases[name] = {"base": "gpt2",
                       "pre_tokenizer": json.loads(tokenizer.to_str())["pre_tokenizer"]}
    for case in cases.values():
        spec = json.loads((GOLDEN / f"{case['base']}.json").read_text())
        spec["pre_tokenizer"] = case.get("pre_tokenizer", spec["pre_tokenizer"])
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        case["ids"] = [tokenizer.encode(text).ids for text in texts]
    (GOLDEN / "unicode_cases.json").write_text(
        json.dumps({"texts": texts, "tokenizers": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_changes()
    write_classes()
    write_cases()
