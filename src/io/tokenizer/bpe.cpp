// The vocabulary and the merges of a byte-pair tokenizer, and the merge loop.
#include "io/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "graph/fail.h"
#include "io/file.h"
#include "io/tokenizer/steps.h"
#include "io/tokenizer/unicode.h"

namespace haliax {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, a space in SentencePiece
constexpr int kMostIds = 1 << 26;

// Returns the start of the next word: a mark that follows another character. Returns the size of
// the text if there is none.
std::size_t end_of_word(std::string_view text) {
  for (std::size_t at = 1; at < text.size(); ++at) {
    at = text.find(kSpaceMark, at);
    if (at == text.npos) break;
    if (at < kSpaceMark.size() ||
        text.substr(at - kSpaceMark.size(), kSpaceMark.size()) != kSpaceMark)
      return at;
  }
  return text.size();
}
std::string text_at(const TokenizerJson& model, const char* key) {
  return model.contains(key) && !model[key].is_null() ? model[key].get<std::string>() : "";
}
bool flag_at(const TokenizerJson& model, const char* key) {
  return model.contains(key) && !model[key].is_null() && model[key].get<bool>();
}

}  // namespace

Bpe::Bpe(const TokenizerJson& model) {
  // files of before 2021 have no type
  const bool is_bpe = model.contains("type") ? model["type"] == "BPE" : model.contains("merges");
  if (!is_bpe)
    fail("Tokenizer", "the model {} is not supported; supported is BPE",
         printable(model.value("type", "without a type")));
  if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0)
    fail("Tokenizer", "a dropout of {} is not supported; supported is none",
         model["dropout"].dump());
  prefix_ = text_at(model, "continuing_subword_prefix");
  suffix_ = text_at(model, "end_of_word_suffix");
  unknown_ = text_at(model, "unk_token");
  byte_fallback_ = flag_at(model, "byte_fallback");
  fuse_unknown_ = flag_at(model, "fuse_unk");
  ignore_merges_ = flag_at(model, "ignore_merges");
  read_vocabulary(model.at("vocab"));
  const bool merges_stay_in_words = read_merges(model.at("merges"));
  if (!unknown_.empty() && find(unknown_) < 0)
    fail("Tokenizer", "the unk_token {} is not in the vocabulary", printable(unknown_));
  unknown_id_ = unknown_.empty() ? -1 : find(unknown_);
  for (int byte = 0; byte < 256; ++byte) {
    bytes_[byte] = find(fmt::format("<0x{:02X}>", byte));
    has_all_bytes_ = has_all_bytes_ && bytes_[byte] >= 0;
  }
  // The words of a piece can be tokenized one by one if no merge crosses the start of a word, no
  // unknown token spans two words (each byte has a token), and nothing applies to the entire piece.
  words_are_separate_ = merges_stay_in_words && byte_fallback_ && has_all_bytes_ &&
                        !ignore_merges_ && prefix_.empty() && suffix_.empty();
}

void Bpe::read_vocabulary(const TokenizerJson& vocabulary) {
  for (auto& [token, value] : vocabulary.items()) {
    const auto id = value.get<std::int64_t>();
    if (id < 0 || id >= kMostIds)
      fail("Tokenizer", "the token {} has the id {}, which is out of range", printable(token), id);
    if (std::size_t(id) >= tokens_.size()) {
      tokens_.resize(std::size_t(id) + 1);
      used_.resize(std::size_t(id) + 1);
    }
    tokens_[std::size_t(id)] = token;
    used_[std::size_t(id)] = true;
    ids_[token] = int(id);
  }
}
bool Bpe::read_merges(const TokenizerJson& list) {
  merges_.resize(std::bit_ceil(list.size() * 2 + 2));
  std::uint32_t rank = 0;
  bool stay_in_words = true;
  for (auto& entry : list) {
    std::string left, right;
    if (entry.is_array() && entry.size() == 2) {
      left = entry[0];
      right = entry[1];
    } else {
      const std::string text = entry;
      const auto space = text.find(' ');
      left = text.substr(0, space);
      right = space == text.npos ? "" : text.substr(space + 1);
    }
    const int a = find(left), b = find(right);
    if (right.size() < prefix_.size()) fail("Tokenizer", "a merge has no prefix {}", prefix_);
    const auto merged = left + right.substr(prefix_.size());
    const int id = find(merged);
    if (a < 0 || b < 0 || id < 0)
      fail("Tokenizer", "the merge of {} and {} is not in the vocabulary", printable(left),
           printable(right));
    merges_[slot_of(pair_of(a, b))] = {pair_of(a, b), rank++, id};
    stay_in_words = stay_in_words && end_of_word(merged) == merged.size();
  }
  return stay_in_words;
}

