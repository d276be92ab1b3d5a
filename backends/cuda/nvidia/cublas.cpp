// Matmuls by cuBLASLt; see cublas.h.
#include "cublas.h"

#include <fmt/format.h>

#include "haliax/error.h"
#include "library.h"

namespace haliax::cuda {
namespace {

// The used part of cuBLASLt's interface, by its numeric constants, which are unchanged since CUDA
// 11.
enum Dtype { kF32 = 0, kF64 = 1, kF16 = 2, kBf16 = 14 };
enum Compute { kComputeF32 = 68, kComputeF64 = 70, kComputeTf32 = 77 };
enum DescriptorField { kCompute = 0, kTransposeA = 3, kTransposeB = 4 };
enum LayoutField { kType = 0, kRowCount = 2, kColCount = 3, kLd = 4, kBatch = 5, kStep = 6 };
enum PreferenceField {
  kWorkspace = 1,
  kReductions = 3,
  kAlignA = 5,
  kAlignB = 6,
  kAlignC = 7,
  kAlignD = 8
};
// reductions of partial sums: bits of a mask
constexpr std::uint32_t kNone = 0, kInComputeType = 2;

// A result of the library's heuristic, with the library's layout.
struct Guess {
  CublasProduct::Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
struct Cublas {
  using Handle = void*;
  int (*make)(Handle*) = nullptr;
  int (*guess)(Handle, Handle product, Handle a, Handle b, Handle c, Handle d, Handle preference,
               int most, Guess*, int* found) = nullptr;
  int (*multiply)(Handle, Handle product, const void* alpha, const void* a, Handle, const void* b,
                  Handle, const void* beta, const void* c, Handle, void* d, Handle,
                  const CublasProduct::Algorithm*, void* workspace, std::size_t,
                  void* stream) = nullptr;
  int (*make_descriptor)(Handle*, int compute, int scale) = nullptr;
  int (*free_descriptor)(Handle) = nullptr;
  int (*set_descriptor)(Handle, int field, const void*, std::size_t) = nullptr;
  int (*get_descriptor)(Handle, int field, void*, std::size_t, std::size_t*) = nullptr;
  int (*make_layout)(Handle*, int type, std::uint64_t rows, std::uint64_t cols,
                     std::int64_t ld) = nullptr;
  int (*free_layout)(Handle) = nullptr;
  int (*set_layout)(Handle, int field, const void*, std::size_t) = nullptr;
  int (*get_layout)(Handle, int field, void*, std::size_t, std::size_t*) = nullptr;
  int (*make_preference)(Handle*) = nullptr;
  int (*free_preference)(Handle) = nullptr;
  int (*set_preference)(Handle, int field, const void*, std::size_t) = nullptr;
  int (*get_preference)(Handle, int field, void*, std::size_t, std::size_t*) = nullptr;
  bool there = false;

