// The table of nodes, the rules of ops by kind, call sites and error messages.
#include "graph/node.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/fork.h"
#include "base/name.h"
#include "base/per_thread.h"
#include "base/where.h"

namespace haliax {
namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 32);  // mixes into the low bits, which are 0 in numbers such as 1 and 2
}
std::uint64_t hash_of(const Op& op, const Nodes& in, const Axes& axes, DType dtype, const Attr& a) {
  std::uint64_t h = mix(std::uint64_t(&op), std::uint64_t(dtype));
  for (auto& x : in) h = mix(h, x ? x->id : 0);
  for (auto& x : axes) h = mix(mix(h, std::uint64_t(x.name.data())), std::uint64_t(x.size));
  for (auto n : a.names) h = mix(h, std::uint64_t(n.data()));
  for (auto i : a.ints) h = mix(h, std::uint64_t(i));
  return mix(mix(h, std::bit_cast<std::uint64_t>(a.number)), std::uint64_t(a.payload.get()));
}
bool same_mapping(const Origin& a, const Origin& b) {
  return a.mapping == b.mapping || (a.mapping && b.mapping && *a.mapping == *b.mapping);
}

}  // namespace

// The hash-consing table: all nodes that may equal another one, by hash. It is split into parts, so
// that threads rarely wait for each other. It holds no reference: a node removes itself when it
// dies. It is never destroyed, since nodes may die after main.
struct Cons {
  std::mutex lock;
  // buckets by the low bits of the hash; each is a list linked by next_
  std::vector<const Node*> first = std::vector<const Node*>(64);
  std::size_t count = 0;

  const Node*& place(std::uint64_t hash) { return first[hash & (first.size() - 1)]; }
  // Adds a node. In: the table has room.
  void add(const Node& n) {
    n.next_ = std::exchange(place(n.hash_), &n);
    ++count;
  }
  // Returns the node that equals a node with this hash and these parts, or null.
  NodePtr find_equal(std::uint64_t hash, const Op&, const Nodes& in, const Axes&, DType,
                     const Attr&);
  void make_room() {
    if (count < first.size()) return;
    std::vector<const Node*> before(2 * first.size());
    before.swap(first);
    for (auto* n : before)
      while (n) {
        auto* next = n->next_;
        n->next_ = std::exchange(place(n->hash_), n);
        n = next;
      }
  }

  static constexpr int kParts = 16;
  static Cons& part(std::uint64_t hash) {
    static auto* parts = new Cons[kParts];
    return parts[hash >> 60];
  }
  static std::atomic<std::uint64_t>& ids() {
    static std::atomic<std::uint64_t> next{1};
    return next;
  }
  static std::uint64_t next() { return ids().fetch_add(1, std::memory_order_relaxed); }
  static void remove(Node& n) {
    if (!n.hash_) return;
    auto& t = part(n.hash_);
    std::lock_guard hold(t.lock);
    auto* at = &t.place(n.hash_);
    while (*at != &n) at = &(*at)->next_;
    *at = n.next_;
    --t.count;
    n.hash_ = 0;
  }
};

static const bool node_forks = at_fork({kForkNodes,
                                        [] {
                                          for (std::uint64_t k = 0; k < Cons::kParts; ++k)
                                            Cons::part(k << 60).lock.lock();
                                        },
                                        [] {
                                          for (std::uint64_t k = 0; k < Cons::kParts; ++k)
                                            Cons::part(k << 60).lock.unlock();
                                        }});

// Destroys inputs one after another rather than recursively.
static void release_iteratively(Nodes& in) {
  static thread_local Nodes* queue = nullptr;
  Nodes mine;
  const bool outermost = !queue;
  if (outermost) queue = &mine;
  for (auto& x : in)
    // nodes with other users too, since those may be about to die
    if (x) queue->push_back(std::move(x));
  if (!outermost) return;
  while (!mine.empty()) {
    auto last = std::move(mine.back());
    mine.pop_back();
  }
  queue = nullptr;
}
Node::~Node() {
  Cons::remove(*this);
  release_iteratively(in);
}

bool Node::varies_with(const Node* index) const {
  return std::find(free.begin(), free.end(), index) != free.end();
}

