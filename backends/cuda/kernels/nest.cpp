// The generator of nest kernels; see nest.h. NestMemory places each slot: near (in shared memory)
// or far (in a parallel slot of the arena). Nest emits the steps, one after another.
#include "nest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "program/matrices.h"
#include "program/views.h"
#include "tiles.h"

namespace haliax::cuda {
namespace {

using namespace program;

constexpr std::int64_t kKibi = 1 << 10;
// bytes of shared memory for matmuls; must match device/product.h
constexpr std::int64_t kStageBytes = 20 * kKibi;
// bytes per parallel slot; larger iterations run as separate kernels
constexpr std::int64_t kMaxNestSlotBytes = 8 << 20;
constexpr int kBlocks = kMultiprocessors;  // blocks that run concurrently

bool is_for_kernel(Kind k) {
  switch (k) {
    case Kind::collective:
    case Kind::finish:
    case Kind::host:
      return false;
    default:
      return true;
  }
}
std::string replaced(std::string source, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = source.find(what, at)) != std::string::npos; at += by.size())
    source.replace(at, what.size(), by);
  return source;
}

// Where the values of an iteration are stored, and which bodies run as tiles (tiles.h).
class NestMemory {
 public:
  // shared_limit: bytes of shared memory that a block may use.
  NestMemory(const Loop& loop, const std::vector<Step>& body, const Program& p,
             std::int64_t shared_limit)
      : loop_(loop), body_(body), program_(p) {
    find_tiles(body, shared_limit);
    place(shared_limit);
  }
  std::map<const std::vector<Step>*, std::unique_ptr<TileGroup>> tiles;  // by body
  std::map<int, NestContext::Place> places;                              // by slot
  // bytes of shared memory: staged operands, results of reductions, and other values
  std::int64_t stage = kStageBytes, results = 0, values = 0;
  bool far = false;  // some values are stored in a parallel slot
  std::int64_t bytes() const { return stage + results + values; }

