// The table of functions for CUDA: driver, NVRTC, cuBLASLt and NCCL. All calls on a device use its
// primary context, which other libraries of the process share.
#include "gpu_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "cublas.h"
#include "driver.h"
#include "nccl.h"
#include "nvrtc.h"
#include "tuned.h"

namespace haliax::cuda {
namespace {

// ---- errors ----
// Returns true if the error makes the context unusable.
bool ends_device(CUresult r) {
  switch (r) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
      return true;
    default:
      return false;
  }
}
std::string error_text(CUresult r) {
  const char* text = nullptr;
  if (driver().error_string(r, &text) != CUDA_SUCCESS || !text)
    return fmt::format("error {}", int(r));
  return text;
}
void must(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return;
  if (ends_device(r)) throw Fault(error_text(r));
  throw Error(fmt::format("[cuda] driver error ({}): {}", what, error_text(r)));
}

// ---- devices ----
struct Device {
  CUdevice id = 0;
  CUcontext context = nullptr;
  CUmemoryPool pool = nullptr;
  int sm = 0;
  void* cublas = nullptr;  // created on first use
};
struct Stream {
  CUstream stream;
  const Device* device;
};
struct Event {
  CUevent event;
  const Device* device;
};
int sm_of(CUdevice id) {
  int major = 0, minor = 0;
  must(driver().attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, id),
       "compute capability");
  must(driver().attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, id),
       "compute capability");
  return 10 * major + minor;
}
std::mutex lock;  // guards objects that are created once
// Returns the device, and makes its context current on this thread.
Device& device(int d) {
  static auto* all = new std::map<int, Device>;
  std::lock_guard hold(lock);
  auto& found = (*all)[d];
  if (!found.context) {
    must(driver().device(&found.id, d), "a device");
    found.sm = sm_of(found.id);
    must(driver().pool(&found.pool, found.id), "memory pool of a device");
    cuuint64_t all_of_it = ~cuuint64_t(0);  // released memory stays in the pool
    must(driver().set_pool(found.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all_of_it),
         "threshold of the memory pool");
    must(driver().context(&found.context, found.id), "a context");
  }
  must(driver().set_context(found.context), "a context");
  return found;
}
const Stream& on(Handle h) {
  auto& s = *static_cast<Stream*>(h);
  must(driver().set_context(s.device->context), "a context");
  return s;
}
const Event& event(Handle h) {
  auto& e = *static_cast<Event*>(h);
  must(driver().set_context(e.device->context), "a context");
  return e;
}
CUdeviceptr address(const void* p) { return CUdeviceptr(reinterpret_cast<std::uintptr_t>(p)); }

Gpus gpus() {
  Gpus c;
  auto& d = driver();
  if (d.missing && !d.version) return c;
  c.needed = CUDA_VERSION;
  if (auto r = d.version(&c.driver); r != CUDA_SUCCESS) {
    c.driver = c.needed;
    c.error = d.error_string ? error_text(r) : fmt::format("error {}", int(r));
    return c;
  }
  if (c.driver / 1000 < c.needed / 1000) return c;
  int count = 0;
  if (auto r = d.missing ? CUDA_ERROR_NOT_FOUND : d.init(0); r != CUDA_SUCCESS) {
    if (r != CUDA_ERROR_NO_DEVICE)
      c.error = d.missing ? std::string("the driver has no ") + d.missing : error_text(r);
    return c;
  }
  must(d.count(&count), "device count");
  for (int k = 0; k < count; ++k) {
    CUdevice id = 0;
    char name[256] = "";
    CUuuid uuid{};
    must(d.device(&id, k), "a device");
    must(d.device_name(name, sizeof name, id), "device name");
    must(d.device_id(&uuid, id), "device name");
    std::string id_text;
    for (unsigned char byte : uuid.bytes) id_text += fmt::format("{:02x}", byte);
    c.gpus.push_back({name, sm_of(id), std::move(id_text)});
  }
  return c;
}
std::int64_t free_bytes(int d) {
  auto& gpu = device(d);
  std::size_t free = 0, all = 0;
  cuuint64_t reserved = 0, used = 0;  // unused memory of the pool is free for this process
  must(driver().memory(&free, &all), "free memory");
  must(driver().get_pool(gpu.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved),
       "reserved memory");
  must(driver().get_pool(gpu.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), "used memory");
  return std::int64_t(free + reserved - used);
}