NodePtr Cons::find_equal(std::uint64_t hash, const Op& op, const Nodes& in, const Axes& axes,
                         DType dtype, const Attr& attr) {
  auto& c = context();
  // only these kinds read the mapping in scope
  const bool binds = op.kind == Kind::contract || op.kind == Kind::step;
  // A node that is being destroyed is intact as long as it is in the table.
  auto is_equal = [&](const Node& n) {
    return n.hash_ == hash && n.domain_ == c.domain && n.op == &op && n.in == in &&
           n.axes == axes && n.dtype == dtype && n.attr == attr &&
           (!binds || same_mapping(n.origin, c.origin));
  };
  for (auto* other = place(hash); other; other = other->next_)
    if (is_equal(*other))
      if (auto n = other->weak_from_this().lock()) return n;
  return nullptr;
}
// Returns the loop indices and carries that an operand varies with, by id.
static std::vector<const Node*> free_in(const Nodes& in) {
  std::vector<const Node*> out;
  for (auto& x : in)
    if (x)
      for (auto* f : x->free)
        if (std::find(out.begin(), out.end(), f) == out.end()) out.push_back(f);
  std::sort(out.begin(), out.end(), [](auto* a, auto* b) { return a->id < b->id; });
  return out;
}

void check_elements(const char* op, const Axes& axes) {
  if (axis_size(axes) > most_elements)
    fail(op, "the result would have more than 2^60 elements: " + to_string(axes));
}
NodePtr make(const Op& op, Nodes in, Axes axes, DType dtype, Attr attr) {
  auto& c = context();
  check_elements(op.name, axes);
  std::uint64_t hash = mix(hash_of(op, in, axes, dtype, attr), c.domain);
  if (hash == 0) hash = 1;  // 0: not in the table
  auto& table = Cons::part(hash);
  std::lock_guard hold(table.lock);
  if (auto n = table.find_equal(hash, op, in, axes, dtype, attr)) {
    if (!n->free.empty()) n->last_created.store(newest_id(), std::memory_order_relaxed);
    if (!c.origin.backward && c.origin.at.line() > 0) n->origin.backward.never();
    return n;
  }
  table.make_room();
  auto n = std::make_shared<Node>();
  n->op = &op;
  n->in = std::move(in);
  n->axes = std::move(axes);
  n->dtype = dtype;
  n->attr = std::move(attr);
  n->id = Cons::next();
  n->domain_ = c.domain;
  n->origin = c.origin;
  if (n->origin.traced == 0) n->origin.traced = n->id;
  n->free = free_in(n->in);
  // Set last: a node with a hash locks the table when it dies. The lock is held here, so a node
  // that an exception destroys before this line must have none.
  n->hash_ = hash;
  table.add(*n);
  return n;
}