 private:
  // Returns true if the slot lives within an iteration.
  bool is_own(int slot) const {
    auto& s = program_.slot(slot);
    return s.home == Home::arena && s.offset >= loop_.parallel_slot_start &&
           s.offset < loop_.parallel_slot_start + loop_.parallel_slot_bytes;
  }
  // Finds the bodies that run as tiles (tiles.h).
  void find_tiles(const std::vector<Step>& all, std::int64_t shared_limit) {
    // number of accesses outside of `all`, per slot with its own memory
    std::map<int, int> touched;
    auto count = [&](const std::vector<Step>& steps, int by) {
      each_step(steps, [&](auto& s) {
        each_access(s, [&](int slot, bool, const View*) { touched[program_.memory(slot)] += by; });
      });
    };
    count(body_, 1);
    count(all, -1);
    auto lives_here = [&](int slot) { return is_own(slot) && touched[slot] == 0; };
    auto found = tile_group(all, program_, lives_here);
    if (found && found->stage_bytes() + found->fold_result_bytes() <= shared_limit) {
      stage = std::max(stage, found->stage_bytes());
      results = std::max(results, found->fold_result_bytes());
      tiles[&all] = std::move(found);
      return;
    }
    for (auto& s : all) find_tiles(s.body, shared_limit);
  }
  bool is_unused(int slot) const {
    return std::any_of(tiles.begin(), tiles.end(),
                       [&](auto& t) { return t.second->unused.count(slot) > 0; });
  }
  // Places the values that live within an iteration: in shared memory as far as they fit.
  void place(std::int64_t most) {
    std::map<int, std::int64_t> touched;  // bytes accessed, per slot with its own memory
    std::set<int> slots;
    each_step_run(body_, [&](auto& s, std::int64_t times) {
      each_access(s, [&](int slot, bool, const View* v) {
        if (v && is_unused(slot)) return;
        slots.insert(slot);
        touched[program_.memory(slot)] += times * (v ? points(dims_of(s)) * bytes_of(v->dtype) : 1);
      });
    });
    std::erase_if(touched, [&](auto& t) { return !is_own(t.first); });
    auto starts = one_by_one(touched, most);
    std::int64_t all = stage + results;
    for (auto& [s, start] : starts)
      all = std::max(all, stage + results + start + program_.slot(s).bytes);
    if (tiles.empty() || all > most) {
      if (!tiles.empty()) {
        tiles.clear();
        stage = kStageBytes;
        results = 0;
        return place(most);
      }

      starts = as_planned(touched, most - stage);
    }
    for (int s : slots) {
      const int at = program_.memory(s);
      if (!touched.count(at)) continue;
      auto& slot = program_.slot(at);
      auto near = starts.find(at);
      places[s] = near != starts.end()
                      ? NestContext::Place{"near", near->second}
                      : NestContext::Place{"far", slot.offset - loop_.parallel_slot_start};
      if (near != starts.end()) values = std::max(values, near->second + slot.bytes);
      far |= near == starts.end();
    }
  }
  // Places the slots in the most accessed range of `most` bytes of the planned arena, with their
  // offsets in this range. Slots that share memory in the plan also share it here.
  std::map<int, std::int64_t> as_planned(const std::map<int, std::int64_t>& touched,
                                         std::int64_t most) const {
    auto is_near = [&](int s, std::int64_t from) {
      auto& slot = program_.slot(s);
      return slot.offset >= from && slot.offset + slot.bytes <= from + most;
    };
    std::int64_t best = -1, start = 0;
    for (auto& first : touched) {
      std::int64_t sum = 0, from = program_.slot(first.first).offset;
      for (auto& [s, bytes] : touched)
        if (is_near(s, from)) sum += bytes;
      if (sum > best) {
        best = sum;
        start = from;
      }
    }
    std::map<int, std::int64_t> out;
    for (auto& t : touched)
      if (is_near(t.first, start)) out[t.first] = program_.slot(t.first).offset - start;
    return out;
  }
  // Places slots one by one. Small slots are always placed. Other slots follow by accesses per
  // byte, as long as a multiprocessor has space for two blocks.
  std::map<int, std::int64_t> one_by_one(const std::map<int, std::int64_t>& touched,
                                         std::int64_t most) const {
    const auto available = most / 2 - kKibi - stage - results;
    std::vector<int> order;
    for (auto& t : touched) order.push_back(t.first);
    auto worth = [&](int s) {
      return double(touched.at(s)) / double(std::max<std::int64_t>(program_.slot(s).bytes, 1));
    };
    auto is_small = [&](int s) { return program_.slot(s).bytes <= small_bytes; };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return is_small(a) != is_small(b) ? is_small(a) : worth(a) > worth(b);
    });
    std::map<int, std::int64_t> out;
    std::int64_t at = 0;
    for (int s : order)
      if (const auto bytes = aligned(program_.slot(s).bytes);
          is_small(s) || at + bytes <= available) {
        out[s] = at;
        at += bytes;
      }

    return out;
  }

  const Loop& loop_;
  const std::vector<Step>& body_;
  const Program& program_;
};

