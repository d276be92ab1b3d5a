// The table of interned names, and suggestions for misspelled ones.
#include "base/name.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/fork.h"

namespace haliax {
namespace {

struct Table {
  std::mutex lock;
  std::deque<NameData> all;  // stable addresses, never freed
  std::unordered_map<std::string_view, const NameData*> shown;
};
Table& table() {
  static Table* t = new Table;  // outlives every static Axis
  return *t;
}

const bool name_forks =
    at_fork({kForkNames, [] { table().lock.lock(); }, [] { table().lock.unlock(); }});

bool equal_without_case(std::string_view a, std::string_view b) {
  auto lower = [](unsigned char c) { return std::tolower(c); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}
// Returns the edit distance. A swap of two neighboring letters counts as one edit.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  // rows of the distance table: prefixes of a by prefixes of b
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

Name::Name(std::string_view text) {
  auto& t = table();
  std::lock_guard hold(t.lock);
  auto found = t.shown.find(text);
  if (found == t.shown.end()) {
    t.all.push_back({std::string(text), false});
    found = t.shown.emplace(t.all.back().text, &t.all.back()).first;
  }
  data_ = found->second;
}

std::string_view Name::text() const {
  return data_ ? std::string_view(data_->text) : std::string_view();
}
bool Name::hidden() const { return data_ && data_->hidden; }

Name fresh_hidden(Name shown, SourceLocation by) {
  auto& t = table();
  std::lock_guard hold(t.lock);
  t.all.push_back({std::string(shown.text()), true, by});
  return Name::of(&t.all.back());
}

std::string did_you_mean(std::string_view requested, const std::vector<std::string>& candidates) {
  std::string near;
  // A larger distance is no typing error, and a name of one letter is at distance 1 of all others.
  std::size_t least =
      std::min(std::max<std::size_t>(1, requested.size() / 3) + 1, requested.size());
  for (auto& c : candidates)
    if (auto d = equal_without_case(requested, c) ? 0 : edit_distance(requested, c); d < least) {
      least = d;
      near = c;
    }

  return near.empty() ? "" : "; did you mean " + near + "?";
}
std::string did_you_mean(Name requested, const Axes& candidates) {
  return did_you_mean(requested.text(), candidates, [](auto& a) { return a.name.text(); });
}

}  // namespace haliax