std::size_t Bpe::slot_of(std::uint64_t pair) const {
  const auto mask = merges_.size() - 1;
  auto slot = std::size_t((pair * 0x9E3779B97F4A7C15u) >> 20) & mask;
  while (merges_[slot].pair != pair && merges_[slot].pair != kNoPair) slot = (slot + 1) & mask;
  return slot;
}
const Bpe::Merge* Bpe::merge(int a, int b) const {
  auto& m = merges_[slot_of(pair_of(a, b))];
  return m.pair == kNoPair ? nullptr : &m;
}
int Bpe::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}
const std::string* Bpe::token(int id) const {
  return id >= 0 && id < size() && used_[std::size_t(id)] ? &tokens_[std::size_t(id)] : nullptr;
}

void Bpe::tokenize(std::string_view piece, bool map_bytes, BpeMemory& memory,
                   std::vector<int>& to) const {
  if (map_bytes || !words_are_separate_) return tokenize_words(piece, map_bytes, memory, to);
  while (!piece.empty()) {
    const auto end = end_of_word(piece);
    tokenize_words(piece.substr(0, end), false, memory, to);
    piece.remove_prefix(end);
  }
}
void Bpe::tokenize_words(std::string_view piece, bool map_bytes, BpeMemory& memory,
                         std::vector<int>& to) const {
  if (piece.empty()) return;
  const bool caches = piece.size() <= BpeMemory::kWordBytes;
  if (caches)
    if (const auto known = memory.words.find(piece); known != memory.words.end()) {
      to.insert(to.end(), known->second.begin(), known->second.end());
      return;
    }
  const auto mark = std::ptrdiff_t(to.size());
  if (map_bytes)
    tokenize_word(bytes_as_characters(piece), memory, to);
  else
    tokenize_word(piece, memory, to);
  if (!caches) return;
  if (memory.words.size() == BpeMemory::kWords) memory.words.clear();
  memory.words.emplace(piece, std::vector<int>(to.begin() + mark, to.end()));
}
void Bpe::tokenize_word(std::string_view word, BpeMemory& memory, std::vector<int>& to) const {
  if (ignore_merges_)
    if (const int id = find(word); id >= 0) return to.push_back(id);
  start_symbols(word, memory);
  merge_symbols(memory);
  for (auto& s : memory.symbols)
    if (!s.merged) to.push_back(s.id);
}

// One symbol per character. A character that is not in the vocabulary is its bytes if they have
// tokens, otherwise the unknown token; without one, it is skipped.
void Bpe::start_symbols(std::string_view word, BpeMemory& memory) const {
  auto& symbols = memory.symbols;
  symbols.clear();
  auto add = [&](int id) {
    const auto n = int(symbols.size());
    symbols.push_back({id, n - 1, n + 1});
  };
  bool pending = false;  // an unknown token is added before the next known one
  std::string affixed;
  for (std::size_t at = 0; at < word.size();) {
    const auto length = utf8_length(word[at]);
    auto character = word.substr(at, length);
    const bool first = at == 0, last = at + length == word.size();
    at += length;
    if ((!first && !prefix_.empty()) || (last && !suffix_.empty())) {
      affixed = (first ? "" : prefix_) + std::string(character) + (last ? suffix_ : "");
      character = affixed;
    }
    if (const int id = find(character); id >= 0) {
      if (std::exchange(pending, false)) add(unknown_id_);
      add(id);
      continue;
    }
    if (byte_fallback_) {
      const auto token = [&](char b) { return bytes_[static_cast<unsigned char>(b)]; };
      if (std::all_of(character.begin(), character.end(), [&](char b) { return token(b) >= 0; })) {
        for (char b : character) add(token(b));
        continue;
      }
    }
    if (unknown_id_ < 0) continue;
    if (pending && !fuse_unknown_) add(unknown_id_);
    pending = true;
  }
  if (pending) add(unknown_id_);
  if (!symbols.empty()) symbols.back().next = -1;
}

// The heap holds the pairs that can merge, lowest rank first, then leftmost. A pair whose symbols
// have changed since is skipped at the top of the heap.
void Bpe::merge_symbols(BpeMemory& memory) const {
  auto& symbols = memory.symbols;
  auto& heap = memory.heap;
  const auto later = [](auto& x, auto& y) {
    return std::pair(x.rank, x.at) > std::pair(y.rank, y.at);
  };
  heap.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
    if (auto* m = merge(symbols[i].id, symbols[i + 1].id)) heap.push_back({m->rank, int(i), m->id});
  std::make_heap(heap.begin(), heap.end(), later);
  const auto add = [&](int left) {
    auto& s = symbols[std::size_t(left)];
    if (auto* m = merge(s.id, symbols[std::size_t(s.next)].id)) {
      heap.push_back({m->rank, left, m->id});
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const auto top = heap.back();
    heap.pop_back();
    auto& left = symbols[std::size_t(top.at)];
    if (left.merged || left.next < 0) continue;
    auto& right = symbols[std::size_t(left.next)];
    if (auto* m = merge(left.id, right.id); !m || m->id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.merged = true;
    if (right.next >= 0) symbols[std::size_t(right.next)].previous = top.at;
    if (left.previous >= 0) add(left.previous);
    if (left.next >= 0) add(top.at);
  }
}

}  // namespace haliax
