// Added tokens: the leftmost and longest match, by a trie.
#include "io/tokenizer/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "graph/fail.h"
#include "io/file.h"
#include "io/tokenizer/unicode.h"

namespace haliax {

AddedTokens::AddedTokens(const nlohmann::json& list, const Normalizer* normalizer) {
  for (auto& entry : list) {
    AddedToken t;
    t.id = entry.at("id");
    t.text = entry.at("content");
    t.special = entry.value("special", false);
    t.single_word = entry.value("single_word", false);
    t.lstrip = entry.value("lstrip", false);
    t.rstrip = entry.value("rstrip", false);
    t.normalized = entry.value("normalized", !t.special);
    if (t.id < 0) fail("Tokenizer", "the token {} has the id {}", printable(t.text), t.id);
    by_id_[t.id] = all_.size();
    by_text_[t.text] = all_.size();
    t.decoded = t.text;
    bool moved = false;
    if (t.normalized && normalizer) normalizer->apply(t.decoded, moved);
    if (!t.decoded.empty()) tries_[t.normalized].add(t.decoded, int(all_.size()));
    all_.push_back(std::move(t));
  }
}

void AddedTokens::Trie::add(std::string_view text, int added) {
  int node = 0;
  starts[static_cast<unsigned char>(text[0])] = true;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    auto& from = steps[std::size_t(node)];
    auto known = std::find_if(from.begin(), from.end(), [&](auto& s) { return s.byte == byte; });
    if (known != from.end()) {
      node = known->node;
      continue;
    }
    node = int(steps.size());
    from.push_back({byte, node});
    steps.emplace_back();
    token.push_back(-1);
  }
  token[std::size_t(node)] = added;
}
int AddedTokens::Trie::longest(std::string_view text, std::size_t& size) const {
  int node = 0, found = -1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    auto& from = steps[std::size_t(node)];
    auto next = std::find_if(from.begin(), from.end(), [&](auto& s) { return s.byte == byte; });
    if (next == from.end()) break;
    node = next->node;
    if (token[std::size_t(node)] >= 0) {
      found = token[std::size_t(node)];
      size = i + 1;
    }
  }
  return found;
}

void AddedTokens::split(std::string_view text, bool normalized, std::vector<TextPart>& to) const {
  auto& trie = tries_[normalized];
  std::size_t last = 0;  // end of the previous part
  for (std::size_t at = 0; at < text.size();) {
    std::size_t size = 1;
    const int k = trie.starts[static_cast<unsigned char>(text[at])]
                      ? trie.longest(text.substr(at), size)
                      : -1;
    if (k < 0) {
      ++at;
      continue;
    }
    auto begin = at, end = at + size;
    at = end;
    auto& t = all_[std::size_t(k)];
    if (t.single_word) {
      auto before = begin > 0 ? start_of_previous(text, begin) : 0, after = end;
      if ((begin > 0 && is_word(next_character(text, before))) ||
          (end < text.size() && is_word(next_character(text, after))))
        continue;
    }
    while (t.lstrip && begin > last) {
      const auto start = start_of_previous(text, begin);
      auto next = start;
      if (!is_space(next_character(text, next))) break;
      begin = start;
    }
    while (t.rstrip && end < text.size()) {
      auto next = end;
      if (!is_space(next_character(text, next))) break;
      end = next;
    }
    if (begin > last) to.push_back({text.substr(last, begin - last)});
    to.push_back({text.substr(begin, end - begin), t.id});
    last = end;
    at = std::max(at, end);
  }
  if (last < text.size()) to.push_back({text.substr(last)});
}

const AddedToken* AddedTokens::with_id(int id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &all_[found->second];
}
const AddedToken* AddedTokens::with_text(std::string_view text) const {
  const auto found = by_text_.find(text);
  return found == by_text_.end() ? nullptr : &all_[found->second];
}
bool AddedTokens::is_special(std::string_view text) const {
  auto* t = with_text(text);
  return t && t->special;
}

}  // namespace haliax
