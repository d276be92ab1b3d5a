// The devices of a machine, and their communicators.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <utility>

#include "engine.h"
#include "rendezvous.h"
#include "../kernels/nest.h"
#include "program/devices.h"
#include "program/measured.h"
#include "program/ranks.h"
#include "sequence.h"

namespace haliax::cuda {

using namespace program;

namespace {

std::int64_t next_number() {
  static std::atomic<std::int64_t> last{0};
  return ++last;
}

}  // namespace

Rank::Rank(std::shared_ptr<DeviceContext> context, Handle communicator)
    : number(next_number()), context_(std::move(context)), communicator_(communicator) {}
Rank::Rank(std::shared_ptr<DeviceContext> context, std::shared_ptr<OneGpu> gpu, int rank)
    : number(next_number()), context_(std::move(context)), one_gpu_(std::move(gpu)), rank_(rank) {}
Rank::~Rank() {
  if (communicator_) context_->api.leave(communicator_);
}
void Rank::exchange(Handle stream, const std::vector<Transfer>& t) {
  one_gpu_ ? one_gpu_->exchange(rank_, stream, t)
           : context_->api.exchange(communicator_, stream, t);
}
void Rank::run(const Collective&, const void* const*, void* const*, void*, std::int64_t) {
  throw Error(fmt::format("[{}] collectives of this backend run only in its own programs",
                          context_->api.name));
}
void Rank::fail(const char* why) {
  failed_ = true;
  one_gpu_
      ? one_gpu_->fail(fmt::format("[{}] device {} has failed: {}", context_->api.name, rank_, why))
      : context_->api.abort(communicator_);
}

namespace {

constexpr int kOneWorker = 1;        // `workers` in scratch queries for steps of a nest
constexpr int kLibraryProducts = 8;  // number of algorithms to try

class CudaDevice final : public Device, public Measured {
 public:
  CudaDevice(const Api& api, const CudaOptions& options, const Machine& machine)
      : api_(api), options_(options), machine_(machine) {}
  const char* name() const override { return api_.name; }
  bool supports(const Step& s) const override {
    return s.kind != Kind::custom || s.custom.text.statements;
  }
  std::int64_t scratch_bytes(const Step& s, int workers) const override {
    if (s.kind == Kind::collective) return collective_scratch(s.collective);
    if (s.kind == Kind::fused) return workers != kOneWorker ? fused_scratch(s.fused) : 0;
    // nests pack no operands
    return s.kind == Kind::contract && workers != kOneWorker ? product_scratch(s.contract) : 0;
  }
  int parallel_slots(const Step& l, std::int64_t iterations, std::int64_t parallel_slot_bytes,
                     int) const override {
    return nest_parallel_slots(l, iterations, parallel_slot_bytes);
  }
  Machine machine() const override {
    auto m = machine_;
    m.max_parallel_slot_bytes = kMaxParallelSlotBytes;
    m.tiles_score_rows = true;
    m.row_alignment = 16;
    return m;
  }
  std::unique_ptr<Executable> compile(std::shared_ptr<const Program> p) override {
    auto mine = context(p->backend_device);
    return make_executable(std::move(mine), options_, std::move(p));
  }
  bool is_host() const override { return false; }
  int devices() const override { return int(gpus().gpus.size()); }
  Memory allocate(std::int64_t bytes, int d) override { return context(d)->allocate(bytes); }
  void put(const Box& b, int d) override { context(d)->put(b); }
  void get(const Box& b, int d) override { context(d)->get(b); }
  void copy(const Box& b, int d) override { context(d)->copy(b); }
  Instant now(int d) override {
    const auto mine = context(d);
    return mine->checked_call([&] {
      Instant instant(mine->api.make_event(mine->device),
                      [mine](void* e) { mine->api.end_event(e); });
      mine->api.record(instant.get(), mine->stream);
      return instant;
    });
  }
  double seconds(const Instant& from, const Instant& to) override {
    api_.wait_event(from.get());
    api_.wait_event(to.get());
    return api_.seconds(from.get(), to.get());
  }
  std::vector<std::function<void()>> library_products(const Step& s,
                                                      const std::vector<void*>& places,
                                                      int d) override {
    const auto launches = products_of(s);
    if (!launches || launches->size() != 1) return {};
    auto& only = launches->front();  // arguments a, b and out
    auto at = [&](std::size_t k) {
      return static_cast<std::byte*>(places[std::size_t(only.arguments[k].slot)]) +
             only.arguments[k].value;
    };
    const auto mine = context(d);
    std::vector<std::function<void()>> all;
    for (auto product : api_.make_products(mine->device, *only.product, options_, kLibraryProducts))
      all.push_back([=, a = at(0), b = at(1), out = at(2)] {
        mine->checked_call(
            [&] { mine->api.multiply(mine->stream, product, a, b, out, mine->workspace()); });
      });
    return all;
  }
  // Called concurrently by one thread per local device of the mesh. The first caller creates the
  // id.
  std::shared_ptr<Communicator> communicator(const Dims& mesh, int device, int number,
                                             RankGroup* group) override {
    if (group && group->count() == 1) group = nullptr;
    const auto ranks = int(points(mesh));
    const auto gpu = context(number);
    std::string id;
    std::shared_ptr<OneGpu> one_gpu;
    {
      std::lock_guard hold(joining_);
      auto& all = meshes_[{mesh, group != nullptr}];
      all.ranks.resize(std::size_t(ranks));
      auto failed = [](auto& r) { return r && r->failed(); };
      if (all.missing == 0 && std::any_of(all.ranks.begin(), all.ranks.end(), failed))
        all.ranks.assign(std::size_t(ranks), nullptr);
      if (auto& mine = all.ranks[std::size_t(device)]) return mine;
      if (all.missing == 0 && group)
        start_with_others(all, ranks / group->count(), device, number, *group);
      else if (all.missing == 0)
        start(all, ranks);
      --all.missing;
      id = all.id;
      one_gpu = all.one_gpu;
    }
    Check check;
    if (group) check = [group](auto waited) { group->check(waited); };
    auto mine = one_gpu
                    ? std::make_shared<Rank>(gpu, one_gpu, device)
                    : std::make_shared<Rank>(gpu, api_.join(id, ranks, device, gpu->device, check));
    std::lock_guard hold(joining_);
    return meshes_[{mesh, group != nullptr}].ranks[std::size_t(device)] = mine;
  }

