// Tokenizers: the ids of the package `tokenizers` for small tokenizers of each kind
// (tests/golden/tokenizer/make.py), and errors.
#include "haliax/tokenizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "haliax/haliax.h"
#include "io/tokenizer/pattern.h"
#include "io/tokenizer/unicode.h"
#include "tests/io/checks.h"
#include "tests/support/folder.h"
#include "tests/support/golden_dir.h"

using namespace haliax;

namespace {

using Json = nlohmann::json;

Json cases() { return Json::parse(std::ifstream(golden_dir() + "/tokenizer/cases.json")); }
Json spec_of(const std::string& name) {
  return Json::parse(std::ifstream(golden_dir() + "/tokenizer/" + name + ".json"));
}
// FNV-1a of characters instead of bytes.
std::uint32_t digest_of(const std::vector<char32_t>& characters) {
  std::uint32_t out = 2166136261;
  for (auto c : characters) out = (out ^ std::uint32_t(c)) * 16777619;
  return out;
}

}  // namespace

TEST_CASE("tokenizer: ids and text equal those of the package tokenizers") {
  const auto all = cases();
  for (auto& [name, expected] : all["tokenizers"].items()) {
    CAPTURE(name);
    const auto tokenizer = Tokenizer::load(golden_dir() + "/tokenizer/" + name + ".json");
    for (std::size_t i = 0; i < all["texts"].size(); ++i) {
      const std::string text = all["texts"][i];
      CAPTURE(text);
      const auto ids = tokenizer.encode(text);
      CHECK(ids == expected["ids"][i].get<std::vector<int>>());
      CHECK(tokenizer.decode(ids) == expected["decoded"][i].get<std::string>());
    }
  }
}

TEST_CASE("tokenizer: decode returns every text that a byte-level vocabulary encodes") {
  const auto all = cases();
  const auto tokenizer = Tokenizer::load(golden_dir() + "/tokenizer/gpt2.json");
  for (const std::string text : all["texts"])
    CHECK(tokenizer.decode(tokenizer.encode(text), {.skip_special_tokens = false}) == text);
  CHECK(tokenizer.decode(tokenizer.encode("a\xff\xe2\x82z")) == "a\xef\xbf\xbd\xef\xbf\xbdz");
}

TEST_CASE("tokenizer: special tokens are found, added and skipped") {
  const auto tokenizer = Tokenizer::load(golden_dir() + "/tokenizer/llama3.json");
  const int start = *tokenizer.id_of("<|begin_of_text|>"), end = *tokenizer.id_of("<|eot_id|>");
  const auto ids = tokenizer.encode("Hello<|eot_id|>");
  CHECK(ids.front() == start);
  CHECK(ids.back() == end);
  CHECK(tokenizer.encode("Hello", {.add_special_tokens = false}).front() != start);
  CHECK(tokenizer.decode(ids) == "Hello");
  CHECK(tokenizer.decode(ids, {.skip_special_tokens = false}) ==
        "<|begin_of_text|>Hello<|eot_id|>");
  CHECK(tokenizer.is_special(end));
  CHECK(!tokenizer.is_special(ids[1]));
  CHECK(tokenizer.token_of(end) == "<|eot_id|>");
  CHECK(!tokenizer.token_of(-1));
  CHECK(!tokenizer.id_of("no such token"));
  CHECK(tokenizer.vocab_size() == 700);
  CHECK(tokenizer.encode("", {.add_special_tokens = false}).empty());
  CHECK(tokenizer.decode({}) == "");
  CHECK(tokenizer.decode({-1, 100000}) == "");
}

TEST_CASE("tokenizer: classes of all characters equal those of the package") {
  const auto classes = Json::parse(std::ifstream(golden_dir() + "/tokenizer/classes.json"));
  std::vector<char32_t> known;
  std::istringstream ranges(classes["known"].get<std::string>());
  for (std::string range; ranges >> range;) {
    const auto hyphen = range.find('-');
    const auto first = std::stoul(range, nullptr, 16);
    const auto last =
        hyphen == range.npos ? first : std::stoul(range.substr(hyphen + 1), nullptr, 16);
    for (auto c = first; c <= last; ++c) known.push_back(char32_t(c));
  }
  std::string text;
  for (auto c : known) append_character(text, c);
  const auto matched = [&](const std::string& pattern) {
    std::vector<char32_t> out;
    const auto compiled = Pattern::regex("(?:" + pattern + ")+");
    Pattern::Matches matches(compiled, text);
    for (Pattern::Match m; matches.next(m);)
      for (auto at = m.begin; at < m.end;) out.push_back(next_character(text, at));
    return out;
  };
  const auto selected = [&](bool (*has)(char32_t)) {
    std::vector<char32_t> out;
    std::copy_if(known.begin(), known.end(), std::back_inserter(out), has);
    return out;
  };
  for (auto& [name, expected] : classes["digests"].items()) {
    CAPTURE(name);
    const auto members = name == "Punctuation" ? selected(is_punctuation)
                         : name == "Digits"    ? selected(is_number)
                                               : matched(name);
    CHECK(digest_of(members) == expected.get<std::uint32_t>());
  }
}

