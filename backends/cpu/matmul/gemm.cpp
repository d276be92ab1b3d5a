// Plan and run: matmuls by oneDNN or by a kernel of this backend, with a cache of oneDNN primitives
// by shape.
#include "gemm.h"

#include <dnnl.hpp>
#include <atomic>
#include <map>
#include <mutex>
#include <string_view>

#include "backends/cpu/kernels.h"
#include "base/fork.h"
#include "haliax/error.h"

// Functions of the OpenMP runtime that oneDNN uses, if it uses one.
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int);
__attribute__((weak)) int omp_get_max_threads(void);
}

namespace haliax::cpu {
namespace {

// Limits oneDNN to one thread, because this backend runs blocks on its own threads.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads ? omp_get_max_threads() : 1) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }

 private:
  int before_;
};

const dnnl::engine& engine() {
  kernels();  // limits the instruction set of oneDNN before its first use
  static const auto& cpu = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// held while oneDNN creates objects, which acquires its internal locks
constinit std::mutex making;
const bool forks = at_fork({kForkProducts, [] { making.lock(); }, [] { making.unlock(); }});

bool has_type(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }
dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}
dnnl::memory::desc describe(DType dtype, std::int64_t g, std::int64_t rows, std::int64_t cols,
                            const std::int64_t (&stride)[3]) {
  if (g == 1) return {{rows, cols}, type_of(dtype), dnnl::memory::dims{stride[1], stride[2]}};
  return {{stride[0] == 0 ? 1 : g, rows, cols},
          type_of(dtype),
          dnnl::memory::dims{stride[0] == 0 ? rows * cols : stride[0], stride[1], stride[2]}};
}
// The smallest matmul that a kernel of this backend runs: in f32, in bf16 (other implementations
// widen bf16 slowly), and by a kernel that packs all rows of a.
struct SmallestMatmul {
  std::int64_t m, n, k;  // rows, columns and summed positions
  bool is_reached_by(const GemmShape& s) const { return s.m >= m && s.n >= n && s.k >= k; }
};
constexpr SmallestMatmul smallest_f32{8, 16, 8}, smallest_bf16{2, 4, 4},
    smallest_packed{16, 16, 16};
// the most summed positions of a matmul that accumulates in f32 and may have any number of rows
constexpr std::int64_t most_accumulated = 512;
// Returns true for matmuls in which the overhead of oneDNN exceeds the time of its multiplications.
bool is_small(const GemmShape& s) {
  if (!smallest_packed.is_reached_by(s)) return false;
  // Accumulating matmuls in f32 run in blocks of rows, so m has no limit. oneDNN is 1.7x slower for
  // them.
  if (s.accumulate && s.out == DType::f32 && s.k <= most_accumulated)
    return s.n * s.k <= 2 * most_packed;
  return s.m * s.k <= most_packed && s.n * s.k <= most_packed;
}
bool has_unit_strides(const GemmShape& s) {
  return (s.a_stride[1] == 1 || s.a_stride[2] == 1) && (s.b_stride[1] == 1 || s.b_stride[2] == 1);
}
Matmul matmul_of(const GemmShape& s, const void* a, const void* b, void* out,
                 const KernelBlockMask& block_mask, const MatmulTaps& taps) {
  return {
      .m = s.m,
      .n = s.n,
      .k = s.k,
      .type = s.a,
      .a = a,
      .a_m = s.a_stride[1],
      .a_k = s.a_stride[2],
      .b = b,
      .b_k = s.b_stride[1],
      .b_n = s.b_stride[2],
      .c = out,
      .c_m = s.out_stride[1],
      .out = s.out,
      .accumulate = s.accumulate,
      .block_mask = block_mask,
      .taps = taps.empty() ? nullptr : taps.data(),
      .tap_count = std::int64_t(taps.size()),
      .all_n = s.all_n,
  };
}
void check(dnnl_status_t status) {
  if (status != dnnl_success) throw Error("[dot] oneDNN failed to run a matmul");
}

}  // namespace

bool suits(const MatmulKernel* kernel, const GemmShape& s) {
  if (!kernel || s.a != s.b || (s.out != s.a && s.out != DType::f32) || s.out_stride[2] != 1)
    return false;
  if (kernel->only_small) return is_small(s) && has_unit_strides(s);
  return (s.a == DType::f32 ? smallest_f32 : smallest_bf16).is_reached_by(s);
}

class Gemm {
 public:
  explicit Gemm(const GemmShape& s) : shape(s) {
    if (s.kernel) return;  // accepts strides that oneDNN does not describe
    a = describe(s.a, s.g, s.m, s.k, s.a_stride);
    b = describe(s.b, s.g, s.k, s.n, s.b_stride);
    out = describe(s.out, s.g, s.m, s.n, s.out_stride);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    dnnl::matmul::primitive_desc description(engine(), a, b, out, attributes);
#else
    dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, out), attributes, engine());