Along along(const Node& n, std::size_t k, Name a) {
  using Way = Along::Way;
  if (n.op->along) {
    auto rule = n.op->along(n, k, a);
    return rule.way == Way::pick && !n.op->on_block ? Along{Way::full, a} : rule;
  }
  const auto kind = n.op->kind;
  if (kind == Kind::view || kind == Kind::step) return {Way::full, a};
  if ((kind != Kind::contract && kind != Kind::reduce) || has(n.axes, a)) return {Way::map, a};
  if (kind == Kind::contract) return {Way::fold, a};
  switch (n.op->code) {
    case Code::reduce_sum:
      return {Way::fold, a, Monoid::sum};
    case Code::reduce_prod:
      return {Way::fold, a, Monoid::prod};
    case Code::reduce_max:
      return {Way::fold, a, Monoid::max};
    case Code::reduce_min:
      return {Way::fold, a, Monoid::min};
    default:
      return {Way::full, a};
  }
}
Linear linear_in(const Node& n, std::size_t k) {
  return n.op->linear_in ? n.op->linear_in(n, k) : n.op->linear;
}
Linear zero_in(const Node& n, std::size_t k) {
  return n.op->zero_in ? n.op->zero_in(n, k) : linear_in(n, k);
}
bool accumulates(const Node& n, Monoid m) { return n.op->accumulates && n.op->accumulates(n) == m; }
bool maps(const Node& n) {
  auto by_position = [&](std::size_t k, const Axes& axes) {
    return std::all_of(axes.begin(), axes.end(),
                       [&](auto& a) { return along(n, k, a.name).way == Along::Way::map; });
  };
  for (std::size_t k = 0; k < n.in.size(); ++k)
    if (n.in[k] && !is_order_only(n, k) && !by_position(k, n.in[k]->axes)) return false;
  return by_position(kResultSide, n.axes);
}
bool is_transparent_view(const Node& n) {
  return n.op->kind == Kind::view && n.in.size() == 1 && maps(n);
}
bool keeps_names(const Node& n) {
  if (!is_transparent_view(n)) return false;
  auto& axes = n.in[0]->axes;
  return std::all_of(axes.begin(), axes.end(),
                     [&](auto& a) { return along(n, 0, a.name).point == a.name; });
}
// Returns the axis on that side of the op with the same iteration axis as the rule, or `otherwise`
// if the rule is not a map or no axis matches.
static Name by_point(const Node& n, std::size_t side, const Axes& axes, const Along& rule,
                     Name otherwise) {
  if (rule.way != Along::Way::map) return otherwise;
  for (auto& a : axes)
    if (auto its = along(n, side, a.name); its.way == Along::Way::map && its.point == rule.point)
      return a.name;
  return otherwise;
}
Name name_in_operand(const Node& n, std::size_t k, Name a) {
  return by_point(n, k, n.in[k]->axes, along(n, kResultSide, a), a);
}
Name name_in_result(const Node& n, std::size_t k, Name a) {
  return by_point(n, kResultSide, n.axes, along(n, k, a), a);
}
bool is_position(const Node& n) { return n.op->kind == Kind::leaf && n.op->on_block; }
bool is_order_only(const Node& n, std::size_t k) {
  return n.op->kind == Kind::wrap && k > 0 && k != kResultSide;
}

static const Op kData{.name = "data", .kind = Kind::leaf};

NodePtr make_data(BufferPtr value, Axes axes, DType dtype) {
  auto n = std::make_shared<Node>();
  n->op = &kData;
  n->axes = std::move(axes);
  n->dtype = dtype;
  n->origin = context().origin;
  n->value.set(std::move(value));
  n->id = n->origin.traced = Cons::next();
  return n;
}

// Returns the fields at the end of both paths, or "" if that is only the last field. For example,
// blocks.up.weight and head.up.weight have up.weight in common, head.weight and up.weight nothing.
static std::string_view common_end(std::string_view a, std::string_view b) {
  std::size_t same = 0, fields = 0;  // length of the common suffix; its length in full fields
  while (same < std::min(a.size(), b.size()) && a[a.size() - 1 - same] == b[b.size() - 1 - same])
    if (a[a.size() - 1 - same++] == '.') fields = same - 1;
  auto ends = [&](std::string_view s) { return same == s.size() || s[s.size() - 1 - same] == '.'; };
  if (ends(a) && ends(b)) fields = same;
  auto common = b.substr(b.size() - fields);
  return fields == a.size() || common.find('.') != common.npos ? common : "";
}
void FieldPath::note(Name path) {
  if (!path) return;
  const NameData* seen = nullptr;
  auto* both = path.data();
  while (!path_.compare_exchange_strong(seen, both, std::memory_order_acq_rel)) {
    both = Name(common_end(seen->text, path.text())).data();
    if (both == seen) return;
  }
}

std::uint64_t fresh_id() { return Cons::next(); }
std::uint64_t newest_id() { return Cons::ids().load(std::memory_order_relaxed) - 1; }

