// A Program as launches of kernels, one after the other.
#include <fmt/format.h>

#include <algorithm>

#include "api.h"
#include "haliax/error.h"
#include "program/devices.h"

namespace haliax::cuda {
namespace {

using namespace program;

std::string name_of(const std::string& text) {  // FNV-1a
  std::uint64_t h = 0xcbf29ce484222325;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return fmt::format("k{:016x}", h);
}
Kernel named(const std::string& text) {
  Kernel k{name_of(text), text};
  for (std::size_t at = 0; (at = k.text.find("NAME", at)) != std::string::npos; at += k.name.size())
    k.text.replace(at, 4, k.name);
  return k;
}

struct Ready {  // a launch, and its kernel
  Launch launch;
  void* kernel = nullptr;
};
struct Item {
  const Step* step = nullptr;
  std::vector<Ready> launches = {};
  std::vector<Item> body = {};
};

class Queue : public Executable {
 public:
  Queue(const Api& api, std::shared_ptr<const Program> p) : api_(api), program_(std::move(p)) {
    items_ = items_of(program_->steps);
    std::vector<Kernel> kernels;
    std::vector<Ready*> waiting;
    collect(items_, kernels, waiting);
    auto made = api_.compile(kernels);
    for (std::size_t k = 0; k < made.size(); ++k) waiting[k]->kernel = made[k];
  }
  void run(const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena, Communicator* comm) override {
    Call call{*this, {}, std::vector<std::int64_t>(std::size_t(program_->loops)), static_cast<std::byte*>(arena), comm};
    for (auto& s : program_->slots) {
      auto* root = &s;
      while (root->alias >= 0) root = &program_->slot(root->alias);
      auto index = std::size_t(root->index);
      auto* at = root->home == Home::argument ? arguments.at(index) : root->home == Home::result ? results.at(index) : arena;
      call.memory.push_back(static_cast<std::byte*>(at) + (at && root->home == Home::arena ? root->offset : 0));
    }
    call.run(items_);
  }

 private:
  static std::vector<Item> items_of(const std::vector<Step>& steps) {
    std::vector<Item> out;
    for (auto& s : steps) {
      Item item{&s};
      if (s.kind == Kind::loop)
        item.body = items_of(s.loop.body);
      else if (s.kind != Kind::skip && s.kind != Kind::collective && s.kind != Kind::host)
        for (auto& l : launches_of(s)) item.launches.push_back({std::move(l)});
      out.push_back(std::move(item));
    }
    return out;
  }
  static void collect(std::vector<Item>& items, std::vector<Kernel>& kernels, std::vector<Ready*>& waiting) {
    for (auto& i : items) {
      for (auto& l : i.launches)
        if (!l.launch.product) kernels.push_back(named(l.launch.text)), waiting.push_back(&l);
      collect(i.body, kernels, waiting);
    }
  }

  struct Call {
    const Queue& queue;
    std::vector<std::byte*> memory;   // of each slot
    std::vector<std::int64_t> loops;  // the loop variables
    std::byte* arena;
    Communicator* comm;
    std::vector<std::int64_t> words = {};

    std::int64_t value_of(const Word& w) const {
      auto v = w.value;
      for (auto& [loop, stride] : w.loops) v += loops[std::size_t(loop)] * stride;
      if (w.slot == kArenaSlot) return std::int64_t(reinterpret_cast<std::intptr_t>(arena)) + v;
      return w.slot < 0 ? v : std::int64_t(reinterpret_cast<std::intptr_t>(memory[std::size_t(w.slot)])) + v;
    }
    std::byte* first(const View& v) const {
      Word w{v.slot, v.offset * bytes_of(v.dtype)};
      for (auto& t : v.terms) w.loops.push_back({t.loop, t.stride * bytes_of(v.dtype)});
      return reinterpret_cast<std::byte*>(value_of(w));
    }
    void run(const std::vector<Item>& items) {
      for (auto& i : items) {
        auto& s = *i.step;
        if (s.kind == Kind::skip && !*reinterpret_cast<const bool*>(first(s.skip.unless))) return;
        if (s.kind == Kind::collective) talk(s);
        if (s.kind == Kind::host && !(s.host.once && queue.program_->device > 0)) ask(s.host);
        for (auto& l : i.launches) {
          words.clear();
          for (auto& w : l.launch.words) words.push_back(value_of(w));
          auto address = [&](std::size_t k) { return reinterpret_cast<void*>(std::intptr_t(words[k])); };
          if (auto& p = l.launch.product) queue.api_.multiply(*p, address(0), address(1), address(2));
          else queue.api_.launch(l.kernel, l.launch, words.data());
        }
        for (std::int64_t t = 0; s.kind == Kind::loop && t < s.loop.trips; ++t) {
          if (s.loop.variable >= 0) loops[std::size_t(s.loop.variable)] = s.loop.reverse ? s.loop.trips - 1 - t : t;
          run(i.body);
        }
      }
    }
    void ask(const Host& h) const {
      std::vector<const void*> data;
      for (auto& o : h.arrays) data.push_back(first(o.view));
      h.call->run(h.arrays, data.data());
    }
    void talk(const Step& s) const {
      auto& c = s.collective;
      if (!comm) throw Error("[cuda] the program talks to other devices, but there is no communicator; run it on a mesh");
      std::vector<const void*> x;
      std::vector<void*> out;
      for (auto& o : c.x) x.push_back(first(o.view));
      for (auto& o : c.out) out.push_back(first(o.view));
      comm->run(c, x.data(), out.data(), s.scratch_bytes > 0 ? arena + s.scratch : nullptr, s.scratch_bytes);
    }
  };

  const Api& api_;
  std::shared_ptr<const Program> program_;
  std::vector<Item> items_;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const Api& api) : api_(api) {}
  const char* name() const override { return api_.name; }
  std::int64_t scratch_bytes(const Step& s, int) const override {
    return s.kind == Kind::contract ? product_scratch(s.contract) : 0;
  }
  std::unique_ptr<Executable> compile(std::shared_ptr<const Program> p) override {
    return std::make_unique<Queue>(api_, std::move(p));
  }

 private:
  const Api& api_;
};

}  // namespace

std::unique_ptr<Device> make_simulated_device() { return std::make_unique<CudaDevice>(simulated()); }

}  // namespace haliax::cuda
