// CUDA's keywords and built-in functions for the host's compiler, for simulated kernels. Threads
// that synchronize are fibers (sim/fibers.cpp); other threads run one after another.
#pragma once

extern "C" {
float expf(float), exp2f(float), expm1f(float), logf(float), log2f(float), log1pf(float),
    sqrtf(float), cbrtf(float), asinf(float), acosf(float), atanf(float), sinhf(float),
    coshf(float), tanhf(float), asinhf(float), acoshf(float), atanhf(float), erff(float),
    erfcf(float), lgammaf(float), tgammaf(float), log10f(float), logbf(float), nearbyintf(float),
    roundf(float), floorf(float), ceilf(float), rintf(float), truncf(float), fabsf(float),
    fmodf(float, float), powf(float, float), atan2f(float, float), copysignf(float, float),
    nextafterf(float, float), fmaf(float, float, float);
double exp(double), exp2(double), expm1(double), log(double), log2(double), log1p(double),
    sqrt(double), cbrt(double), asin(double), acos(double), atan(double), sinh(double),
    cosh(double), tanh(double), asinh(double), acosh(double), atanh(double), erf(double),
    erfc(double), lgamma(double), tgamma(double), log10(double), logb(double), nearbyint(double),
    round(double), floor(double), ceil(double), rint(double), trunc(double), fabs(double),
    fmod(double, double), pow(double, double), atan2(double, double), copysign(double, double),
    nextafter(double, double), fma(double, double, double);
}

#define __global__
#define __device__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define HALIAX_SHARED(name) unsigned char* name = haliax_thread->shared

// The state of a simulated thread, and its synchronization functions; must match sim/fibers.h.
struct HaliaxThread {
  unsigned x, block, threads, blocks;
  unsigned char* shared;
  void (*wait_for_block)();
  unsigned long long (*from_lane)(unsigned long long value, int lane);
};
// Provided by the simulation, so that the compiled kernels need no thread-local memory. There are
// hundreds of them, and the leak checker of g++ 12 cannot handle as many.
static HaliaxThread* (*haliax_find_thread)() __attribute__((const));
extern "C" void haliax_find_thread_by(HaliaxThread* (*find)()) { haliax_find_thread = find; }
#define haliax_thread (haliax_find_thread())
#define threadIdx_x (haliax_thread->x)
#define blockIdx_x (haliax_thread->block)
#define blockDim_x (haliax_thread->threads)
#define gridDim_x (haliax_thread->blocks)
inline void __syncthreads() { haliax_thread->wait_for_block(); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
// See begin_if in api.h.
extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned runs) {
  *reinterpret_cast<unsigned*>(handle) = runs;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> inline T __shfl_sync(unsigned, T v, int lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = unsigned long long;
  if constexpr (sizeof(T) == 8)
    return __builtin_bit_cast(T, haliax_thread->from_lane(__builtin_bit_cast(Bits, v), lane));
  else
    return __builtin_bit_cast(
        T, unsigned(haliax_thread->from_lane(__builtin_bit_cast(unsigned, v), lane)));
}
template <class T> inline T __shfl_xor_sync(unsigned all, T v, int by) {
  return __shfl_sync(all, v, int(threadIdx_x & 31) ^ by);
}
inline unsigned __ballot_sync(unsigned all, bool x) {
  unsigned out = unsigned(x) << (threadIdx_x & 31);
  for (int by = 1; by < 32; by *= 2) out |= __shfl_xor_sync(all, out, by);
  return out;
}
inline bool __any_sync(unsigned all, bool x) { return __ballot_sync(all, x) != 0; }
