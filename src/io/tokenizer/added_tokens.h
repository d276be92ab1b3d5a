// Tokens that are found in the text before it is split into pieces, such as <|endoftext|>.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "io/tokenizer/steps.h"

namespace haliax {

struct AddedToken {
  int id = 0;
  std::string text;                     // in the file
  std::string decoded;                  // after normalization, if `normalized`
  bool single_word = false;             // not a part of a word
  bool lstrip = false, rstrip = false;  // includes spaces before and after it
  bool normalized = false;              // is found in the normalized text
  bool special = false;
};

// A part of a text: a token, or text between tokens.
struct TextPart {
  std::string_view text;
  int id = -1;  // -1: text
};

class AddedTokens {
 public:
  AddedTokens() = default;
  AddedTokens(const nlohmann::json& list, const Normalizer*);
  // Appends the parts of a text. `normalized` selects the tokens to find.
  void split(std::string_view text, bool normalized, std::vector<TextPart>& to) const;
  const std::vector<AddedToken>& all() const { return all_; }
  const AddedToken* with_id(int id) const;                   // null: none
  const AddedToken* with_text(std::string_view text) const;  // null: none
  bool is_special(std::string_view text) const;

 private:
  // A trie of bytes. Node 0 is the root.
  struct Trie {
    struct TrieStep {
      unsigned char byte;
      int node;
    };
    std::vector<std::vector<TrieStep>> steps{1};
    std::vector<int> token{-1};  // index of the token that ends at the node, or -1
    bool starts[256] = {};
    void add(std::string_view text, int token);
    // Returns the longest token at the start of a text, or -1, and its size.
    int longest(std::string_view text, std::size_t& size) const;
  };
  std::vector<AddedToken> all_;
  std::map<int, std::size_t> by_id_;
  std::map<std::string, std::size_t, std::less<>> by_text_;
  Trie tries_[2];  // in the text as given, and in the normalized text
};

}  // namespace haliax