class Nest {
 public:
  Nest(const Step& outermost, const Program& p, std::int64_t shared_limit, bool marks)
      : loop_(outermost.loop), loops_(parallel_nest(outermost)),
        memory_(loop_, body(), p, shared_limit), marks_(marks) {
    nest_.places = memory_.places;
    std::int64_t iterations = 1;
    for (auto* s : loops_) {
      iterations *= s->loop.trips;
      nest_.loops.insert(s->loop.variable);
    }

    each_step(body(), [&](auto& s) {
      if (s.kind == Kind::loop) nest_.loops.insert(s.loop.variable);
    });
    line("HALIAX_SHARED(shared);");
    // added in each step, because an address would occupy registers all the time
    near_start_ = argument({-1, memory_.stage + memory_.results});
    if (memory_.far) {
      auto start = argument({kArenaSlot, loop_.parallel_slot_start, {}, true}),
           bytes = argument({-1, loop_.parallel_slot_bytes});
      line(fmt::format("const Word far_slot = {} + my_block * {};", start, bytes));
    }
    if (marks_)
      line(fmt::format("auto& mark = reinterpret_cast<volatile int*>({})[my_block % {}];",
                       argument({kMarksSlot}), kMarks));
    open(fmt::format("for (Word iteration = my_block; iteration < {}; iteration += all_blocks)",
                     argument({-1, iterations})));
    line("Word rest = iteration;");
    for (auto s = loops_.rbegin(); s != loops_.rend(); ++s) {
      auto& l = (*s)->loop;
      auto trips = argument({-1, l.trips});
      count(l, fmt::format("rest % {}", trips), trips);
      line(fmt::format("rest /= {};", trips));
    }
    emit_steps(body());
    if (marks_) line("if (threadIdx_x == 0) mark = 0;");
    close();
    // threads per block, and blocks per multiprocessor
    out.bounds = two_at_a_time(shared_limit) ? "256, 2" : "256, 1";
    out.source = kernel_source(nest_.arguments.size(), source_, out.bounds);
    out.arguments = nest_.arguments;
    out.blocks = std::min<std::int64_t>(iterations, memory_.far ? loop_.parallel_slots : 1 << 20);
    out.threads = kNestThreads;
    out.waits = true;
    out.shared = memory_.bytes();
  }
  Launch out;

 private:
  const std::vector<Step>& body() const { return loops_.back()->body; }
  std::string argument(KernelArgument w) { return SourceWriter(&nest_).argument(std::move(w)); }
  void line(const std::string& source) {
    source_ += std::string(std::size_t(2 * depth_), ' ') + source + "\n";
  }
  void open(const std::string& source) {
    line(source + " {");
    ++depth_;
  }
  void close() {
    --depth_;
    line("}");
  }

  // Returns true if registers and shared memory suffice for two blocks per multiprocessor. Half of
  // its 65,536 registers are 128 per thread. (For sm_80 the compiler uses a few more, and spills.)
  bool two_at_a_time(std::int64_t shared_limit) const {
    auto& tiles = memory_.tiles;
    return !tiles.empty() && shared_limit >= shared_limit_of(90) &&
           2 * (memory_.bytes() + kKibi) <= shared_limit &&
           std::all_of(tiles.begin(), tiles.end(),
                       [](auto& t) { return t.second->registers() <= 80; });
  }

