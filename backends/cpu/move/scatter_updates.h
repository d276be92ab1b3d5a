// Run: how a scatter combines an element of its target with an update; scatters to few elements.
#pragma once
#include <bit>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "backends/cpu/kernels.h"
#include "backends/cpu/step.h"
#include "base/half.h"
#include "base/scalar.h"

namespace haliax::cpu {

// Returns true if a scatter combines many updates in few elements, as a histogram does.
bool updates_few(const program::Scatter&);
std::unique_ptr<CompiledStep> make_scatter_to_few(const program::Scatter&);

// Calls g(zero, f): f(a, b) combines an element of the target with an update; zero is a value of
// the type in memory. Floats are combined in f32 (f64 in f64); integers wrap.
template <class Math, class Memory, class In, class Out, class G>
void with_update(program::Update update, Memory zero, const In& in, const Out& out, const G& g) {
  using program::Update;
  auto combined = [&](auto f) {
    g(zero, [=](Memory a, Memory b) { return static_cast<Memory>(out(f(in(a), in(b)))); });
  };
  switch (update) {
    case Update::set:
      return g(zero, [](Memory, Memory b) { return b; });
    case Update::add:
      return combined([](Math a, Math b) { return static_cast<Math>(a + b); });
    case Update::mul:
      return combined([](Math a, Math b) { return static_cast<Math>(a * b); });
    case Update::min:
      return combined([](Math a, Math b) { return scalar::min(a, b); });
    case Update::max:
      return combined([](Math a, Math b) { return scalar::max(a, b); });
  }
}
template <class T, class G> void with_plain_update(program::Update update, const G& g) {
  // Sums of small unsigned types are computed in a wider type and truncated, with a bitwise
  // identical result.
  using Math =
      std::conditional_t<(sizeof(T) < 4),
                         std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>, T>;
  using Wrap = std::conditional_t<
      std::is_floating_point_v<T>, T,
      std::make_unsigned_t<std::conditional_t<std::is_floating_point_v<T>, int, Math>>>;
  if (update == program::Update::min || update == program::Update::max)
    return with_update<Math>(
        update, T(), [](T x) { return static_cast<Math>(x); },
        [](Math x) { return static_cast<T>(x); }, g);
  with_update<Wrap>(
      update, T(), [](T x) { return static_cast<Wrap>(x); },
      [](Wrap x) { return static_cast<T>(x); }, g);
}
template <class G> void with_update(DType dtype, program::Update update, const G& g) {
  using Bits = std::uint16_t;
  switch (dtype) {
    case DType::f32:
      return with_plain_update<float>(update, g);
    case DType::f64:
      return with_plain_update<double>(update, g);
    case DType::bf16:
      if (update == program::Update::min || update == program::Update::max)
        return with_update<float>(  // the result is one of the values: not rounded
            update, Bits(), [](Bits x) { return from_bf16(x); },
            [](float x) { return static_cast<Bits>(std::bit_cast<std::uint32_t>(x) >> 16); }, g);
      return with_update<float>(
          update, Bits(), [](Bits x) { return from_bf16(x); }, [](float x) { return to_bf16(x); },
          g);
    case DType::f16:
      return with_update<float>(
          update, Bits(), [](Bits x) { return from_f16(x); }, [](float x) { return to_f16(x); }, g);
    case DType::i8:
      return with_plain_update<std::int8_t>(update, g);
    case DType::i16:
      return with_plain_update<std::int16_t>(update, g);
    case DType::i32:
      return with_plain_update<std::int32_t>(update, g);
    case DType::i64:
      return with_plain_update<std::int64_t>(update, g);
    case DType::u8:
      return with_plain_update<std::uint8_t>(update, g);
    case DType::u16:
      return with_plain_update<std::uint16_t>(update, g);
    case DType::u32:
      return with_plain_update<std::uint32_t>(update, g);
    case DType::u64:
      return with_plain_update<std::uint64_t>(update, g);
    case DType::boolean:  // `add` is or, `mul` is and
      return with_update<std::uint32_t>(
          update, std::uint8_t(), [](std::uint8_t x) { return static_cast<std::uint32_t>(x != 0); },
          [](std::uint32_t x) { return static_cast<std::uint8_t>(x != 0); }, g);
  }
}

// Updates an element for each offset. A function of its own, so that the loop has registers for all
// of its values.
template <class T, class F>
[[gnu::noinline]] void update_elements(const T* updates, std::int64_t step, T* target,
                                       const std::int64_t* offsets, std::int64_t n, const F& f) {
  for (std::int64_t j = 0; j < n; ++j) {
    if (offsets[j] == IdRun::outside) continue;
    T& element = target[offsets[j]];
    element = f(element, updates[j * step]);
  }
}

}  // namespace haliax::cpu