 private:
  struct Ranks {
    std::string id;
    std::shared_ptr<OneGpu> one_gpu;  // used instead of the id
    int missing = 0;                  // devices that have not received this id
    std::vector<std::shared_ptr<Rank>> ranks;
  };
  void start(Ranks& all, int ranks) {
    if (ranks > 1 && devices() == 1)
      all.one_gpu = std::make_shared<OneGpu>(api_, 0);
    else
      all.id = api_.make_id();
    all.missing = ranks;
  }
  // here: number of devices in this process; `device` has this number. The first process
  // creates the id.
  void start_with_others(Ranks& all, int here, int device, int number, RankGroup& group) {
    ProcessGpus mine{group.rank() == 0 ? api_.make_id() : "", group.where(), {}, {}};
    for (auto& c : gpus().gpus) mine.visible.push_back(c.id);
    const auto count = int(mine.visible.size());
    for (int d = group.rank() * here; d < (group.rank() + 1) * here; ++d)
      mine.used.push_back(
          mine.visible[std::size_t(((number + d - device) % count + count) % count)]);
    all.id = rendezvous(api_, group, mine);
    all.missing = here;
    settle_at_exit();
  }
  // Waits for queued work when the process exits, because peers may wait for its data.
  void settle_at_exit() {
    static auto* all = new std::vector<CudaDevice*>;
    if (all->empty())
      std::atexit([] {
        for (auto* d : *all) d->settle();
      });
    if (std::count(all->begin(), all->end(), this) == 0) all->push_back(this);
  }
  void settle() {
    std::unique_lock hold(lock_);
    const auto contexts = contexts_;
    hold.unlock();
    for (auto& [number, context] : contexts) context->settle();
  }
  Gpus gpus() const {
    auto all = api_.gpus();
    require_gpus(all);
    return all;
  }
  std::shared_ptr<DeviceContext> context(int d) {
    std::lock_guard hold(lock_);
    auto& context = contexts_[d];
    if (context) return context;
    const auto all = gpus().gpus;
    const auto count = int(all.size()), mine = count == 1 ? 0 : d;
    if (mine >= count)
      throw Error(
          fmt::format("[{}] device {} is requested, but there are {}", api_.name, d, count));
    return context = std::make_shared<DeviceContext>(api_, mine, all[std::size_t(mine)].sm,
                                                     options_.sync);
  }
  const Api& api_;
  const CudaOptions options_;
  const Machine machine_;
  std::mutex lock_, joining_;
  std::map<int, std::shared_ptr<DeviceContext>> contexts_;
  std::map<std::pair<Dims, bool>, Ranks> meshes_;  // bool: shared by several processes
};

}  // namespace

std::unique_ptr<Device> make_device(const Api& api, const CudaOptions& options,
                                    const Machine& machine) {
  return std::make_unique<CudaDevice>(api, options, machine);
}

}  // namespace haliax::cuda
