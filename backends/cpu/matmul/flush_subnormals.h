// Subnormal floats count as zeros in matmuls, as in the bf16 instructions of processors. Arithmetic
// on subnormals may take 100 times as long, and cotangents of recurrent models decay to subnormals.
#pragma once
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace haliax::cpu {

// bits of MXCSR: flush to zero (results), and denormals are zero (operands)
constexpr unsigned flush_subnormals = 0x8000 | 0x0040;

// Sets these bits on this thread while the object exists.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() { _mm_setcsr(before_ | flush_subnormals); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
#else
  FlushSubnormals() = default;
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;

 private:
#if defined(__SSE2__)
  unsigned before_ = _mm_getcsr();
#endif
};

}  // namespace haliax::cpu