// ---- waiting: a failed GPU leaves its peers in the middle of their transfers ----
// A member of a communicator.
struct Member {
  Handle nccl;
  const Device* device;
  std::string id;
  Check check;            // for ranks in other processes
  std::string lost = {};  // error that it raised
};
std::mutex joined_lock;
std::list<Member*>& joined() {
  static auto* all = new std::list<Member*>;
  return *all;
}
void refuse_lost(const Device& mine) {
  for (auto* m : joined())
    if (m->device == &mine && !m->lost.empty()) throw Lost(m->lost);
}
// Aborts transfers if a participating GPU of this process, or another process, has failed. Raises
// an error that names it.
void look_at_others(const Device& mine, std::chrono::nanoseconds waited) {
  std::lock_guard hold(joined_lock);
  for (auto* m : joined()) {
    if (m->device == &mine) {
      try {
        if (m->check && m->lost.empty()) m->check(waited);
      } catch (const Error& e) {
        m->lost = e.what();
        nccl_abort(m->nccl);
      }
      refuse_lost(mine);
    } else if (driver().set_context(m->device->context) == CUDA_SUCCESS) {
      const auto r = driver().is_done(nullptr);
      if (!ends_device(r)) continue;
      for (auto* other : joined()) nccl_abort(other->nccl);
      throw Fault(fmt::format("device {} has failed: {}", int(m->device->id), error_text(r)));
    }
  }
}
// Blocks the host until is_done, and checks the peers meanwhile.
template <class F> void wait_for(const Device& mine, const F& is_done) {
  bool alone = true;
  {
    std::lock_guard hold(joined_lock);
    alone = joined().empty();
  }
  const auto since = std::chrono::steady_clock::now();
  while (!alone && is_done() == CUDA_ERROR_NOT_READY) {
    look_at_others(mine, std::chrono::steady_clock::now() - since);
    must(driver().set_context(mine.context), "a context");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::lock_guard hold(joined_lock);
  refuse_lost(mine);  // the work was aborted rather than completed
}
void wait(Handle s) {
  auto& at = on(s);
  wait_for(*at.device, [&] { return driver().is_done(at.stream); });
  must(driver().wait(at.stream), "wait for a stream");
}
void wait_event(Handle h) {
  auto& e = event(h);
  wait_for(*e.device, [&] { return driver().has_come(e.event); });
  must(driver().wait_event(e.event), "wait for an event");
}
Handle join(const std::string& id, int ranks, int rank, int d, const Check& check) {
  auto& gpu = device(d);
  auto* mine = new Member{nccl_join(id, ranks, rank), &gpu, id, check};
  std::lock_guard hold(joined_lock);
  joined().push_back(mine);
  return mine;
}
// Aborts all members in this process, which would otherwise wait forever.
void abort(Handle h) {
  std::lock_guard hold(joined_lock);
  for (auto* m : joined())
    if (m->id == static_cast<Member*>(h)->id) nccl_abort(m->nccl);
}
void leave(Handle h) {
  auto* mine = static_cast<Member*>(h);
  {
    std::lock_guard hold(joined_lock);
    joined().remove(mine);
  }
  nccl_leave(mine->nccl);
  delete mine;
}

// ---- memory and copies ----
void* allocate(Handle s, std::int64_t bytes) {
  CUdeviceptr got = 0;
  const auto r = driver().allocate(&got, std::size_t(bytes), on(s).stream);
  if (r == CUDA_ERROR_OUT_OF_MEMORY) return nullptr;
  must(r, "memory");
  return reinterpret_cast<void*>(got);
}
// Ignores errors, which are expected after a fault and at the end of the process.
void release(Handle s, void* p) {
  auto& at = *static_cast<Stream*>(s);
  if (driver().set_context(at.device->context) == CUDA_SUCCESS)
    driver().release(address(p), at.stream);
}
void* allocate_host(std::int64_t bytes) {
  void* got = nullptr;
  must(driver().allocate_host(&got, std::size_t(bytes),
                              CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
       "host memory");
  return got;
}

// ---- kernels ----
bool exact = false;  // no contracted multiply-adds; set by HALIAX_CUDA
std::vector<Handle> compile(int d, const std::vector<Kernel>& kernels) {
  static std::mutex compiling;
  // By architecture and name; shared by all devices.
  static auto* known = new std::map<std::pair<int, std::string>, CUkernel>;
  const int sm = device(d).sm;
  std::lock_guard hold(compiling);
  std::vector<Handle> out;
  for (auto& k : kernels) {
    auto& created = (*known)[{sm, k.name}];
    if (!created) {
      const auto cubin = cached_cubin(source_for_gpu(k), sm, exact);
      CUlibrary library = nullptr;
      must(driver().load(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
           "a kernel");
      must(driver().kernel(&created, library, k.name.c_str()), "a kernel");
    }
    out.push_back(created);
  }
  return out;
}
void launch(Handle s, Handle kernel, const Launch& l, const std::int64_t* words) {
  // default limit of shared memory; more must be requested
  constexpr std::int64_t usual = 48 << 10;
  if (l.shared > usual)
    must(driver().set_kernel(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int(l.shared),
                             static_cast<CUkernel>(kernel), on(s).device->id),
         "shared memory");
  // a single struct, whose size the kernel defines
  void* arguments[] = {const_cast<std::int64_t*>(words)};
  must(driver().launch(static_cast<CUfunction>(kernel), unsigned(l.blocks), 1, 1,
                       unsigned(l.threads), 1, 1, unsigned(l.shared), on(s).stream, arguments,
                       nullptr),
       "a launch");
}

// ---- matmuls ----
struct Multiplier {
  int device;
  Product product;
  bool tf32;
  CublasProduct matmul;
  CublasProduct::Algorithm how;
};
void* library_of(Device& d) {
  std::lock_guard hold(lock);
  if (!d.cublas) d.cublas = make_cublas();
  return d.cublas;
}
CublasProduct::Algorithm fastest(Device&, const CublasProduct&, const Product&);
Handle make_product(int d, const Product& p, const CudaOptions& options) {
  static std::mutex making;
  static auto* all = new std::list<Multiplier>;  // equal ones share an entry
  std::lock_guard hold(making);
  for (auto& m : *all)
    if (m.device == d && m.product == p && m.tf32 == options.tf32) return &m;
  auto& gpu = device(d);
  CublasProduct matmul(p, options.tf32);
  const auto what = fmt::format("sm_{} {}{}", gpu.sm, to_string(p), options.tf32 ? " tf32" : "");
  auto* library = library_of(gpu);  // also with a tuned algorithm, because multiply uses it
  auto how = tuned(what);
  if (!how) how = options.tune ? fastest(gpu, matmul, p) : matmul.algorithms(library, 1)[0];
  if (options.tune) keep_tuned(what, *how);
  return &all->emplace_back(Multiplier{d, p, options.tf32, std::move(matmul), *how});
}
// Returns the fastest of the library's first candidates: by the median of several timed runs, with
// separate operands.
CublasProduct::Algorithm fastest(Device& d, const CublasProduct& matmul, const Product& p) {
  auto& drv = driver();
  CUstream stream = nullptr;
  CUevent from = nullptr, to = nullptr;
  must(drv.make_stream(&stream, CU_STREAM_NON_BLOCKING), "a stream");
  must(drv.make_event(&from, CU_EVENT_DEFAULT), "an event");
  must(drv.make_event(&to, CU_EVENT_DEFAULT), "an event");
  std::vector<CUdeviceptr> memory;
  for (auto bytes :
       {bytes_of(p.a, p.batch), bytes_of(p.b, p.batch), bytes_of(p.out, p.batch), kCublasWorkspace})
    must(drv.allocate(&memory.emplace_back(), std::size_t(bytes), stream), "memory to tune with");
  auto at = [&](std::size_t k) { return reinterpret_cast<void*>(memory[k]); };
  std::vector<std::pair<float, CublasProduct::Algorithm>> times;
  for (auto& how : matmul.algorithms(library_of(d), 8)) {
    std::vector<float> mine;
    for (int k = 0; k < 7; ++k) {
      float ms = 0;
      must(drv.record(from, stream), "an event");
      matmul.run(library_of(d), stream, how, at(0), at(1), at(2), at(3));
      must(drv.record(to, stream), "an event");
      must(drv.wait(stream), "wait for a stream");
      must(drv.elapsed(&ms, from, to), "a time");
      mine.push_back(ms);
    }
    std::nth_element(mine.begin(), mine.begin() + 3, mine.end());
    times.emplace_back(mine[3], how);
  }
  for (auto m : memory) drv.release(m, stream);
  drv.wait(stream);
  drv.end_event(from);
  drv.end_event(to);
  drv.end_stream(stream);
  return std::min_element(times.begin(), times.end(),
                          [](auto& a, auto& b) { return a.first < b.first; })
      ->second;
}
std::vector<Handle> make_products(int d, const Product& p, const CudaOptions& options, int most) {
  std::vector<Handle> all;
  for (auto& how : CublasProduct(p, options.tf32).algorithms(library_of(device(d)), most))
    // never freed
    all.push_back(new Multiplier{d, p, options.tf32, CublasProduct(p, options.tf32), how});
  return all;
}
void multiply(Handle s, Handle product, const void* a, const void* b, void* out, void* workspace) {
  auto& m = *static_cast<Multiplier*>(product);
  auto& stream = on(s);
  m.matmul.run(stream.device->cublas, stream.stream, m.how, a, b, out, workspace);
}

// ---- graphs ----
Handle end_graph(Handle s) {
  CUgraph graph = nullptr;
  must(driver().end_graph(on(s).stream, &graph), "end of a graph");
  return graph;
}
Handle instantiate(Handle graph) {
  CUgraphExec created = nullptr;
  must(driver().instantiate(&created, static_cast<CUgraph>(graph), 0), "a graph");
  return created;
}
bool update(Handle instance, Handle graph) {
  CUgraphExecUpdateResultInfo info{};
  return driver().update(static_cast<CUgraphExec>(instance), static_cast<CUgraph>(graph), &info) ==
         CUDA_SUCCESS;
}

// A kernel sets a condition of the captured graph. After it follows a conditional node, whose body
// is captured in a separate stream.
bool has_ifs() { return driver().has_ifs && can_link(); }
#if CUDA_VERSION >= 13000
// Streams for bodies are created in advance, because a capture restricts the creation of objects.
constexpr std::size_t kReady = 4;  // nesting depth of conditional nodes
std::map<const Device*, std::vector<Handle>>& ready() {
  static auto* all = new std::map<const Device*, std::vector<Handle>>;
  return *all;
}
std::mutex ready_lock;
Handle stream_inside(const Device& d) {
  std::lock_guard hold(ready_lock);
  auto& all = ready()[&d];
  if (all.empty()) {
    CUstream created = nullptr;
    must(driver().make_stream(&created, CU_STREAM_NON_BLOCKING), "a stream");
    return new Stream{created, &d};
  }
  auto one = all.back();
  all.pop_back();
  return one;
}
void keep_ready(Handle s) {
  std::lock_guard hold(ready_lock);
  ready()[static_cast<Stream*>(s)->device].push_back(s);
}
void prepare_ifs(const Device& d) {
  if (!has_ifs()) return;
  std::vector<Handle> some;
  while (some.size() < kReady) some.push_back(stream_inside(d));
  for (auto s : some) keep_ready(s);
}
struct Captured {
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> dependencies = {};  // the next node depends on these
};
Captured captured(const Stream& s) {
  CUstreamCaptureStatus status{};
  Captured c;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  must(driver().captured(s.stream, &status, nullptr, &c.graph, &nodes, &edges, &count),
       "state of a graph capture");
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    throw Error("[cuda] a conditional node begins outside of a graph capture");
  c.dependencies.assign(nodes, nodes + count);
  return c;
}
Handle begin_if(Handle h, Handle kernel, const Launch& l, std::int64_t* words) {
  auto& s = on(h);
  CUgraphConditionalHandle condition = 0;
  must(driver().make_condition(&condition, captured(s).graph, s.device->context, 0,
                               CU_GRAPH_COND_ASSIGN_DEFAULT),
       "a condition");
  words[l.arguments.size() - 1] = std::int64_t(condition);
  launch(h, kernel, l, words);
  const auto now = captured(s);
  CUgraphNodeParams node{};
  node.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  node.conditional.handle = condition;
  node.conditional.type = CU_GRAPH_COND_TYPE_IF;
  node.conditional.size = 1;
  node.conditional.ctx = s.device->context;
  CUgraphNode created = nullptr;
  must(driver().add_node(&created, now.graph, now.dependencies.data(), nullptr,
                         now.dependencies.size(), &node),
       "a conditional node");
  must(driver().update_capture_dependencies(s.stream, &created, nullptr, 1,
                                            CU_STREAM_SET_CAPTURE_DEPENDENCIES),
       "a conditional node");
  const auto inside = stream_inside(*s.device);
  must(driver().begin_inside(on(inside).stream, node.conditional.phGraph_out[0], nullptr, nullptr,
                             0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
       "a conditional node");
  return inside;
}
void end_if(Handle inside) {
  CUgraph same = nullptr;  // the graph of the body
  must(driver().end_graph(on(inside).stream, &same), "the end of a conditional node");
  keep_ready(inside);
}
#else
void prepare_ifs(const Device&) {}
// Never called, because has_ifs is false.
Handle begin_if(Handle, Handle, const Launch&, std::int64_t*) { return nullptr; }
void end_if(Handle) {}
#endif

Api table() {
  Api a;
  a.name = "cuda";
  a.gpus = gpus;
  a.free_bytes = free_bytes;
  a.allocate = allocate;
  a.release = release;
  a.allocate_host = allocate_host;
  a.release_host = [](void* p) { driver().release_host(p); };
  a.put = [](Handle s, void* to, const void* from, std::int64_t n) {
    must(driver().put(address(to), from, std::size_t(n), on(s).stream), "a copy");
  };
  a.get = [](Handle s, void* to, const void* from, std::int64_t n) {
    must(driver().get(to, address(from), std::size_t(n), on(s).stream), "a copy");
  };
  a.copy = [](Handle s, void* to, const void* from, std::int64_t n) {
    must(driver().copy(address(to), address(from), std::size_t(n), on(s).stream), "a copy");
  };
  a.make_stream = [](int d) -> Handle {
    auto& gpu = device(d);
    CUstream created = nullptr;
    must(driver().make_stream(&created, CU_STREAM_NON_BLOCKING), "a stream");
    return new Stream{created, &gpu};
  };
  a.end_stream = [](Handle s) {
    driver().end_stream(static_cast<Stream*>(s)->stream);
    delete static_cast<Stream*>(s);
  };
  a.wait = wait;
  a.mark = [](Handle s, std::int64_t* to, std::int64_t n) {
    must(driver().mark(on(s).stream, address(to), cuuint64_t(n), CU_STREAM_WRITE_VALUE_DEFAULT),
         "a mark");
  };
  a.make_event = [](int d) -> Handle {
    auto& gpu = device(d);
    CUevent created = nullptr;
    must(driver().make_event(&created, CU_EVENT_DEFAULT), "an event");
    return new Event{created, &gpu};
  };
  a.end_event = [](Handle e) {
    driver().end_event(static_cast<Event*>(e)->event);
    delete static_cast<Event*>(e);
  };
  a.record = [](Handle e, Handle s) {
    must(driver().record(event(e).event, on(s).stream), "an event");
  };
  a.follow = [](Handle s, Handle e) {
    must(driver().follow(on(s).stream, static_cast<Event*>(e)->event, CU_EVENT_WAIT_DEFAULT),
         "wait for an event");
  };
  a.wait_event = wait_event;
  a.seconds = [](Handle from, Handle to) {
    float ms = 0;
    must(driver().elapsed(&ms, event(from).event, event(to).event), "a time");
    return double(ms) / 1e3;
  };
  a.compile = compile;
  a.launch = launch;
  a.make_product = make_product;
  a.make_products = make_products;
  a.multiply = multiply;
  a.workspace = [] { return kCublasWorkspace; };
  a.begin_graph = [](Handle s) {
    auto& at = on(s);
    prepare_ifs(*at.device);
    must(driver().begin_graph(at.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "a graph");
  };
  a.end_graph = end_graph;
  a.drop_graph = [](Handle g) { driver().drop_graph(static_cast<CUgraph>(g)); };
  a.instantiate = instantiate;
  a.update = update;
  a.run_graph = [](Handle s, Handle i) {
    must(driver().run_graph(static_cast<CUgraphExec>(i), on(s).stream), "graph launch");
  };
  a.end_instance = [](Handle i) { driver().end_instance(static_cast<CUgraphExec>(i)); };
  a.has_ifs = has_ifs;
  a.begin_if = begin_if;
  a.end_if = end_if;
  a.make_id = nccl_id;
  a.join = join;
  a.leave = leave;
  a.exchange = [](Handle c, Handle s, const std::vector<Transfer>& all) {
    nccl_exchange(static_cast<Member*>(c)->nccl, on(s).stream, all);
  };
  a.abort = abort;
  return a;
}

}  // namespace

const Api& gpu(const CudaOptions& options) {
  static const Api api = table();
  exact = options.exact;
  return api;
}

}  // namespace haliax::cuda