void detach(const Node& node, DetachedInputs& recipe) {
  auto& n = const_cast<Node&>(node);
  if (n.op->kind == Kind::leaf) return;
  // reserves before any change, as allocation may throw
  auto make_room = [](auto& list, std::size_t more) {
    if (list.capacity() - list.size() < more) list.reserve(2 * list.size() + more);
  };
  const bool is_first = recipe.in.empty();
  if (!is_first) make_room(recipe.in, n.in.size());
  make_room(recipe.payloads, n.attr.payload ? 1 : 0);
  Cons::remove(n);  // an equal computation later creates a new node
  n.op = &kData;
  if (is_first)
    recipe.in.swap(n.in);
  else
    recipe.in.insert(recipe.in.end(), std::make_move_iterator(n.in.begin()),
                     std::make_move_iterator(n.in.end()));
  if (n.attr.payload) recipe.payloads.push_back(std::move(n.attr.payload));
  n.in = {};
  n.attr = {};
}
DetachedInputs::~DetachedInputs() { release_iteratively(in); }

std::uint64_t fresh_domain() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}
Context& context() { return per_thread<Context>(); }

// Returns true for a location in the sources of the library, which are compiled with this prefix
// (src/meson.build).
static bool is_library_source(const SourceLocation& at) {
  constexpr std::string_view prefix = "haliax-library/";
  return at.file_name() && std::strncmp(at.file_name(), prefix.data(), prefix.size()) == 0;
}

// Returns the path of a weight: of the first node, along first inputs, that a trace named or that
// was found in a field. Returns "" if there is none.
static std::string_view path_of_weight(const Node* n) {
  auto path_of = [](const Node& at) {
    return at.op->placeholder ? at.origin.module : at.field.path();
  };
  while (!path_of(*n) && !n->op->placeholder && !n->in.empty() && n->in[0]) n = n->in[0].get();
  return path_of(*n).text();
}

CallSite::CallSite(SourceLocation at, Kind kind, const NamedArray* weight) {
  auto& c = context();
  at_ = c.origin.at;
  module_ = c.origin.module;
  scope_ = c.origin.scope;
  weight_created_ = c.origin.weight_created;
  in_layer_ = c.in_layer;
  reads_ = kind != layer;
  if (reads_) GraphReader::enter();
  // A function of the library that calls another one keeps the location of the user's call.
  const bool moves = !c.in_layer && !(at_.line() > 0 && is_library_source(at));
  if (moves) c.origin.at = at;
  if (moves && at.line() > 0) c.last_call = at;
  if (kind == layer) c.in_layer = true;
  if (kind != layer || !weight || weight->empty()) return;
  GraphReader reader;
  const auto path = path_of_weight(weight->node().get());
  if (path.rfind('.') != path.npos) {
    c.origin.module = Name(path.substr(0, path.rfind('.')));
    c.origin.scope = {};  // the path is more specific
  }
  c.origin.weight_created = path.empty() ? Name(to_string(weight->node()->origin.at)) : Name();
}
CallSite::~CallSite() {
  auto& c = context();
  c.origin.at = at_;
  c.origin.module = module_;
  c.origin.scope = scope_;
  c.origin.weight_created = weight_created_;
  c.in_layer = in_layer_;
  if (reads_) GraphReader::leave();
}

Name module_path(std::string field) {
  const std::string level = ".stacked";
  for (auto at = field.find(level); at != field.npos; at = field.find(level))
    field.erase(at, level.size());
  return field.empty() ? Name() : Name(field);
}
std::string where_of(const Origin& o) {
  auto s = to_string(o.at);
  std::string in(o.module.text());
  if (in.empty() && o.weight_created)
    in = "a layer whose weight was created at " + std::string(o.weight_created.text());
  if (o.scope) in += (in.empty() ? "" : ".") + std::string(o.scope.text());
  if (!in.empty()) s += (s.empty() ? "in " : ", in ") + in;
  return s;
}
std::string failure_at(const Origin& o, const std::string& op, const std::string& text) {
  auto where = where_of(o);
  return "[" + op + "] " + text + (where.empty() ? "" : "; " + where);
}
void fail_at(const Origin& o, const std::string& op, const std::string& text) {
  throw Error(failure_at(o, op, text));
}
void fail(const std::string& op, const std::string& text) {
  auto& c = context();
  // A conversion to bool has no source location; the location of the last library
  // call replaces it.
  auto before = where_of(c.origin).empty() ? to_string(c.last_call) : "";
  fail_at(c.origin, op, before.empty() ? text : text + "; after the call at " + before);
}

}  // namespace haliax