#endif
    is_optimized =
        std::string_view(description.impl_info_str()).find("ref") == std::string_view::npos;
    scratch = description.scratchpad_desc();
    described = std::move(description);
  }
  // Returns the primitive, and compiles it on first use: candidate plans only query the scratch
  // size.
  const dnnl::primitive& primitive() const {
    if (created_.load(std::memory_order_acquire)) return primitive_;
    std::lock_guard lock(making);
    if (!created_.load(std::memory_order_relaxed)) {
      OneThread alone;
      primitive_ = dnnl::matmul(described);
      created_.store(true, std::memory_order_release);
    }
    return primitive_;
  }
  GemmShape shape;
  bool is_optimized = true;  // false: oneDNN has only its reference implementation
  dnnl::memory::desc a, b, out, scratch;
  dnnl::matmul::primitive_desc described;

 private:
  mutable std::atomic<bool> created_{false};
  mutable dnnl::primitive primitive_;
};

std::shared_ptr<const Gemm> find_gemm(const GemmShape& shape) {
  static auto& all = *new std::map<GemmShape, std::weak_ptr<const Gemm>>;
  if (!has_type(shape.a) || shape.a != shape.b || !has_type(shape.out) ||
      (shape.a == DType::f32 && shape.out != DType::f32))
    return nullptr;
  std::lock_guard lock(making);
  auto& known = all[shape];
  auto gemm = known.lock();
  if (gemm) return gemm;
  OneThread alone;
  try {
    gemm = std::make_shared<Gemm>(shape);
  } catch (const dnnl::error&) {  // unsupported dtypes or strides on this machine
    return nullptr;
  }
  if (!gemm->is_optimized) return nullptr;
  known = gemm;
  return gemm;
}
std::int64_t scratch_bytes(const Gemm& gemm, const MatmulTaps& taps) {
  const GemmShape& s = gemm.shape;
  if (s.kernel) return s.kernel->scratch_bytes(matmul_of(s, nullptr, nullptr, nullptr, {}, taps));
  return static_cast<std::int64_t>(gemm.scratch.get_size());
}

struct GemmCall::Handles {
  dnnl::stream stream;
  dnnl::memory a, b, out, scratch;
};
GemmCall::GemmCall(std::shared_ptr<const Gemm> gemm) : gemm_(std::move(gemm)) {
  if (gemm_->shape.kernel) return;
  gemm_->primitive();
  handles_ = std::make_unique<Handles>(Handles{dnnl::stream(engine()),
                                               {gemm_->a, engine(), DNNL_MEMORY_NONE},
                                               {gemm_->b, engine(), DNNL_MEMORY_NONE},
                                               {gemm_->out, engine(), DNNL_MEMORY_NONE},
                                               {gemm_->scratch, engine(), DNNL_MEMORY_NONE}});
}
GemmCall::GemmCall(GemmCall&&) noexcept = default;
GemmCall::~GemmCall() = default;

void GemmCall::run(const void* a, const void* b, void* out, void* scratch, const Options& options) {
  if (gemm_->shape.kernel) {
    const GemmShape& s = gemm_->shape;
    const auto at = [](auto* p, std::int64_t elements, DType dtype) {
      return p + elements * haliax::bytes_of(dtype);
    };
    const auto *first_a = static_cast<const std::byte*>(a),
               *first_b = static_cast<const std::byte*>(b);
    for (std::int64_t g = 0; g < s.g; ++g)
      s.kernel->run(
          matmul_of(s, at(first_a, g * s.a_stride[0], s.a), at(first_b, g * s.b_stride[0], s.b),
                    at(static_cast<std::byte*>(out), g * s.out_stride[0], s.out),
                    options.block_mask, options.taps),
          scratch);
    return;
  }
  OneThread alone;
  Handles& h = *handles_;
  check(dnnl_memory_set_data_handle(h.a.get(), const_cast<void*>(a)));
  check(dnnl_memory_set_data_handle(h.b.get(), const_cast<void*>(b)));
  check(dnnl_memory_set_data_handle(h.out.get(), out));
  check(dnnl_memory_set_data_handle(h.scratch.get(), scratch));
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, h.a.get()},
                                       {DNNL_ARG_WEIGHTS, h.b.get()},
                                       {DNNL_ARG_DST, h.out.get()},
                                       {DNNL_ARG_SCRATCHPAD, h.scratch.get()}};
  check(dnnl_primitive_execute(gemm_->primitive().get(), h.stream.get(), 4, arguments));
}

}  // namespace haliax::cpu
