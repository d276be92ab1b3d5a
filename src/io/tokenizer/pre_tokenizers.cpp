// Pre-tokenizers: split the text into pieces. No token crosses the boundary of a piece.
#include <nlohmann/json.hpp>

#include "graph/fail.h"
#include "io/tokenizer/pattern.h"
#include "io/tokenizer/steps.h"
#include "io/tokenizer/unicode.h"

namespace haliax {
namespace {

constexpr const char* kPreTokenizers =
    "Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit";
// The words of Whitespace. They include joiners, which \w of a Split does not match.
constexpr const char* kWords = R"([\w\x{200c}\x{200d}]+|[^\w\s\x{200c}\x{200d}]+)";
// The words of GPT-2 (Radford et al. 2019).
constexpr const char* kWordsOfGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
Behavior behavior_of(const TokenizerJson& spec) {
  const std::string name = spec.at("behavior");
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  fail("Tokenizer", "the behavior {} of a pre-tokenizer is not supported", name);
}

struct Span {
  std::size_t begin, end;
  bool is_match;
};
// Appends the pieces of a text that alternating spans define.
void add_pieces(const Piece& from, std::vector<Span>& spans, Behavior behavior,
                std::vector<Piece>& to) {
  bool previous = false;
  auto add = [&](const Span& s) {
    if (s.end > s.begin)
      to.push_back({from.text.substr(s.begin, s.end - s.begin), from.first && s.begin == 0});
  };
  if (behavior == Behavior::merged_with_next) {
    std::vector<Span> merged;
    for (auto s = spans.rbegin(); s != spans.rend(); ++s) {
      if (s->is_match && !previous && !merged.empty())
        merged.back().begin = s->begin;
      else
        merged.push_back(*s);
      previous = s->is_match;
    }
    for (auto s = merged.rbegin(); s != merged.rend(); ++s) add(*s);
    return;
  }
  std::optional<Span> open;
  for (auto& s : spans) {
    const bool merges = (behavior == Behavior::merged_with_previous && s.is_match && !previous) ||
                        (behavior == Behavior::contiguous && s.is_match == previous);
    previous = s.is_match;
    if (behavior == Behavior::removed && s.is_match) continue;
    if (merges && open) {
      open->end = s.end;
    } else {
      if (open) add(*open);
      open = s;
    }
  }
  if (open) add(*open);
}

class SplitBy final : public PreTokenizer {
 public:
  SplitBy(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override {
    pieces.next.clear();
    std::vector<Span> spans;
    for (auto& piece : pieces.all) {
      spans.clear();
      std::size_t last = 0;
      Pattern::Matches matches(pattern_, piece.text);
      if (behavior_ == Behavior::isolated) {  // the common case
        auto add = [&](std::size_t begin, std::size_t end) {
          if (end > begin)
            pieces.next.push_back(
                {piece.text.substr(begin, end - begin), piece.first && begin == 0});
        };
        for (Pattern::Match m; matches.next(m); last = m.end) {
          add(last, m.begin);
          add(m.begin, m.end);
        }
        add(last, piece.text.size());
        continue;
      }
      for (Pattern::Match m; matches.next(m); last = m.end) {
        if (m.begin > last) spans.push_back({last, m.begin, invert_});
        spans.push_back({m.begin, m.end, !invert_});
      }
      if (last < piece.text.size()) spans.push_back({last, piece.text.size(), invert_});
      add_pieces(piece, spans, behavior_, pieces.next);
    }
    std::swap(pieces.all, pieces.next);
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Splits at the characters of a class.
class SplitAt final : public PreTokenizer {
 public:
  SplitAt(bool (*matches)(char32_t), Behavior behavior) : matches_(matches), behavior_(behavior) {}
  void apply(Pieces& pieces) const override {
    pieces.next.clear();
    std::vector<Span> spans;
    for (auto& piece : pieces.all) {
      spans.clear();
      for (std::size_t at = 0; at < piece.text.size();) {
        const auto begin = at;
        const bool match = matches_(next_character(piece.text, at));
        if (!match && !spans.empty() && !spans.back().is_match)
          spans.back().end = at;
        else
          spans.push_back({begin, at, match});
      }
      add_pieces(piece, spans, behavior_, pieces.next);
    }
    std::swap(pieces.all, pieces.next);
  }

 private:
  bool (*matches_)(char32_t);
  Behavior behavior_;
};

class ByteLevelPieces final : public PreTokenizer {
 public:
  ByteLevelPieces(const TokenizerJson& spec, bool last) : add_space_(spec.at("add_prefix_space")) {
    if (spec.value("use_regex", true))
      words_ = std::make_unique<SplitBy>(Pattern::regex(kWordsOfGpt2), Behavior::isolated, false);
    skip_map_ = last;
  }
  bool maps_bytes() const override { return skip_map_; }
  void apply(Pieces& pieces) const override {
    if (add_space_)
      for (auto& p : pieces.all)
        if (!p.text.starts_with(' ')) p.text = pieces.keep(" " + std::string(p.text));
    if (words_) words_->apply(pieces);
    if (skip_map_) return;
    for (auto& p : pieces.all) p.text = pieces.keep(bytes_as_characters(p.text));
  }

 private:
  bool add_space_, skip_map_;
  std::unique_ptr<const PreTokenizer> words_;
};

class MetaspacePieces final : public PreTokenizer {
 public:
  explicit MetaspacePieces(const TokenizerJson& spec)
      : mark_(spec.at("replacement").get<std::string>()), split_(spec.value("split", true)),
        words_(Pattern::literal(mark_), Behavior::merged_with_next, false) {
    if (spec.contains("prepend_scheme"))
      scheme_ = spec["prepend_scheme"];
    else
      scheme_ = spec.value("add_prefix_space", true) ? "always" : "never";
    if (scheme_ != "always" && scheme_ != "never" && scheme_ != "first")
      fail("Tokenizer", "the prepend_scheme {} of Metaspace is not supported", scheme_);
  }
  void apply(Pieces& pieces) const override {
    const auto space = Pattern::literal(" ");
    for (auto& p : pieces.all) {
      const bool prepends = scheme_ == "always" || (scheme_ == "first" && p.first);
      auto text = space.replaced(p.text, mark_);
      if (prepends && !text.starts_with(mark_)) text.insert(0, mark_);
      p.text = pieces.keep(std::move(text));
    }
    if (split_) words_.apply(pieces);
  }

 private:
  std::string mark_, scheme_;
  bool split_;
  SplitBy words_;
};

class PieceSequence final : public PreTokenizer {
 public:
  PieceSequence(const TokenizerJson& steps, bool last) {
    for (std::size_t i = 0; i < steps.size(); ++i)
      steps_.push_back(pre_tokenizer_of(steps[i], last && i + 1 == steps.size()));
  }
  bool maps_bytes() const override {
    return !steps_.empty() && steps_.back() && steps_.back()->maps_bytes();
  }
  void apply(Pieces& pieces) const override {
    for (auto& s : steps_)
      if (s) s->apply(pieces);
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
};

}  // namespace

const std::vector<std::string>& characters_of_bytes() {
  static const auto table = [] {
    std::vector<std::string> out(256);
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      append_character(out[byte], printable ? byte : next++);
    }
    return out;
  }();
  return table;
}
std::string bytes_as_characters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char b : bytes) out += characters_of_bytes()[static_cast<unsigned char>(b)];
  return out;
}

std::unique_ptr<const PreTokenizer> pre_tokenizer_of(const TokenizerJson& spec, bool last) {
  if (spec.is_null()) return nullptr;
  const auto type = type_of_step("pre-tokenizer", spec);
  if (type == "ByteLevel") return std::make_unique<ByteLevelPieces>(spec, last);
  if (type == "Split")
    return std::make_unique<SplitBy>(Pattern(spec.at("pattern")), behavior_of(spec),
                                     spec.at("invert").get<bool>());
  if (type == "Metaspace") return std::make_unique<MetaspacePieces>(spec);
  if (type == "Digits")
    return std::make_unique<SplitAt>(is_number, spec.at("individual_digits").get<bool>()
                                                    ? Behavior::isolated
                                                    : Behavior::contiguous);
  if (type == "Punctuation") {
    const bool isolated = !spec.contains("behavior");
    return std::make_unique<SplitAt>(is_punctuation,
                                     isolated ? Behavior::isolated : behavior_of(spec));
  }
  if (type == "WhitespaceSplit") return std::make_unique<SplitAt>(is_space, Behavior::removed);
  if (type == "Whitespace")
    return std::make_unique<SplitBy>(Pattern::regex(kWords), Behavior::removed, true);
  if (type == "Sequence") return std::make_unique<PieceSequence>(spec.at("pretokenizers"), last);
  fail_unsupported("pre-tokenizer", spec, kPreTokenizers);
}

}  // namespace haliax
