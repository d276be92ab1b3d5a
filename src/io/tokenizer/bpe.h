// Byte-pair encoding (Sennrich et al. 2016): a piece of text starts as its characters, and adjacent
// tokens merge in the order of the ranks of their pairs.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace haliax {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
template <class T> using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

// Memory of one call, which is reused: the ids of recent words, and the state of the merge loop.
class BpeMemory {
 public:
  static constexpr std::size_t kWords = 1 << 16, kWordBytes = 64;
  struct Symbol {
    int id, previous, next;
    bool merged = false;  // into the symbol before it
  };
  struct MergeCandidate {
    std::uint32_t rank;
    int at, id;  // the left symbol, and the token of the pair
  };
  TextMap<std::vector<int>> words;
  std::vector<Symbol> symbols;
  std::vector<MergeCandidate> heap;
};

class Bpe {
 public:
  explicit Bpe(const nlohmann::json& model);
  // Appends the ids of a piece. `map_bytes`: the vocabulary has characters in place of bytes.
  void tokenize(std::string_view piece, bool map_bytes, BpeMemory&, std::vector<int>& to) const;
  // Returns the id of a token, or -1.
  int find(std::string_view token) const;
  // Returns the token with this id, or null.
  const std::string* token(int id) const;
  int size() const { return int(tokens_.size()); }

 private:
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::uint32_t rank = 0;
    int id = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t(0);
  static std::uint64_t pair_of(int a, int b) {
    return std::uint64_t(std::uint32_t(a)) << 32 | std::uint32_t(b);
  }
  void read_vocabulary(const nlohmann::json&);
  // Returns true if no merge crosses the start of a word that U+2581 marks.
  bool read_merges(const nlohmann::json&);
  std::size_t slot_of(std::uint64_t pair) const;
  const Merge* merge(int a, int b) const;
  void tokenize_words(std::string_view piece, bool map_bytes, BpeMemory&,
                      std::vector<int>& to) const;
  void tokenize_word(std::string_view word, BpeMemory&, std::vector<int>& to) const;
  void start_symbols(std::string_view word, BpeMemory&) const;
  void merge_symbols(BpeMemory&) const;

  TextMap<int> ids_;
  std::vector<std::string> tokens_;
  std::vector<bool> used_;     // by id; false: no token has this id
  std::vector<Merge> merges_;  // a hash table with linear probing
  std::string prefix_, suffix_, unknown_;
  int unknown_id_ = -1;
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  int bytes_[256] = {};  // tokens <0x..>, or -1
  bool has_all_bytes_ = true;
  bool words_are_separate_ = false;  // words are tokenized one by one
};

}  // namespace haliax