  // ---- steps ----
  void count(const Loop& l, const std::string& iteration, const std::string& trips) {
    line(fmt::format("const Word n{} = {}{};", l.variable, l.reverse ? trips + " - 1 - " : "",
                     iteration));
  }
  void wait() { line("__syncthreads();"); }
  void mark(const Step& s) {
    out.parts.push_back(&s);
    if (marks_) line(fmt::format("if (threadIdx_x == 0) mark = {};", out.parts.size()));
  }
  // Emits the source of a step. Values of the iteration that it reads are hidden from the compiler,
  // which would otherwise keep the addresses of all steps in registers.
  void emit_scope(const std::string& when, const std::string& source) {
    line(when + "{");
    for (int v : nest_.loops)
      if (source.find(fmt::format(" + l{} * ", v)) != source.npos)
        line(fmt::format("const Word l{0} = hidden(n{0});", v));
    auto reads = [&](const char* base) {
      return source.find(fmt::format("({} + ", base)) != source.npos;
    };
    if (reads("near"))
      line(fmt::format("const Word near = reinterpret_cast<Word>(shared) + hidden({});",
                       near_start_));
    if (reads("far")) line("const Word far = hidden(far_slot);");
    source_ += source;
    line("}");
  }
  void emit_steps(const std::vector<Step>& all) {
    if (auto t = memory_.tiles.find(&all); t != memory_.tiles.end())
      return emit_tiles(*t->second, all);
    for (auto& s : all) emit_step(s);
  }
  void emit_step(const Step& s) {
    if (s.kind == Kind::loop)
      emit_loop(s);
    else if (s.kind == Kind::conditional)
      emit_conditional(s);
    else
      emit_kernel_step(s);
  }
  void emit_tiles(const TileGroup& g, const std::vector<Step>& all) {
    for (auto& a : g.actions) {
      if (a.step) {
        emit_step(*a.step);
        continue;
      }
      if (a.is_pass()) mark(all[std::size_t(g.first_of(a))]);
      if (a.flags >= 0) line(fmt::format("unsigned long long flags{} = 0;", a.flags));
      emit_scope("", tile_source(g, a, nest_, memory_.stage));
      if (a.is_pass()) wait();
    }
  }
  void emit_loop(const Step& s) {
    auto& l = s.loop;
    auto iteration = fmt::format("t{}", counted_++), trips = argument({-1, l.trips});
    open(fmt::format("for (Word {0} = 0; {0} < {1}; ++{0})", iteration, trips));
    count(l, iteration, trips);
    emit_steps(s.body);
    close();
  }
  // All threads read the flag before the first one continues, because later steps may overwrite it.
  void emit_conditional(const Step& s) {
    auto& view = s.conditional.flag;
    SourceWriter w(&nest_);
    auto base = w.base(view), at = w.at(view, {});
    auto flag = fmt::format("flag{}", counted_++);
    line(fmt::format("bool {};", flag));
    emit_scope("", fmt::format("{} = load<bool>({}, {});\n", flag, base, at));
    wait();
    open(fmt::format("if ({})", flag));
    emit_steps(s.body);
    close();
  }
  // Emits a step that separate kernels would compute, one after another. The block computes all of
  // it: the source of a kernel distributes its work over `all_blocks` blocks, of which this one is
  // block 0 of 1. Later kernels read the results of earlier ones, so threads synchronize after
  // each.
  void emit_kernel_step(const Step& s) {
    mark(s);
    if (s.kind == Kind::contract && product(s.contract)) return;
    for (auto& l : launches_of(s, &nest_)) {
      emit_scope(l.threads == 1 ? "if (threadIdx_x == 0) " : "",
                 replaced(replaced(l.source, "my_block", "0"), "all_blocks", "1"));
      wait();
    }
  }

  // ---- matmuls (device/product.h) ----
  // Drops dims of size 1, and merges adjacent dims. Removes the last dim and returns it for the
  // matmul. The remaining dims are iterated over.
  static MatrixDim pulled(MatrixDims& dims) {
    std::erase_if(dims, [](auto& d) { return d.n == 1; });
    for (std::size_t k = dims.size(); k-- > 1;) {
      auto &outer = dims[k - 1], &inner = dims[k];
      if (outer.a != inner.a * inner.n || outer.b != inner.b * inner.n ||
          outer.out != inner.out * inner.n)
        continue;
      outer = {outer.n * inner.n, inner.a, inner.b, inner.out};
      dims.erase(dims.begin() + std::ptrdiff_t(k));
    }
    if (dims.empty()) return {};
    auto last = dims.back();
    dims.pop_back();
    return last;
  }
  bool product(const Contract& c) {
    auto [iterated, rows, columns, terms] = dims_of(c);
    const auto m = pulled(rows), n = pulled(columns), k = pulled(terms);
    auto exceeds_32_bits = [&](MatrixStride s) {
      return std::abs(m.*s) * m.n + std::abs(n.*s) * n.n + std::abs(k.*s) * k.n >=
             kMax32BitPosition;
    };
    const bool fits = !exceeds_32_bits(&MatrixDim::a) && !exceeds_32_bits(&MatrixDim::b) &&
                      !exceeds_32_bits(&MatrixDim::out);
    // partial sums would be rounded, or positions would not fit
    if (!terms.empty() || !fits) return false;
    for (auto* more : {&rows, &columns})
      iterated.insert(iterated.end(), more->begin(), more->end());
    std::erase_if(iterated, [](auto& d) { return d.n == 1; });
    Dims sizes, strides[3];
    for (auto& d : iterated) {
      sizes.push_back(d.n);
      strides[0].push_back(d.a);
      strides[1].push_back(d.b);
      strides[2].push_back(d.out);
    }

    std::string source = "  using I = std::int64_t;\n";
    for (std::size_t d = 0; d < sizes.size(); ++d)
      source +=
          fmt::format("  for (I i{0} = 0; i{0} < {1}; ++i{0})\n", d, argument({-1, sizes[d]}));
    auto side = [&](const View& v, const Dims& moved, std::int64_t line, std::int64_t term,
                    bool writes = false) {
      SourceWriter w(&nest_);
      auto base = w.base(v, writes), off = w.at(v, moved);
      auto number = [&](std::int64_t s) {
        return s == 0 || s == 1 ? std::to_string(s) : "int(" + w.argument(s) + ")";
      };
      return fmt::format("Side{{{} + ({}) * {}, {}, {}}}", base, off, bytes_of(v.dtype),
                         number(line), number(term));
    };
    auto x = side(c.a, strides[0], m.a, k.a), y = side(c.b, strides[1], n.b, k.b);
    auto out = side(c.out, strides[2], m.out, n.out, true);
    emit_scope(
        "",
        source +
            fmt::format(
                "  block_product<{}, {}, {}, {}>({}, {}, {}, int({}), int({}), int({}), shared);\n",
                element_of(c.a.dtype), element_of(c.b.dtype), element_of(c.out.dtype), c.accumulate,
                x, y, out, argument({-1, m.n}), argument({-1, n.n}), argument({-1, k.n})));
    return true;  // all threads have synchronized after it
  }

