// The plugin libhaliax_cuda-dry: the backend `cuda-dry`, a GPU of sm_90 on which all operations
// succeed without effect. Programs of any size that run on it fill HALIAX_CACHE with the kernels
// that a GPU would compile for them.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "nvidia/cublas.h"
#include "engine/engine.h"
#include "nvidia/nvrtc.h"
#include "program/plugin.h"

namespace haliax::cuda {
namespace {

constexpr int kSm = 90;
bool exact = false;

// Addresses that the host must not access, like the memory of a GPU.
class Memory {
 public:
  void* allocate(std::int64_t bytes) {
    constexpr std::int64_t page = 4096;
    const auto mapped_bytes = std::size_t((bytes + page - 1) / page * page);
    auto* address =
        mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    std::lock_guard hold(lock_);
    taken_[address] = mapped_bytes;
    return address;
  }
  void release(void* p) {
    std::lock_guard hold(lock_);
    if (auto found = taken_.find(p); found != taken_.end()) {
      munmap(p, found->second);
      taken_.erase(found);
    }
  }

 private:
  std::mutex lock_;
  std::map<void*, std::size_t> taken_;
};
Memory& memory() {
  static auto* one = new Memory;
  return *one;
}
Handle handle() {  // a dummy for all objects; never dereferenced
  static int one = 0;
  return &one;
}
std::vector<Handle> compile(int, const std::vector<Kernel>& kernels) {
  for (auto& k : kernels) cached_cubin(source_for_gpu(k), kSm, exact);
  return std::vector<Handle>(kernels.size(), handle());
}

Api table() {
  Api a;
  a.name = "cuda-dry";
  a.gpus = [] { return Gpus{.driver = 13000, .needed = 13000, .gpus = {{"none", kSm}}}; };
  a.free_bytes = [](int) { return std::int64_t(80) << 30; };
  a.allocate = [](Handle, std::int64_t n) { return memory().allocate(n); };
  a.release = [](Handle, void* p) { memory().release(p); };
  a.allocate_host = [](std::int64_t n) { return std::malloc(std::size_t(n)); };
  a.release_host = [](void* p) { std::free(p); };
  a.put = [](Handle, void*, const void*, std::int64_t) {};
  a.get = [](Handle, void* to, const void*, std::int64_t n) { std::memset(to, 0, std::size_t(n)); };
  a.copy = a.put;
  a.make_stream = a.make_event = [](int) { return handle(); };
  a.end_stream = a.end_event = a.wait = a.wait_event = a.begin_graph = a.drop_graph =
      a.end_instance = a.abort = a.leave = [](Handle) {};
  a.mark = [](Handle, std::int64_t* to, std::int64_t n) { *to = n; };
  a.record = a.follow = a.run_graph = [](Handle, Handle) {};
  a.seconds = [](Handle, Handle) { return 1e-6; };
  a.compile = compile;
  a.launch = [](Handle, Handle, const Launch&, const std::int64_t*) {};
  a.make_product = [](int, const Product&, const CudaOptions&) { return handle(); };
  a.make_products = [](int, const Product&, const CudaOptions&, int) {
    return std::vector<Handle>{handle()};
  };
  a.workspace = [] { return kCublasWorkspace; };
  a.multiply = [](Handle, Handle, const void*, const void*, void*, void*) {};
  a.end_graph = a.instantiate = [](Handle) { return handle(); };
  a.update = [](Handle, Handle) { return true; };
  a.has_ifs = [] { return false; };  // a machine without the toolkit cannot link kSetCondition
  a.make_id = [] { return std::string(); };
  a.join = [](const std::string&, int, int, int, const Check&) { return handle(); };
  a.exchange = [](Handle, Handle, const std::vector<Transfer>&) {};
  return a;
}
program::Device* device() {
  static auto* one = [] {
    static const Api api = table();
    const auto options = cuda_options(std::getenv("HALIAX_CUDA"));
    exact = options.exact;
    return make_device(api, options, kH100).release();
  }();
  return one;
}

}  // namespace
}  // namespace haliax::cuda

const haliax::program::Plugin* haliax_plugin() {
  using namespace haliax;
  static const program::Plugin mine{program::library_version(), program::abi_hash(), cuda::device};
  return &mine;
}
