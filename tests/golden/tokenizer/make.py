#!/usr/bin/env python3
"""Trains small tokenizers with the package `tokenizers`, and writes them with cases to
tests/golden/tokenizer.
"""
import argparse
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests/golden/tokenizer"
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
VOCABULARY = 700


def sources():
    """Yields files of this repository, and random characters."""
    for pattern in ("docs/*/*.md", "include/haliax/*.h"):
        for file in sorted(ROOT.glob(pattern)):
            yield file.read_text()
    draw = random.Random(1)
    ranges = ((0xa0, 0x250), (0x370, 0x530), (0x4e00, 0x5000), (0x1f600, 0x1f640))
    for _ in range(300):
        yield "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(40))


def byte_level(special, model=None, normalizer=None, words=None):
    tokenizer = Tokenizer(model or models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    split = [pre_tokenizers.Split(Regex(words), "isolated")] if words else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split + [level]) if words else level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(sources(), trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special, show_progress=False))
    return tokenizer


def gpt2():
    tokenizer = byte_level(["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3():
    start = "<|begin_of_text|>"
    tokenizer = byte_level([start, "<|eot_id|>"], models.BPE(ignore_merges=True), words=WORDS)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{start} $A", special_tokens=[
            (start, tokenizer.token_to_id(start))])])
    return tokenizer


def qwen():
    words = WORDS.replace("{1,3}", "")
    tokenizer = byte_level(["<|im_start|>"], normalizer=normalizers.NFC(), words=words)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False),
                          AddedToken("naïve", normalized=True, single_word=True),
                          AddedToken("<pad>", lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


def llama2():
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                 normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.train_from_iterator(sources(), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special + octets, limit_alphabet=150,
        show_progress=False))
    spec = json.loads(tokenizer.to_str())
    spec["pre_tokenizer"] = None
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(),
                                                 normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.train_from_iterator(sources(), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=150,
        show_progress=False))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return tokenizer


KINDS = {f.__name__: f for f in (gpt2, llama3, qwen, llama2, metaspace)}


def odd_lines(count, seed):
    """Returns lines of code, spaces, added tokens and characters of all of Unicode."""
    draw = random.Random(seed)
    code = [line for text in sources() for line in text.split("\n")]
    spaces = " \t\n\r\v\f\u0085\u00a0\u1680\u180e\u2003\u200b\u200d\u2028\u3000\ufeff"
    parts = ["<|endoftext|>", "<|eot_id|>", "<s>", "</s>", "<unk>", " <pad>  x", "naïve", "xnaïve",
             "nai\u0308ve y", "<tool>", "▁▁a", "<0x0A>", "'LL ", "'ſ", "1234567", "\r\n\n", "İ"]

    def character():
        kind = draw.random()
        if kind < 0.3:
            return chr(draw.randrange(32, 127))
        if kind < 0.4:
            return draw.choice(spaces)
        limit = draw.choice((0x800, 0x3000, 0x10000, 0x20000, 0x110000))
        point = draw.randrange(0x80, limit)
        return "\ufffd" if 0xd800 <= point < 0xe000 else chr(point)

    def line(k):
        if k % 3 == 0:
            return draw.choice(code)
        if k % 3 == 1:
            return "".join(character() for _ in range(draw.randrange(40)))
        return draw.choice(code) + " " * draw.randrange(4) + draw.choice(parts) + draw.choice(code)
    return [line(k) for k in range(count)]


def write():
    GOLDEN.mkdir(exist_ok=True)
    lines = odd_lines(90, 1)
    cases = {"texts": lines, "tokenizers": {}}
    for name, train in KINDS.items():
        tokenizer = train()
        tokenizer.save(str(GOLDEN / f"{name}.json"), pretty=False)
        ids = [tokenizer.encode(text).ids for text in lines]
        cases["tokenizers"][name] = {
            "ids": ids, "decoded": [tokenizer.decode(i, skip_special_tokens=True) for i in ids]}
    (GOLDEN / "cases.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", metavar="FILE", help="write 100,000 lines with NUL after each")
    options = parser.parse_args()
    if options.lines:
        text = "".join(line.replace("\0", "") + "\0" for line in odd_lines(100_000, 2))
        pathlib.Path(options.lines).write_text(text, newline="")
    else:
        write()


if __name__ == "__main__":
    main()
