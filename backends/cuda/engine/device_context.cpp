// A device of the engine; see device_context.h.
#include "device_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace haliax::cuda {

using namespace program;

namespace {

bool in_one_piece(const Dims& dims, const Dims& strides) {
  const auto expected = row_major(dims);
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (dims[d] > 1 && strides[d] != expected[d]) return false;
  return true;
}
// The elements of a box as unsigned integers that kernels support.
struct Units {
  Dims dims, to, from;
  DType dtype = DType::u8;
  explicit Units(const Box& b) : dims(b.dims), to(b.to_strides), from(b.from_strides) {
    const std::int64_t width = std::gcd(b.width, 8), each = b.width / width;
    dtype = width == 8 ? DType::u64 : width == 4 ? DType::u32 : width == 2 ? DType::u16 : DType::u8;
    for (auto* strides : {&to, &from})
      for (auto& s : *strides) s *= each;
    dims.push_back(each);
    to.push_back(1);
    from.push_back(1);
  }
};
// Returns the box with a contiguous source, or a contiguous destination.
Box from_packed(Box b, const void* data) {
  b.from = data;
  b.from_strides = row_major(b.dims);
  return b;
}
Box to_packed(Box b, void* data) {
  b.to = data;
  b.to_strides = row_major(b.dims);
  return b;
}
Memory host_memory(std::int64_t bytes) {
  return {::operator new(std::size_t(bytes)), [](void* p) { ::operator delete(p); }};
}

}  // namespace

DeviceContext::DeviceContext(const Api& a, int d, int of_sm, bool sync)
    : api(a), device(d), sm(of_sm), stream(a.make_stream(d)), side(a.make_stream(d)),
      graph(a.make_stream(d)), graph_side(a.make_stream(d)), sync_(sync) {
  done_ = static_cast<std::int64_t*>(api.allocate_host(sizeof *done_));
  *done_ = 0;
}

DeviceContext::~DeviceContext() {
  try {
    api.wait(stream);
  } catch (const Error&) {}
  if (workspace_) api.release(stream, workspace_);
  for (auto& h : halves_)
    if (h.data) {
      api.end_event(h.event);
      api.release_host(h.data);
    }

  api.release_host(done_);
  for (auto s : {stream, side, graph, graph_side}) api.end_stream(s);
}

// ---- faults ----
void DeviceContext::refuse_if_failed() {
  std::lock_guard hold(failing_);
  if (!failed_.empty()) throw Error(failed_);
}
void DeviceContext::fail(const std::string& why) {
  const auto run = done() + 1;
  auto& program = last_[std::size_t(run) % last_.size()];
  const bool known = program && run <= runs_ && runs_ - run < std::int64_t(last_.size());
  end(fmt::format("[{}] device {} has failed{}: {}; it cannot run any more programs{}", api.name,
                  device, known ? " in the call of " + program->called : "", why,
                  sync_ ? "" : "; HALIAX_CUDA=sync finds the step"));
}
void DeviceContext::end(const std::string& error) {
  std::lock_guard hold(failing_);
  if (failed_.empty()) failed_ = error;
  throw Error(failed_);
}
DeviceContext::Run::Run(DeviceContext& l, const std::shared_ptr<const Program>& p)
    : number(++l.runs_), context_(l) {
  context_.last_[std::size_t(number) % context_.last_.size()] = p;
}
DeviceContext::Run::~Run() {
  try {
    if (!ended_) end();
  } catch (const Error&) {}  // an earlier error is in flight
}
void DeviceContext::Run::end() {
  ended_ = true;
  context_.api.mark(context_.stream, context_.done_, number);
}
std::int64_t DeviceContext::done() const {
  return *static_cast<const volatile std::int64_t*>(done_);
}
void DeviceContext::settle(std::int64_t run) noexcept {
  try {
    if (done() < run) api.wait(stream);
  } catch (const Error&) {}
}

void DeviceContext::settle() noexcept { settle(runs_); }

