// Building blocks of generated kernels: elements in memory and as numbers, instructions, and
// reductions across threads. Included after std.h, base/half.h and base/arithmetic.h.
#pragma once

#ifndef HALIAX_SHARED  // CUDA itself
#define HALIAX_SHARED(name)                        \
  extern __shared__ unsigned char haliax_shared[]; \
  unsigned char* name = haliax_shared
#define threadIdx_x threadIdx.x
#define blockIdx_x blockIdx.x
#define blockDim_x blockDim.x
#define gridDim_x gridDim.x
#endif

namespace haliax::kernel {

using Word = long long;  // an argument: an address, a number, or the bits of a number

// ---- elements: their type in memory, and the type in which they are computed ----
struct bf16 {
  std::uint16_t bits;
};
struct f16 {
  std::uint16_t bits;
};
template <class S>
inline constexpr bool is_narrow = std::is_same_v<S, bf16> || std::is_same_v<S, f16>;
template <class S, bool narrow> struct NumberOf { using type = S; };
template <class S> struct NumberOf<S, true> { using type = float; };
template <class S> using Number = typename NumberOf<S, is_narrow<S>>::type;
template <class S> inline constexpr bool is_float = std::is_floating_point_v<Number<S>>;

// Software conversions on the host; one instruction on the GPU, which yields a single NaN.
#ifdef haliax_thread
inline std::uint16_t bf16_bits(float x) { return to_bf16(x); }
inline std::uint16_t f16_bits(float x) { return to_f16(x); }
inline float of_f16(std::uint16_t bits) { return from_f16(bits); }
#else
inline std::uint16_t bf16_bits(float x) {
  std::uint16_t out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(x));
  return out;
}
inline std::uint16_t f16_bits(float x) {
  std::uint16_t out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
  return out;
}
inline float of_f16(std::uint16_t bits) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
}
#endif
template <class S> inline S element(Number<S> x) {
  if constexpr (std::is_same_v<S, bf16>)
    return {bf16_bits(x)};
  else if constexpr (std::is_same_v<S, f16>)
    return {f16_bits(x)};
  else
    return x;
}
template <class S> inline Number<S> number(S x) {
  if constexpr (std::is_same_v<S, bf16>)
    return from_bf16(x.bits);
  else if constexpr (std::is_same_v<S, f16>)
    return of_f16(x.bits);
  else
    return x;
}
// Integers below 32 bits, and bools, are computed in 32 bits.
template <class T> inline auto wide(T x) {
  if constexpr (sizeof(T) >= 4)
    return x;
  else
    return std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>(x);
}
template <class S> using Wide = decltype(wide(Number<S>()));
// Converts to the dtype of an instruction: rounded, or wrapped around.
template <class S, class T> inline Number<S> result(T x) {
  if constexpr (is_narrow<S>)
    return number(element<S>(float(x)));
  else if constexpr (std::is_same_v<S, bool>)
    return x != 0;
  else
    return Number<S>(x);
}
template <class S> inline Number<S> constant(Word w) {  // from its bits
  if constexpr (std::is_same_v<S, double>)
    return std::bit_cast<double>(w);
  else if constexpr (is_float<S>)
    return std::bit_cast<float>(std::uint32_t(w));
  else
    return S(w);
}
template <class S> inline Word bits(Number<S> x) {
  auto e = element<S>(x);
  if constexpr (sizeof(S) == 8)
    return std::bit_cast<Word>(e);
  else if constexpr (sizeof(S) == 4)
    return std::bit_cast<std::uint32_t>(e);
  else if constexpr (sizeof(S) == 2)
    return std::bit_cast<std::uint16_t>(e);
  else
    return std::bit_cast<std::uint8_t>(e);
}
template <class S> inline Number<S> of_bits(Word w) {
  if constexpr (sizeof(S) == 8)
    return number(std::bit_cast<S>(w));
  else if constexpr (sizeof(S) == 4)
    return number(std::bit_cast<S>(std::uint32_t(w)));
  else if constexpr (sizeof(S) == 2)
    return number(std::bit_cast<S>(std::uint16_t(w)));
  else
    return number(std::bit_cast<S>(std::uint8_t(w)));
}
template <class To, class From> inline Number<To> cast(Number<From> x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<To, bool> || is_float<To> || !is_float<From>) {
    return result<To>(x);
  } else if constexpr (std::is_same_v<To, std::uint64_t>) {
    return scalar::saturate<std::uint64_t>(x);
  } else {
    auto v = scalar::saturate<std::int64_t>(x);
    constexpr auto low = std::int64_t(std::numeric_limits<To>::min()),
                   high = std::int64_t(std::numeric_limits<To>::max());
    return To(v < low ? low : v > high ? high : v);
  }
}