  const Loop& loop_;
  const std::vector<const Step*> loops_;
  const NestMemory memory_;
  NestContext nest_;
  const bool marks_;
  std::string source_, near_start_;
  int depth_ = 1, counted_ = 0;
};

}  // namespace

std::int64_t shared_limit_of(int sm) {
  if (sm == 80 || sm == 87) return 163 * kKibi;
  return sm == 90 || (sm >= 100 && sm < 120) ? 227 * kKibi : kMinSharedLimit;
}

int nest_parallel_slots(const Step& outermost, std::int64_t iterations,
                        std::int64_t parallel_slot_bytes) {
  auto& body = parallel_nest(outermost).back()->body;
  bool fits = iterations > 1 && count_contractions(body) > 0;
  double steps = 0;
  each_step_run(body, [&](auto& s, std::int64_t times) {
    fits &= is_for_kernel(s.kind);
    steps += double(times);
  });
  // A block computes a matmul at about a third of its share of the GPU's rate. Starting a step
  // costs as much time as many multiplications.
  constexpr double slower = 3, start = 7e8;
  const auto per_iteration = multiplications(body),
             rounds = std::ceil(double(iterations) / kBlocks);
  fits &= rounds * per_iteration * kBlocks * slower <=
          double(iterations) * (per_iteration + steps * start);
  if (!fits || parallel_slot_bytes > kMaxNestSlotBytes) return 0;
  return parallel_slot_bytes + kStageBytes <= kMinSharedLimit
             ? 1
             : int(std::min<std::int64_t>(iterations, kBlocks));
}
Launch nest_launch(const Step& l, const Program& p, std::int64_t shared_limit, bool marks) {
  return Nest(l, p, shared_limit, marks).out;
}
std::string failed_part(const Launch& l, const int* marks) {
  auto name = [](const Step& s) {
    const Step* named = &s;
    while (!named->body.empty()) named = &named->body.back();
    return *named->op ? fmt::format("{} ({})", named->op, named->where) : std::string();
  };
  std::set<int> at;
  for (int b = 0; b < kMarks; ++b)
    if (marks[b] > 0) at.insert(marks[b] - 1);
  std::set<std::string> names;
  for (int part : at) {  // a step without a name belongs to the next named step
    auto named = std::find_if(l.parts.begin() + part, l.parts.end(),
                              [&](auto* s) { return !name(*s).empty(); });
    if (named != l.parts.end()) names.insert(name(**named));
  }
  for (auto* s : l.parts)
    if (names.empty() && !name(*s).empty() && count_contractions({*s}) > 0) names.insert(name(*s));
  std::string out;
  for (auto& n : names) out += (out.empty() ? "" : " or ") + n;
  return out;
}

}  // namespace haliax::cuda