  Cublas() {
    const Library library({"libcublasLt.so.13", "libcublasLt.so.12"});
    auto find = [&](auto& f, const char* name) { return library.find(f, name); };
    there = find(make_descriptor, "cublasLtMatmulDescCreate") &&
            find(free_descriptor, "cublasLtMatmulDescDestroy") &&
            find(set_descriptor, "cublasLtMatmulDescSetAttribute") &&
            find(get_descriptor, "cublasLtMatmulDescGetAttribute") &&
            find(make_layout, "cublasLtMatrixLayoutCreate") &&
            find(free_layout, "cublasLtMatrixLayoutDestroy") &&
            find(set_layout, "cublasLtMatrixLayoutSetAttribute") &&
            find(get_layout, "cublasLtMatrixLayoutGetAttribute") &&
            find(make_preference, "cublasLtMatmulPreferenceCreate") &&
            find(free_preference, "cublasLtMatmulPreferenceDestroy") &&
            find(set_preference, "cublasLtMatmulPreferenceSetAttribute") &&
            find(get_preference, "cublasLtMatmulPreferenceGetAttribute") &&
            find(make, "cublasLtCreate") && find(guess, "cublasLtMatmulAlgoGetHeuristic") &&
            find(multiply, "cublasLtMatmul");
  }
};
const Cublas& cublas() {
  static const Cublas one;
  return one;
}

void must(int status, const char* what) {
  if (status != 0) throw Error(fmt::format("[cuda] cuBLASLt error ({}, status {})", what, status));
}
int type_of(DType d) {
  return d == DType::f32 ? kF32 : d == DType::f64 ? kF64 : d == DType::f16 ? kF16 : kBf16;
}
DType dtype_of(int type) {
  return type == kF32   ? DType::f32
         : type == kF64 ? DType::f64
         : type == kF16 ? DType::f16
                        : DType::bf16;
}

}  // namespace

bool has_cublas() { return cublas().there; }

struct CublasProduct::Impl {
  using Set = int (*)(Cublas::Handle, int, const void*, std::size_t);
  using Get = int (*)(Cublas::Handle, int, void*, std::size_t, std::size_t*);
  const Cublas& lib = cublas();
  Cublas::Handle descriptor = nullptr, a = nullptr, b = nullptr, out = nullptr,
                 preference = nullptr;
  bool wide = false, accumulate = false;  // f64; add to the previous result