// ---- instructions on wide numbers; the result is converted to the dtype of the instruction ----
template <class T> inline T add(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return x + y;
  else
    return T(std::make_unsigned_t<T>(x) + std::make_unsigned_t<T>(y));
}
template <class T> inline T sub(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return x - y;
  else
    return T(std::make_unsigned_t<T>(x) - std::make_unsigned_t<T>(y));
}
template <class T> inline T mul(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return x * y;
  else
    return T(std::make_unsigned_t<T>(x) * std::make_unsigned_t<T>(y));
}
template <class T> inline T fma(T x, T y, T z) {
  if constexpr (std::is_floating_point_v<T>)
    return std::fma(x, y, z);
  else
    return add(mul(x, y), z);
}
template <class T> inline T abs(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return std::fabs(x);
  else
    return x < 0 ? scalar::negate(x) : x;
}
template <class T> inline T power(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return std::pow(x, y);
  else
    return scalar::power(x, y);
}
template <class T> inline bool is_nan(T x) { return x != x; }
template <class T> inline bool is_finite(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return x - x == 0;
  else
    return true;
}
template <class T> inline bool is_inf(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return std::fabs(x) == std::numeric_limits<T>::infinity();
  else
    return false;
}
template <class T> inline T erfinv(T x) { return T(scalar::erfinv(x)); }
template <class T> inline T log1p(T x) {
  if constexpr (std::is_same_v<T, double>)
    return std::log1p(x);
  else
    return scalar::log1p(x);
}
template <class T> inline T digamma(T x) { return T(scalar::digamma(double(x))); }
template <class T> inline T rsqrt(T x) { return 1 / std::sqrt(x); }
template <class S> inline Number<S> nextafter(Number<S> x, Number<S> y) {
  if constexpr (!is_narrow<S>) {
    return std::nextafter(x, y);
  } else {
    if (x != x || y != y || x == y) return x == y ? y : x + y;
    if (x == 0) return of_bits<S>(y > 0 ? 0x0001 : 0x8001);
    return of_bits<S>(bits<S>(x) + ((x < y) == (x > 0) ? 1 : -1));
  }
}

inline std::uint32_t xor_of(scalar::Words w) { return w.a ^ w.b; }

// ---- views ----
template <class S> inline Number<S> load(Word base, long long at) {
  return number(reinterpret_cast<const S*>(base)[at]);
}
template <class S> inline void store(Word base, long long at, Number<S> x) {
  reinterpret_cast<S*>(base)[at] = element<S>(x);
}
// ---- chunks of adjacent elements ----
// One access of up to 16 bytes if all elements exist and the address is aligned; otherwise one
// element at a time.
template <int n, class S> struct alignas(n * sizeof(S)) Few { S at[n]; };
template <int n, class I> inline I few_chunks(I points) { return (points + n - 1) / n; }
// number of existing elements among the next n
template <int n, class I> inline int few_there(I left) { return left < n ? int(left) : n; }
template <int n, class S> inline bool at_once(Word from, int there) {
  return there >= n && (unsigned(from) & unsigned(n * sizeof(S) - 1)) == 0;
}
template <int n, class S>
inline Few<n, S> load_few(Word base, long long at, int there) {  // missing elements are 0
  const Word from = base + at * (long long)(sizeof(S));
  if (at_once<n, S>(from, there)) return *reinterpret_cast<const Few<n, S>*>(from);
  Few<n, S> out{};
#pragma unroll
  for (int k = 0; k < n; ++k)
    if (k < there) out.at[k] = reinterpret_cast<const S*>(from)[k];
  return out;
}
template <int n, class S>
inline void store_few(Word base, long long at, const Few<n, S>& x, int there) {
  const Word to = base + at * (long long)(sizeof(S));
  if (at_once<n, S>(to, there)) {
    *reinterpret_cast<Few<n, S>*>(to) = x;
    return;
  }
#pragma unroll
  for (int k = 0; k < n; ++k)
    if (k < there) reinterpret_cast<S*>(to)[k] = x.at[k];
}
template <int n, class S, class F>
inline void update_few(Word base, long long at, const Few<n, S>& x, int there, F f) {
  auto all = load_few<n, S>(base, at, there);
#pragma unroll
  for (int k = 0; k < n; ++k)
    all.at[k] = element<S>(result<S>(f(wide(number(all.at[k])), wide(number(x.at[k])))));
  store_few(base, at, all, there);
}
// Returns a scalar in memory that moves a view, clamped to [0, limit].
template <class S> inline long long term(Word at, Word limit) {
  auto i = (long long)(*reinterpret_cast<const S*>(at));
  return i < 0 ? 0 : i > limit ? limit : i;
}
// Returns the position of an id. Negative ids count from the end, except for u64. An id out of
// range yields -1, or the nearest position if clamps is set.
template <class S> inline long long position(Word base, long long at, Word size, bool clamps) {
  auto id = (long long)(reinterpret_cast<const S*>(base)[at]);
  if (id < 0) id = std::is_same_v<S, std::uint64_t> ? size : id + size;
  if (clamps && size > 0) return id < 0 ? 0 : id >= size ? size - 1 : id;
  return id < 0 || id >= size ? -1 : id;
}

