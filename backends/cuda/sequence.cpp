#include "sequence.h"

#include <utility>

namespace haliax::cuda {
namespace {

using namespace program;

// Whether the rest of the turn is made: if it was to be made so far, and `unless` is true.
Launch look_at(const View& unless, int so_far, int flag) {
  Writer w;
  auto base = w.base(unless), at = w.at(unless, {}), to = w.word(Word{kFlagSlot, flag});
  auto value = "load<bool>(" + base + ", " + at + ")";
  if (so_far >= 0) value += " && load<bool>(" + w.word(Word{kFlagSlot, so_far}) + ", 0)";
  w.line("store<bool>(" + to + ", 0, " + value + ");");
  auto out = w.launch(1);
  out.threads = 1;
  return out;
}

class Maker {
 public:
  explicit Maker(const Program& p) : program_(p) { out.items = items_of(p.steps, -1); }
  Sequence out;

 private:
  std::vector<Item> items_of(const std::vector<Step>& steps, int flag) {
    std::vector<Item> items;
    for (auto& s : steps) {
      Item i{.step = &s};
      switch (s.kind) {
        case Kind::loop:
          i.kind = Item::Kind::loop, i.body = items_of(s.loop.body, flag);
          items.push_back(std::move(i));
          break;
        case Kind::skip:
          i.launch = look_at(s.skip.unless, flag, out.flags);
          items.push_back(std::move(i));
          flag = out.flags++;
          break;
        case Kind::host:
          if (s.host.once && program_.device > 0) break;
          i.kind = Item::Kind::host, i.flag = flag, out.asks_host = true;
          items.push_back(std::move(i));
          break;
        case Kind::collective:
          i.kind = Item::Kind::collective, i.flag = flag, i.body = parts(s);
          out.speaks = true, out.asks_host |= flag >= 0;
          items.push_back(std::move(i));
          break;
        default: add(items, s, s, flag);
      }
    }
    return items;
  }
  void add(std::vector<Item>& items, const Step& what, const Step& of, int flag) {
    for (auto& l : launches_of(what, flag < 0)) {
      Item i{.kind = l.product ? Item::Kind::product : Item::Kind::launch, .step = &of};
      i.launch = flag < 0 ? std::move(l) : guarded(std::move(l), {kFlagSlot, flag});
      out.multiplies |= i.launch.product.has_value();
      items.push_back(std::move(i));
    }
  }
  std::vector<Item> parts(const Step& s) {
    std::vector<Item> items;
    for (auto& part : parts_of(s, program_)) {
      if (part.messages.empty()) add(items, part.step, s, -1);
      else items.push_back({.kind = Item::Kind::exchange, .step = &s, .messages = std::move(part.messages)});
    }
    return items;
  }
  const Program& program_;
};

}  // namespace

Sequence sequence_of(const Program& p) { return Maker(p).out; }

std::int64_t steps_in_graph(const std::vector<Item>& items) {
  std::int64_t sum = 0;
  for (auto& i : items) {
    if (i.kind == Item::Kind::loop) sum += i.step->loop.trips * steps_in_graph(i.body);
    else sum += i.kind == Item::Kind::collective ? steps_in_graph(i.body) : 1;
  }
  return sum;
}

}  // namespace haliax::cuda