  template <class T> void set(Set f, Cublas::Handle h, int field, T value, const char* what) {
    must(f(h, field, &value, sizeof value), what);
  }
  template <class T> T get(Get f, Cublas::Handle h, int field, const char* what) const {
    T value{};
    std::size_t written = 0;
    must(f(h, field, &value, sizeof value, &written), what);
    return value;
  }
  void lay(Cublas::Handle& h, const Matrix& m, std::int64_t batch) {
    must(lib.make_layout(&h, type_of(m.dtype), std::uint64_t(m.rows), std::uint64_t(m.cols), m.ld),
         "a matrix");
    set(lib.set_layout, h, kBatch, std::int32_t(batch), "a batch");
    set(lib.set_layout, h, kStep, m.step, "batch stride");
  }
  Matrix laid(Cublas::Handle h, int alignment, bool transposed) const {
    auto number = [&](int field) {
      return get<std::int64_t>(lib.get_layout, h, field, "matrix layout");
    };
    auto type = get<std::int32_t>(lib.get_layout, h, kType, "matrix dtype");
    return {dtype_of(type), number(kRowCount), number(kColCount), number(kLd),
            number(kStep),  alignment,         transposed};
  }
  bool transposed(int field) const {
    return get<std::int32_t>(lib.get_descriptor, descriptor, field, "transposition") != 0;
  }
  int alignment(int field) const {
    return int(get<std::uint32_t>(lib.get_preference, preference, field, "alignment"));
  }
};

CublasProduct::CublasProduct(const Product& p, bool tf32) : impl_(std::make_unique<Impl>()) {
  auto& i = *impl_;
  if (!i.lib.there)
    throw Error(
        "[cuda] libcublasLt.so.13 (or .12) is not found: it is part of the CUDA toolkit; add it to "
        "the loader's path");
  i.wide = p.out.dtype == DType::f64;
  i.accumulate = p.accumulate;
  const auto compute = i.wide                            ? kComputeF64
                       : tf32 && p.a.dtype == DType::f32 ? kComputeTf32
                                                         : kComputeF32;
  must(i.lib.make_descriptor(&i.descriptor, compute, i.wide ? kF64 : kF32), "a matmul");
  i.set(i.lib.set_descriptor, i.descriptor, kTransposeA, std::int32_t(p.a.transposed),
        "a transpose");
  i.set(i.lib.set_descriptor, i.descriptor, kTransposeB, std::int32_t(p.b.transposed),
        "a transpose");
  i.lay(i.a, p.a, p.batch);
  i.lay(i.b, p.b, p.batch);
  i.lay(i.out, p.out, p.batch);
  // The defaults assume pointers that are aligned to 256 bytes, and allow the reduction of partial
  // sums in the dtype of the result.
  must(i.lib.make_preference(&i.preference), "a preference");
  i.set(i.lib.set_preference, i.preference, kWorkspace, std::uint64_t(kCublasWorkspace),
        "a workspace");
  i.set(i.lib.set_preference, i.preference, kReductions, kNone | kInComputeType,
        "reduction scheme");
  for (auto [field, m] :
       {std::pair{kAlignA, &p.a}, {kAlignB, &p.b}, {kAlignC, &p.out}, {kAlignD, &p.out}})
    i.set(i.lib.set_preference, i.preference, field, std::uint32_t(m->alignment), "an alignment");
}
CublasProduct::CublasProduct(CublasProduct&&) noexcept = default;
CublasProduct::~CublasProduct() {
  if (!impl_) return;
  auto& i = *impl_;
  if (i.preference) i.lib.free_preference(i.preference);
  for (auto h : {i.a, i.b, i.out})
    if (h) i.lib.free_layout(h);
  if (i.descriptor) i.lib.free_descriptor(i.descriptor);
}
Product CublasProduct::description() const {
  auto& i = *impl_;
  Product p;
  p.a = i.laid(i.a, i.alignment(kAlignA), i.transposed(kTransposeA));
  p.b = i.laid(i.b, i.alignment(kAlignB), i.transposed(kTransposeB));
  p.out = i.laid(i.out, i.alignment(kAlignD), false);
  p.batch = i.get<std::int32_t>(i.lib.get_layout, i.out, kBatch, "batch size");
  return p;
}
unsigned CublasProduct::reduction_schemes() const {
  return impl_->get<std::uint32_t>(impl_->lib.get_preference, impl_->preference, kReductions,
                                   "reduction scheme");
}

bool CublasProduct::in_tf32() const {
  auto& i = *impl_;
  return i.get<std::int32_t>(i.lib.get_descriptor, i.descriptor, kCompute, "compute type") ==
         kComputeTf32;
}
std::vector<CublasProduct::Algorithm> CublasProduct::algorithms(void* library, int most) const {
  auto& i = *impl_;
  std::vector<Guess> guesses(static_cast<std::size_t>(most));
  int found = 0;
  must(i.lib.guess(library, i.descriptor, i.a, i.b, i.out, i.out, i.preference, most,
                   guesses.data(), &found),
       "algorithm search");
  std::vector<Algorithm> out;
  for (int k = 0; k < found; ++k)
    if (guesses[std::size_t(k)].state == 0) out.push_back(guesses[std::size_t(k)].algorithm);
  if (out.empty()) throw Error("[cuda] cuBLASLt has no algorithm for a matmul");
  return out;
}
void CublasProduct::run(void* library, void* stream, const Algorithm& how, const void* a,
                        const void* b, void* out, void* workspace) const {
  auto& i = *impl_;
  const double one = 1, beta = i.accumulate ? 1 : 0;
  const float one_f32 = 1, beta_f32 = float(beta);
  const void* scale[] = {&one_f32, &beta_f32};
  if (i.wide) {
    scale[0] = &one;
    scale[1] = &beta;
  }

  must(i.lib.multiply(library, i.descriptor, scale[0], a, i.a, b, i.b, scale[1], out, i.out, out,
                      i.out, &how, workspace, std::size_t(kCublasWorkspace), stream),
       "matmul");
}
void* make_cublas() {
  if (!cublas().there)
    throw Error(
        "[cuda] libcublasLt.so.13 (or .12) is not found: it is part of the CUDA toolkit; add it to "
        "the loader's path");
  void* library = nullptr;
  must(cublas().make(&library), "handle");
  return library;
}

}  // namespace haliax::cuda