TEST_CASE("tokenizer: ids of new characters equal those of the package") {
  const auto all = Json::parse(std::ifstream(golden_dir() + "/tokenizer/unicode_cases.json"));
  for (auto& [name, expected] : all["tokenizers"].items()) {
    CAPTURE(name);
    auto spec = spec_of(expected["base"]);
    if (expected.contains("pre_tokenizer")) spec["pre_tokenizer"] = expected["pre_tokenizer"];
    const auto tokenizer = Tokenizer::parse(spec.dump());
    for (std::size_t i = 0; i < all["texts"].size(); ++i)
      CHECK(tokenizer.encode(all["texts"][i].get<std::string>()) ==
            expected["ids"][i].get<std::vector<int>>());
  }
}

TEST_CASE("tokenizer: patterns have the syntax of Oniguruma") {
  const auto matches = [](const char* pattern, std::string_view text) {
    std::vector<std::string> out;
    const auto compiled = Pattern::regex(pattern);
    Pattern::Matches found(compiled, text);
    for (Pattern::Match m; found.next(m);) out.emplace_back(text.substr(m.begin, m.end - m.begin));
    return out;
  };
  using Texts = std::vector<std::string>;
  CHECK(matches("[\\p{L}&&[^a-c]d]+", "bdabe") == Texts{"d", "e"});
  CHECK(matches("[^a[bc]]+", "xabcx") == Texts{"x", "x"});
  CHECK(matches("\\p{N}{1,3}+", "12345 6") == Texts{"12345", "6"});  // not possessive
  CHECK(matches("(?:ab){,2}c", "ababc") == Texts{"ababc"});
  CHECK(matches("(?m:a.)", "a\n") == Texts{"a\n"});
  CHECK(matches("\\h+", "xfF0g") == Texts{"fF0"});
  CHECK(matches("\\u4e2d", "\u4e2d") == Texts{"\u4e2d"});
  CHECK(matches("[\\s-]+", "a - b") == Texts{" - "});
  CHECK(matches("[]a]+", "a]b") == Texts{"a]"});
  CHECK(matches("\\pL", "pL") == Texts{"pL"});
  CHECK(has(message([&] { matches("[a", "a"); }), "the pattern [a is malformed: ] is missing"));
  CHECK(has(message([&] { matches("\\p{Klingon}", "a"); }), "has the unknown property Klingon"));
}

TEST_CASE("tokenizer: threads share a tokenizer") {
  const auto tokenizer = Tokenizer::load(golden_dir() + "/tokenizer/qwen.json");
  const auto all = cases();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < all["texts"].size(); ++i)
        wrong[std::size_t(t)] += tokenizer.encode(all["texts"][i].get<std::string>()) !=
                                 all["tokenizers"]["qwen"]["ids"][i].get<std::vector<int>>();
    });
  for (auto& t : threads) t.join();
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("tokenizer: long runs of one character take linear time") {
  const auto tokenizer = Tokenizer::load(golden_dir() + "/tokenizer/llama2.json");
  const std::string text(1 << 20, 'a');
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
}

TEST_CASE("tokenizer: unsupported kinds are named") {
  const auto changed = [](const char* part, const char* value) {
    auto spec = spec_of("gpt2");
    spec[part] = Json::parse(value);
    return message([&] { Tokenizer::parse(spec.dump()); });
  };
  CHECK(has(changed("model", R"({"type": "Unigram", "vocab": []})"),
            "[Tokenizer] the model Unigram is not supported; supported is BPE"));
  CHECK(has(changed("normalizer", R"({"type": "Precompiled"})"),
            "the normalizer Precompiled is not supported; supported are Sequence, NFC"));
  CHECK(has(changed("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [
              {"type": "UnicodeScripts"}]})"),
            "the pre-tokenizer UnicodeScripts is not supported"));
  CHECK(has(changed("post_processor", R"({"type": "New"})"),
            "the post-processor New is not supported"));
  CHECK(has(changed("decoder", R"({"type": "CTC"})"), "the decoder CTC is not supported"));
  CHECK(has(changed("decoder", "{}"), "the decoder {} has no type"));
  CHECK(has(changed("pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(a"},
                     "behavior": "Isolated", "invert": false})"),
            "the pattern (a is not supported: missing closing parenthesis"));
  CHECK(has(changed("model", R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]})"),
            "the merge of a and b is not in the vocabulary"));
  CHECK(has(changed("model", R"({"type": "BPE", "vocab": {"a": -1}, "merges": []})"),
            "the token a has the id -1"));
  CHECK(has(changed("model", R"({"type": "BPE", "vocab": {"a": 0}})"), "is corrupt"));
}