// Returns the launch that a block of a merged kernel belongs to. Each record has `step` words and
// begins with its first block.
inline unsigned record_of(const Word* records, unsigned step, unsigned count, unsigned block) {
  unsigned low = 0, high = count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (unsigned(records[middle * step]) <= block ? low : high) = middle;
  }
  return low;
}

// ---- reductions ----
struct Sum {
  template <class T> T operator()(T x, T y) const { return add(x, y); }
};
struct Prod {
  template <class T> T operator()(T x, T y) const { return mul(x, y); }
};
struct Max {
  template <class T> T operator()(T x, T y) const { return scalar::max(x, y); }
};
struct Min {
  template <class T> T operator()(T x, T y) const { return scalar::min(x, y); }
};
// The first position of the extreme value; NaN wins.
template <class T> struct Best {
  T value;
  long long at;
};
struct First {
  bool largest;
  template <class T> Best<T> operator()(Best<T> x, Best<T> y) const {
    bool nan = is_nan(x.value), other = is_nan(y.value);
    bool better = nan || other ? nan && !other : largest ? x.value > y.value : x.value < y.value;
    bool same = nan == other && (nan || x.value == y.value);
    return better || (same && x.at < y.at) ? x : y;
  }
};

// Returns the value of the lane whose index differs by XOR with `by`.
template <class T> inline T exchanged(T x, int by) {
  if constexpr (sizeof(T) >= 4)
    return __shfl_xor_sync(0xffffffffu, x, by);
  else
    return T(__shfl_xor_sync(0xffffffffu, int(x), by));
}
template <class T> inline Best<T> exchanged(Best<T> x, int by) {
  return {exchanged(x.value, by), exchanged(x.at, by)};
}
template <class T> inline T from_lane(T x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
inline unsigned lanes_where(bool x) { return __ballot_sync(0xffffffffu, x); }
inline int first_of(unsigned lanes) { return __ffs(int(lanes)) - 1; }
// Returns the part that owns an offset, as a hash: equal offsets have the same part, and others are
// spread over all parts.
inline long long part_of(long long at, Word parts) {
  return (long long)((std::uint64_t(at) * 0x9e3779b97f4a7c15ull >> 32) * std::uint64_t(parts) >>
                     32);
}
// Reduces over `group` adjacent threads (a power of 2), in an order that depends on nothing else.
// All threads receive the result. `shared`: memory for one T per warp.
template <int group, class T, class F> inline T folded(T x, F f, unsigned char* shared) {
  for (int by = 1; by < group && by < 32; by *= 2) x = f(x, exchanged(x, by));
  if constexpr (group > 32) {
    constexpr unsigned warps = group / 32;
    auto* of_warp = reinterpret_cast<T*>(shared);
    __syncthreads();  // an earlier reduction may still read the memory
    if (threadIdx_x % 32 == 0) of_warp[threadIdx_x / 32] = x;
    __syncthreads();
    x = of_warp[threadIdx_x / group * warps + threadIdx_x % warps];
    for (unsigned by = 1; by < warps; by *= 2) x = f(x, exchanged(x, by));
  }
  return x;
}

}  // namespace haliax::kernel
