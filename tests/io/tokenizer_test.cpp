// Tokenizers: the ids of the package `tokenizers` for small tokenizers of each kind
// (tests/golden/tokenizer/make.py), and errors.
#include "haliax/tokenizer.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "haliax/haliax.h"
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