TEST_CASE("tokenizer: missing and corrupt files raise with their path") {
  Folder folder;
  CHECK(has(message([&] { Tokenizer::load(folder.path); }), "tokenizer.json does not exist"));
  std::ofstream(folder / "tokenizer.model") << "x";
  CHECK(has(message([&] { Tokenizer::load(folder.path); }), "tokenizer.model is not read"));
  std::ofstream(folder / "tokenizer.json") << "{\"model\": ";
  CHECK(has(message([&] { Tokenizer::load(folder.path); }),
            "tokenizer.json: the tokenizer is corrupt"));
  const auto text = message([&] { Tokenizer::load(folder.path); });
  CHECK(text.find("tokenizer_test.cpp") == text.rfind("tokenizer_test.cpp"));  // one location
}
TEST_CASE("tokenizer: StripAccents removes all combining marks") {
  auto spec = spec_of("gpt2");
  spec["normalizer"] = Json::parse(R"({"type": "StripAccents"})");
  const auto tokenizer = Tokenizer::parse(spec.dump());
  // nonspacing, spacing (Devanagari) and enclosing marks
  CHECK(tokenizer.encode("e\u0301a\u093ex\u20e4") == tokenizer.encode("eax"));
  CHECK(tokenizer.encode("e\u1cf2x") == tokenizer.encode("ex"));  // a letter since Unicode 12
}
TEST_CASE("tokenizer: StripAccents retains marks that are newer than the tables of the package") {
  auto spec = spec_of("gpt2");
  spec["normalizer"] = Json::parse(R"({"type": "StripAccents"})");
  const auto tokenizer = Tokenizer::parse(spec.dump());
  CHECK(tokenizer.decode(tokenizer.encode("a\u07fdb\u0301")) == "a\u07fdb");
}
TEST_CASE("tokenizer: NFKC and Lowercase use the versions of Unicode of the package") {
  auto spec = spec_of("gpt2");
  spec["normalizer"] = Json::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "NFKC"}, {"type": "Lowercase"}]})");
  const auto tokenizer = Tokenizer::parse(spec.dump());
  const auto changed = [&](const char* text) { return tokenizer.decode(tokenizer.encode(text)); };
  CHECK(changed("\uff21\U0001e030") == "a\U0001e030");  // a modifier letter of Unicode 15
  // Its order among other marks stays as well.
  CHECK(changed("x\u0345\U0001e4ec\u0301") == "x\u0345\U0001e4ec\u0301");
  CHECK(changed("\u1c89\ua7cb\ua7dc") == "\u1c8a\u0264\u019b");  // letters of Unicode 16
  CHECK(changed("\U00010d50\U00010d65") == "\U00010d70\U00010d85");
  CHECK(changed("\ua7ce\U00016ea0\U00016eb8") == "\ua7cf\U00016ebb\U00016ed3");  // Unicode 17
}
TEST_CASE("tokenizer: patterns match the marks of Unicode 15 and 16") {
  auto spec = spec_of("gpt2");
  const auto split_by = [&](const char* pattern) {
    spec["pre_tokenizer"] = Json::parse(R"({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "behavior": "Removed", "invert": false, "pattern": {"Regex": ""}},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
    const auto tokenizer = Tokenizer::parse(spec.dump());
    return tokenizer.decode(tokenizer.encode("a \u0cf3\U0001e4ec\u0897."));
  };
  CHECK(split_by("\\p{M}+") == "a .");
  CHECK(split_by("[\\p{M}]+") == "a .");
  CHECK(split_by("\\w+") == " .");
  CHECK(split_by("\\P{M}+") == "\u0cf3\U0001e4ec\u0897");
}
TEST_CASE("tokenizer: a normalized added token is decoded as it is found in the text") {
  auto spec = spec_of("gpt2");
  spec["normalizer"] = Json::parse(R"({"type": "Lowercase"})");
  auto add = [&](const char* text, int id, bool normalized, bool special) {
    spec["added_tokens"].push_back({{"id", id},
                                    {"content", text},
                                    {"normalized", normalized},
                                    {"special", special},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false}});
  };
  const int first = Tokenizer::parse(spec.dump()).vocab_size();
  add("Foo", first, true, false);
  add("Bar", first + 1, false, false);
  add("Baz", first + 2, true, true);
  const auto tokenizer = Tokenizer::parse(spec.dump());
  CHECK(tokenizer.encode("FOOBar") == std::vector{first, first + 1});
  CHECK(tokenizer.decode({first, first + 1}) == "fooBar");
  CHECK(tokenizer.token_of(first) == "foo");
  CHECK(tokenizer.id_of("Foo") == first);
  CHECK(!tokenizer.id_of("foo"));
  // The package skips special tokens by their original spelling.
  CHECK(tokenizer.is_special(first + 2));
  CHECK(tokenizer.decode({first + 2}) == "baz");
}
