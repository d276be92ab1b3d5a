// A call of a function that has been traced: reads or donates the arguments, and runs its Program.
#include <algorithm>

#include "base/clock.h"
#include "base/where.h"
#include "graph/fail.h"
#include "ops/prim.h"
#include "runtime/jit_impl.h"
#include "runtime/profile.h"

namespace haliax::detail {
namespace {

// Equal scalars and positions share memory.
bool owns_memory(const Node& n) { return !prim::needs_no_memory(n); }

}  // namespace

Leaves JitCore::run(Cached* entry, const Walk& w) {
  auto& e = *entry;
  auto count = e.leaf_of_input.size();
  auto input = [&](std::size_t i) -> const NodePtr& {
    return w.arrays[e.leaf_of_input[i]]->node();
  };
  auto check_not_donated = [&](const Node& n) {
    if (n.donated.empty()) return;
    CallSite here(impl_->options.at);
    fail("jit", n.donated);
  };
  Nodes deferred;
  for (auto& n : e.captured) check_not_donated(*n);
  for (std::size_t i = 0; i < count; ++i) {
    check_not_donated(*input(i));
    if (!input(i)->value) deferred.push_back(input(i));
  }
  if (!deferred.empty()) {
    CallSite here(impl_->options.at);
    evaluate(deferred);
  }
  if (e.mesh)  // `set_devices` may have removed some
    impl_->options.require_devices(e.mesh->mesh, e.mesh->devices[0].memory.device());
  std::vector<bool> may_overwrite;
  std::vector<ArgumentValue> arguments;
  if (e.donates()) {
    arguments = impl_->argument_values(e, w, deferred, may_overwrite);
  } else {
    arguments.reserve(count);
    GraphReader reader;
    for (std::size_t i = 0; i < count; ++i) {
      arguments.push_back({input(i)->value.get()});
      // Another thread may have donated it in the meantime.
      if (!arguments.back().owner) check_not_donated(*input(i));
    }
  }
  if (e.mesh) {
    may_overwrite.resize(count);
    std::vector<BufferPtr> values;
    for (auto& a : arguments) values.push_back(std::move(a.owner));
    auto created = e.mesh->run(values, may_overwrite);
    impl_->split_bytes = created.split_bytes;
    return e.assemble(created.results);
  }
  for (auto& a : arguments) a.data = e.compiled.memory.address(*a.owner);
  return e.assemble(call(e.compiled, arguments, nullptr));
}

// Returns the values of the arguments. Donated arrays lose their value here, even if the call
// fails, since results may overwrite it. Donated arguments whose memory must be preserved are
// copied, because the Program overwrites them too.
std::vector<ArgumentValue> JitCore::Impl::argument_values(const Cached& e, const Walk& w,
                                                          const Nodes& deferred,
                                                          std::vector<bool>& may_overwrite) const {
  auto count = e.leaf_of_input.size();
  auto input = [&](std::size_t i) -> const NodePtr& {
    return w.arrays[e.leaf_of_input[i]]->node();
  };
  std::vector<ArgumentValue> values;
  std::vector<int> uses;
  {
    GraphWriter alone;  // two concurrent calls must not donate the same array
    Origin called;
    called.at = options.at;
    for (std::size_t i = 0; i < count; ++i)
      if (!input(i)->value) fail_at(called, "jit", input(i)->donated);
    // An array that was lazy until now may share its node with an equal array, and f may have
    // captured an argument. The value then has another owner and is not donated.
    auto may_be_donated = [&](const NodePtr& n) {
      auto times_deferred = std::count(deferred.begin(), deferred.end(), n);
      bool captured = std::find(e.captured.begin(), e.captured.end(), n) != e.captured.end();
      return owns_memory(*n) && !captured &&
             !(times_deferred > 0 && n.use_count() > 1 + times_deferred);
    };
    for (std::size_t i = 0; i < count; ++i) {
      may_overwrite.push_back(e.donated[i] && !scoped_profiler() && may_be_donated(input(i)));
      values.push_back({input(i)->value.get()});
      uses.push_back(0);
      for (std::size_t k = 0; k < count; ++k) uses.back() += input(k) == input(i);
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (!may_overwrite[i]) continue;
      auto& n = const_cast<Node&>(*input(i));
      n.donated.set("this array was donated to the call of jit at " + to_string(options.at) +
                    " and cannot be used any more");
      n.value.release();
    }
  }
  auto began = seconds_now();
  for (std::size_t i = 0; i < count; ++i) {
    if (e.mesh || !e.donated[i]) continue;
    auto& v = values[i].owner;  // may have other readers
    bool alone = uses[i] == 1 && may_overwrite[i] && has_use_count(v, 1);
    v = alone ? e.compiled.memory.donate(*v) : e.compiled.memory.copy(*v);
  }
  if (auto* p = scoped_profiler()) p->exclude_time(seconds_now() - began);
  return values;
}

}  // namespace haliax::detail