// ---- memory ----
Memory DeviceContext::allocate(std::int64_t bytes) {
  return {allocate_bytes(bytes),
          [context = shared_from_this()](void* p) { context->api.release(context->stream, p); }};
}
void* DeviceContext::allocate_bytes(std::int64_t bytes) {
  auto* got = checked_call([&] { return api.allocate(stream, std::max<std::int64_t>(bytes, 1)); });
  if (!got)
    throw Error(fmt::format("[memory] {} bytes are requested, but device {} of {} has {} free",
                            bytes, device, api.name, api.free_bytes(device)));
  return got;
}
void* DeviceContext::workspace() {
  if (!workspace_) workspace_ = allocate_bytes(api.workspace());
  return workspace_;
}

// ---- copies ----
DeviceContext::Half& DeviceContext::half(std::int64_t k) {
  auto& h = halves_[std::size_t(k % 2)];
  if (!h.data) {
    h.data = static_cast<std::byte*>(api.allocate_host(kHalf));
    h.event = api.make_event(device);
  }

  api.wait_event(h.event);
  return h;
}
void DeviceContext::put_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  for (std::int64_t at = 0, k = 0; at < bytes; at += kHalf, ++k) {
    auto& h = half(k);
    const auto n = std::min(kHalf, bytes - at);
    std::memcpy(h.data, from + at, std::size_t(n));
    api.put(stream, to + at, h.data, n);
    api.record(h.event, stream);
  }
}
void DeviceContext::get_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  auto start_copy = [&](std::int64_t at) {
    auto& h = half(at / kHalf);
    api.get(stream, h.data, from + at, std::min(kHalf, bytes - at));
    api.record(h.event, stream);
  };
  if (bytes > 0) start_copy(0);
  for (std::int64_t at = 0; at < bytes; at += kHalf) {
    if (at + kHalf < bytes) start_copy(at + kHalf);
    std::memcpy(to + at, half(at / kHalf).data, std::size_t(std::min(kHalf, bytes - at)));
  }
}
void DeviceContext::copy_there(const Box& b) {
  if (in_one_piece(b.dims, b.to_strides) && in_one_piece(b.dims, b.from_strides))
    return api.copy(stream, b.to, b.from, points(b.dims) * b.width);
  const Units u(b);
  Step s{.kind = Kind::copy,
         .copy = {u.dims, {0, u.dtype, 0, u.from, {}}, {1, u.dtype, 0, u.to, {}}}};
  for (auto& l : launches_of(s)) {
    std::vector<std::int64_t> words;
    for (auto& w : l.arguments) {
      auto* base = w.slot < 0    ? nullptr
                   : w.slot == 0 ? static_cast<const std::byte*>(b.from)
                                 : static_cast<std::byte*>(b.to);
      words.push_back(std::int64_t(reinterpret_cast<std::intptr_t>(base)) + w.value);
    }
    api.launch(stream, api.compile(device, {named(l.source)})[0], l, words.data());
  }
}
void DeviceContext::transfer(const Box& b, bool to_device) {
  std::lock_guard hold(copying_);
  checked_call([&] {
    const auto bytes = points(b.dims) * b.width;
    const bool as_it_is = in_one_piece(b.dims, b.from_strides),
               direct = in_one_piece(b.dims, b.to_strides);
    auto memory = [&](bool on_device) { return on_device ? allocate(bytes) : host_memory(bytes); };
    auto copied = [&](const Box& part, bool on_device) {
      on_device ? copy_there(part) : copy_on_host(part);
    };
    Memory packed, arrived;
    if (!as_it_is) {
      packed = memory(!to_device);
      copied(to_packed(b, packed.get()), !to_device);
    }

    if (!direct) arrived = memory(to_device);
    auto* to = static_cast<std::byte*>(direct ? b.to : arrived.get());
    auto* from = static_cast<const std::byte*>(as_it_is ? b.from : packed.get());
    to_device ? put_bytes(to, from, bytes) : get_bytes(to, from, bytes);
    if (!to_device && bytes == 0) api.wait(stream);
    if (!direct) copied(from_packed(b, arrived.get()), to_device);
  });
}
void DeviceContext::put(const Box& b) { transfer(b, true); }
void DeviceContext::get(const Box& b) { transfer(b, false); }
void DeviceContext::copy(const Box& b) {
  checked_call([&] { copy_there(b); });
}

}  // namespace haliax::cuda
