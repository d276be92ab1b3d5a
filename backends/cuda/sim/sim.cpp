// The simulation of CUDA on the host. The host's compiler compiles kernels, memory is host memory,
// and threads that synchronize are fibers.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <unordered_map>

#include "../cache.h"
#include "../engine/engine.h"
#include "base/scalar.h"
#include "fibers.h"
#include "machine.h"
#include "network.h"
#include "program/devices.h"
#include "sim.h"

namespace haliax::cuda {
namespace {

struct Counters {
  std::atomic<std::int64_t> kernels{0}, products{0}, copies{0}, exchanges{0}, texts{0},
      instances{0}, updates{0}, graphs{0}, ifs{0}, taken{0}, waits{0};
} counters;

struct Compiled {
  void (*run)(const void* words) = nullptr;
};
thread_local SimulatedThread* running = nullptr;  // the simulated thread on this host thread
SimulatedThread* running_here() { return running; }

// Returns the folder of sources and compiled libraries: HALIAX_CACHE, or a temporary folder.
std::filesystem::path folder() {
  static const std::filesystem::path created = [] {
    if (auto cache = cache_folder(); !cache.empty()) return cache;
    auto pattern = (std::filesystem::temp_directory_path() / "haliax-XXXXXX").string();
    if (!mkdtemp(pattern.data()))
      throw Error("[cuda] no folder can be created in " +
                  std::filesystem::temp_directory_path().string());
    static const struct Removed {
      std::string at;
      ~Removed() {
        std::error_code ignored;
        std::filesystem::remove_all(at, ignored);
      }
    } removed{pattern};
    return std::filesystem::path(pattern);
  }();
  return created;
}
// Compiles the source, or opens the library of an earlier compilation with the same source and
// options. Files appear atomically, and a library that cannot be opened is compiled again.
void* library_of(const std::string& source) {
  auto* requested = std::getenv("HALIAX_CXX");
  const auto compiler = fmt::format("{} -std=c++20 -O1 -w -ffp-contract=off -fPIC -shared",
                                    requested && *requested ? requested : "c++");
  const auto name =
      folder() / fmt::format("sim-{:016x}", std::hash<std::string>()(compiler + source));
  const auto library = name.string() + ".so", mine = fmt::format("{}-{}", name.string(), getpid());
  if (auto* known = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) return known;
  std::ofstream(mine + ".cpp") << source;
  const auto command = fmt::format("{0} '{1}.cpp' -o '{1}.so'", compiler, mine);
  const bool created = std::system(command.c_str()) == 0;
  std::filesystem::remove(mine + ".cpp");
  if (!created)
    throw Error(
        "[cuda] the host's compiler (HALIAX_CXX, or else c++) failed to compile a kernel: " +
        command);
  std::filesystem::rename(mine + ".so", library);
  auto* opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!opened) throw Error(std::string("[cuda] ") + dlerror());
  return opened;
}

std::vector<void*> compile(const std::vector<Kernel>& kernels) {
  static std::mutex lock;
  static auto* known = new std::unordered_map<std::string, Compiled>;
  std::lock_guard hold(lock);
  auto source = prelude(true);
  std::vector<std::string> added;
  for (auto& k : kernels) {
    if (known->count(k.name) || std::count(added.begin(), added.end(), k.name)) continue;
    added.push_back(k.name);
    ++counters.texts;
    source += k.source + fmt::format(
                             "extern \"C\" void {0}_run(const void* w) {{ {0}(*static_cast<const "
                             "{0}_words*>(w)); }}\n",
                             k.name);
  }
  if (!added.empty()) {
    source += "}\n";
    auto* library = library_of(source);
    auto symbol = [&](const std::string& name) { return dlsym(library, name.c_str()); };
    reinterpret_cast<void (*)(SimulatedThread * (*)())>(symbol("haliax_find_thread_by"))(
        running_here);
    for (auto& name : added)
      (*known)[name] = {reinterpret_cast<void (*)(const void*)>(symbol(name + "_run"))};
  }
  std::vector<void*> out;
  for (auto& k : kernels) out.push_back(&known->at(k.name));
  return out;
}

void run_kernel(const Compiled& k, const Launch& l, const std::vector<std::int64_t>& words) {
  constexpr std::int64_t most = 227 << 10, guard = 64;  // bytes; guard bytes after the end
  constexpr unsigned char untouched = 0xa5;
  if (l.shared > most)
    throw Error(fmt::format("[cuda] a block requires {} bytes of shared memory, but there are {}",
                            l.shared, most));
  std::vector<unsigned char> shared(std::size_t(l.shared + guard));
  SimulatedThread at{0,       0,      unsigned(l.threads), unsigned(l.blocks), shared.data(),
                     nullptr, nullptr};
  running = &at;
  for (at.block = 0; at.block < at.blocks; ++at.block) {
    std::memset(shared.data(), 0xff, std::size_t(l.shared));  // NaN: unwritten memory
    std::fill(shared.end() - guard, shared.end(), untouched);
    if (l.waits)
      run_block(
          at, [&] { k.run(words.data()); }, at.block);
    else
      for (at.x = 0; at.x < at.threads; ++at.x) k.run(words.data());
    if (std::any_of(shared.end() - guard, shared.end(), [&](auto c) { return c != untouched; }))
      throw Error("[cuda] a kernel has written past the end of its shared memory");
  }
}

// Matmuls follow their cuBLASLt description literally.
constexpr std::int64_t kWorkspace = 1 << 10;
float in_tf32(float x) {  // 10 bits of mantissa, rounded to nearest even
  auto bits = std::bit_cast<std::uint32_t>(x);
  if (x - x == 0) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  return std::bit_cast<float>(bits);
}
template <class Sum>
std::vector<Sum> wide(const Matrix& m, const void* from, std::int64_t at, bool tf32) {
  std::vector<Sum> out(std::size_t(m.rows * m.cols));
  auto* p = static_cast<const std::byte*>(from);
  for (std::int64_t c = 0; c < m.cols; ++c)
    for (std::int64_t r = 0; r < m.rows; ++r)
      out[std::size_t(m.transposed ? r * m.cols + c : c * m.rows + r)] =
          Sum(scalar::load(m.dtype, p + (at + c * m.ld + r) * bytes_of(m.dtype)).real);
  if (tf32)
    for (auto& x : out) x = Sum(in_tf32(float(x)));
  return out;
}
template <class Sum>
void multiply_as(const Product& p, const void* a, const void* b, void* out, bool tf32) {
  const auto m = p.out.rows, n = p.out.cols, k = p.a.transposed ? p.a.rows : p.a.cols;
  for (std::int64_t i = 0; i < p.batch; ++i) {
    // (m, k) and (k, n), column-major
    const auto x = wide<Sum>(p.a, a, i * p.a.step, tf32), y = wide<Sum>(p.b, b, i * p.b.step, tf32);
    std::vector<Sum> column(static_cast<std::size_t>(m));
    std::vector<double> some(column.size());  // a GPU rounds a multiply-add once
    for (std::int64_t c = 0; c < n; ++c) {
      auto* to =
          static_cast<std::byte*>(out) + (i * p.out.step + c * p.out.ld) * bytes_of(p.out.dtype);
      auto each = [&](auto f) {
        for (std::int64_t r = 0; r < m; ++r)
          f(column[std::size_t(r)], to + r * bytes_of(p.out.dtype));
      };
      each([&](Sum& s, std::byte* e) {
        s = p.accumulate ? Sum(scalar::load(p.out.dtype, e).real) : 0;
      });
      // sums of short sums, as on a GPU
      for (std::int64_t from = 0; from < k; from += 32) {
        std::fill(some.begin(), some.end(), 0);
        for (std::int64_t q = from; q < std::min(k, from + 32); ++q)
          for (std::int64_t r = 0; r < m; ++r)
            some[std::size_t(r)] +=
                double(x[std::size_t(q * m + r)]) * double(y[std::size_t(c * k + q)]);
        for (std::int64_t r = 0; r < m; ++r) column[std::size_t(r)] += Sum(some[std::size_t(r)]);
      }
      each([&](Sum& s, std::byte* e) { scalar::store(p.out.dtype, e, {double(s), 0}); });
    }
  }
}
void run_product(const Product& p, const void* a, const void* b, void* out, bool tf32) {
  auto [k, depth] =
      std::pair{p.a.transposed ? p.a.rows : p.a.cols, p.b.transposed ? p.b.cols : p.b.rows};
  auto [m, n] =
      std::pair{p.a.transposed ? p.a.cols : p.a.rows, p.b.transposed ? p.b.rows : p.b.cols};
  auto refuse = [](const char* why) { throw Error(std::string("[cuda] a matmul ") + why); };
  if (k != depth || m != p.out.rows || n != p.out.cols || p.out.transposed)
    refuse("has sizes that do not match");
  for (auto* x : {&p.a, &p.b, &p.out})
    if (x->ld < x->rows) refuse("has a leading dimension of less than its rows");
  if (p.batch > 1 && p.out.step == 0) refuse("writes a batch into one matrix");
  for (auto [x, at] : {std::pair{&p.a, a}, std::pair{&p.b, b},
                       std::pair<const Matrix*, const void*>{&p.out, out}}) {
    auto bytes = x->step * bytes_of(x->dtype);
    if (reinterpret_cast<std::uintptr_t>(at) % std::uintptr_t(x->alignment) != 0 ||
        bytes % x->alignment != 0)
      refuse("is less aligned than specified");
  }
  p.out.dtype == DType::f64 ? multiply_as<double>(p, a, b, out, false)
                            : multiply_as<float>(p, a, b, out, tf32);
}

// ---- the table ----
sim::Machine& machine() { return sim::Machine::instance(); }
sim::Stream* stream(Handle h) { return static_cast<sim::Stream*>(h); }
sim::Event* event(Handle h) { return static_cast<sim::Event*>(h); }
using SharedGraph = std::shared_ptr<const sim::Graph>;
SharedGraph& graph(Handle h) { return *static_cast<SharedGraph*>(h); }

std::atomic<int> gpus_there{64}, first_gpu{0};
Gpus gpus() {
  Gpus c{.driver = 13000, .needed = 13000};
  for (int d = 0; d < gpus_there; ++d)
    c.gpus.push_back({"simulated", 90, std::to_string(first_gpu + d)});
  return c;
}

// Host memory that was allocated for copies.
std::mutex pinned_lock;
std::map<std::byte*, std::int64_t>& pinned() {
  static auto* all = new std::map<std::byte*, std::int64_t>;
  return *all;
}
void* allocate_host(std::int64_t bytes) {
  machine().refuse_in_graph("allocates memory");
  auto* got = static_cast<std::byte*>(::operator new(std::size_t(bytes) + 1));
  std::lock_guard hold(pinned_lock);
  pinned()[got] = bytes;
  return got;
}
void release_host(void* p) {
  std::lock_guard hold(pinned_lock);
  pinned().erase(static_cast<std::byte*>(p));
  ::operator delete(p);
}
void must_be_pinned(const void* p, std::int64_t bytes) {
  std::lock_guard hold(pinned_lock);
  auto* at = static_cast<std::byte*>(const_cast<void*>(p));
  auto next = pinned().upper_bound(at);
  if (next != pinned().begin() && at + bytes <= std::prev(next)->first + std::prev(next)->second)
    return;
  throw Error("[cuda-sim] a copy uses host memory that was not allocated for it");
}
void move(Handle s, void* to, const void* from, std::int64_t bytes) {
  ++counters.copies;
  if (bytes > 0)
    machine().enqueue(stream(s), {.run = [=] { std::memcpy(to, from, std::size_t(bytes)); }});
}

void launch(Handle s, Handle kernel, const Launch& l, const std::int64_t* words) {
  ++counters.kernels;
  auto& k = *static_cast<Compiled*>(kernel);
  Launch how{.blocks = l.blocks, .threads = l.threads, .shared = l.shared, .waits = l.waits};
  std::vector<std::int64_t> copied(words, words + l.arguments.size());
  copied.resize(std::max<std::size_t>(copied.size(), 1));
  machine().enqueue(stream(s), {.run = [&k, how, copied] { run_kernel(k, how, copied); }});
}
struct Multiplier {
  Product product;
  bool tf32 = false;
};
// retained: equal ones share an entry
Handle make_product(int, const Product& p, const CudaOptions& w) {
  static std::mutex lock;
  static auto* all = new std::list<Multiplier>;
  std::lock_guard hold(lock);
  const bool tf32 = w.tf32 && p.out.dtype == DType::f32;
  for (auto& m : *all)
    if (m.product == p && m.tf32 == tf32) return &m;
  return &all->emplace_back(Multiplier{p, tf32});
}
void multiply(Handle s, Handle product, const void* a, const void* b, void* out, void* workspace) {
  ++counters.products;
  auto& m = *static_cast<Multiplier*>(product);
  machine().enqueue(stream(s), {.run = [&m, a, b, out, workspace] {
                      std::memset(workspace, 0xff, kWorkspace);
                      run_product(m.product, a, b, out, m.tf32);
                    }});
}

bool update(Handle instance, Handle with) {
  auto &old = *graph(instance), &next = *graph(with);
  auto kind = [](auto& w) { return w.kind; };
  std::vector<sim::Work::Kind> before, after;
  for (auto& w : old.work) before.push_back(kind(w));
  for (auto& w : next.work) after.push_back(kind(w));
  auto ifs = [](auto& a, auto& b) { return a.ifs.size() == b.ifs.size(); };
  if (before != after || old.then != next.then) return false;
  if (!std::equal(old.work.begin(), old.work.end(), next.work.begin(), ifs)) return false;
  ++counters.updates;
  graph(instance) = graph(with);
  return true;
}

Handle begin_if(Handle s, Handle kernel, const Launch& l, std::int64_t* words) {
  ++counters.ifs;
  const auto runs = std::make_shared<unsigned>(0);
  words[l.arguments.size() - 1] = std::int64_t(reinterpret_cast<std::intptr_t>(runs.get()));
  launch(s, kernel, l, words);
  auto* inside = machine().make_stream(stream(s)->device);
  machine().begin_if(stream(s), inside, runs);
  return inside;
}

struct Member {
  std::shared_ptr<sim::Network> network;
  int rank;
};
Handle join(const std::string& id, int ranks, int rank, int device, const Check& check) {
  if (!check) return new Member{machine().join(id, ranks, rank, device), rank};
  auto links = std::make_unique<sim::Links>(id, ranks, rank, check);
  return new Member{machine().join(std::move(links), check, ranks, rank, device), rank};
}
void exchange(Handle communicator, Handle s, const std::vector<Transfer>& all) {
  ++counters.exchanges;
  auto& m = *static_cast<Member*>(communicator);
  machine().enqueue(
      stream(s),
      {.kind = sim::Work::Kind::exchange, .network = m.network, .rank = m.rank, .transfers = all});
}
// Returns an id that is unique on this machine.
std::string make_id() {
  static std::atomic<int> last{0};
  static const auto of_process = fmt::format("{}-{:x}", getpid(), std::random_device()());
  return fmt::format("{}-{}", of_process, ++last);
}

Api table() {
  Api a;
  a.name = "cuda-sim";
  a.gpus = gpus;
  a.free_bytes = [](int d) { return machine().free_bytes(d); };
  a.allocate = [](Handle s, std::int64_t n) -> void* {
    ++counters.taken;
    return machine().allocate(stream(s), n);
  };
  a.release = [](Handle s, void* p) { machine().release(stream(s), static_cast<std::byte*>(p)); };
  a.allocate_host = allocate_host;
  a.release_host = release_host;
  a.put = [](Handle s, void* to, const void* from, std::int64_t n) {
    must_be_pinned(from, n);
    move(s, to, from, n);
  };
  a.get = [](Handle s, void* to, const void* from, std::int64_t n) {
    must_be_pinned(to, n);
    move(s, to, from, n);
  };
  a.copy = move;
  a.make_stream = [](int d) -> Handle { return machine().make_stream(d); };
  a.end_stream = [](Handle s) { machine().end_stream(stream(s)); };
  a.wait = [](Handle s) {
    ++counters.waits;
    machine().wait(stream(s));
  };
  a.mark = [](Handle s, std::int64_t* to, std::int64_t n) {
    machine().enqueue(stream(s), {.run = [=] { *to = n; }});
  };
  a.make_event = [](int d) -> Handle { return machine().make_event(d); };
  a.end_event = [](Handle e) { machine().end_event(event(e)); };
  a.record = [](Handle e, Handle s) { machine().record(event(e), stream(s)); };
  a.follow = [](Handle s, Handle e) { machine().follow(stream(s), event(e)); };
  a.wait_event = [](Handle e) {
    ++counters.waits;
    machine().wait(event(e));
  };
  a.seconds = [](Handle from, Handle to) { return machine().seconds(event(from), event(to)); };
  a.compile = [](int, const std::vector<Kernel>& all) { return compile(all); };
  a.launch = launch;
  a.make_product = make_product;
  a.multiply = multiply;
  a.make_products = [](int d, const Product& p, const CudaOptions& w, int) {
    return std::vector{make_product(d, p, w)};
  };
  a.workspace = [] { return kWorkspace; };
  a.begin_graph = [](Handle s) { machine().begin_graph(stream(s)); };
  a.end_graph = [](Handle s) -> Handle { return new SharedGraph(machine().end_graph(stream(s))); };
  a.drop_graph = [](Handle g) { delete &graph(g); };
  a.instantiate = [](Handle g) -> Handle {
    machine().refuse_in_graph("instantiates a graph");
    ++counters.instances;
    return new SharedGraph(graph(g));
  };
  a.update = update;
  a.run_graph = [](Handle s, Handle i) {
    ++counters.graphs;
    machine().run_graph(stream(s), graph(i));
  };
  a.end_instance = [](Handle i) { delete &graph(i); };
  a.has_ifs = [] { return true; };
  a.begin_if = begin_if;
  a.end_if = [](Handle s) { machine().end_if(stream(s)); };
  a.make_id = make_id;
  a.join = join;
  a.exchange = exchange;
  a.abort = [](Handle c) { machine().abort(*static_cast<Member*>(c)->network); };
  a.leave = [](Handle c) {
    auto* m = static_cast<Member*>(c);
    machine().leave(*m->network);
    delete m;
  };
  return a;
}

}  // namespace

const Api& simulated() {
  static const Api api = table();
  return api;
}
std::unique_ptr<program::Device> make_simulated_device() {
  return make_device(simulated(), cuda_options(std::getenv("HALIAX_CUDA")), kH100);
}
SimulationCounts simulation_counts() {
  auto& c = counters;
  return {c.kernels,   c.products,       c.copies, c.exchanges, c.texts,
          c.instances, c.updates,        c.graphs, c.taken,     machine().grown(),
          c.waits,     machine().sent(), c.ifs};
}
void set_simulated_gpus(int n, int first) {
  gpus_there = n;
  first_gpu = first;
}
SimulatedMemory simulated_memory(int device) {
  const auto [now, most] = machine().held(device);
  return {now, most};
}
void set_simulated_memory(int device, std::int64_t bytes) { machine().set_memory(device, bytes); }
void inject_fault(int device, const std::string& why) { machine().fail(device, why); }

}  // namespace haliax::cuda
