// Trees of arrays. A module is a plain struct: its fields and their names are found by aggregate
// reflection, so there is no base class, no registration, and no field can be forgotten. Arrays are
// the leaves; everything else is static.
#pragma once
#include <array>
#include <concepts>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/array.h"
#include "haliax/axis.h"
#include "haliax/error.h"

namespace [[gnu::visibility("default")]] haliax {

// Arrays that are carried but never trained: leaves for jit, sharding and saving, skipped by grad
// and the optimisers.
template <class T> struct Frozen {
  T value;
  const T& operator*() const { return value; }
  const T* operator->() const { return &value; }
};
template <class T> Frozen(T) -> Frozen<T>;

// True for types whose values are part of the structure and compared by ==. Say `static constexpr
// bool is_static = true;` in the type, or specialise this for a type of somebody else.
template <class T> inline constexpr bool is_static = requires { requires T::is_static; };

// The way out for a class with a constructor, private parts or more than 32 fields: lists them,
// anywhere in the class. A trailing underscore is not part of a field's path. Costs nothing when
// the class is not used as a tree.
#define HALIAX_FIELDS(...)                                           \
  friend struct ::haliax::reflect::Access;                           \
  auto haliax_fields() { return std::tie(__VA_ARGS__); }             \
  auto haliax_fields_const() const { return std::tie(__VA_ARGS__); } \
  static constexpr std::string_view haliax_names() { return #__VA_ARGS__; }

namespace reflect {

// ---- how many fields: the largest number of initialisers that T{...} takes ----

// Converts to anything; used only to ask "is T{any, any, ...} well formed?", never called.
struct Any {
  template <class U> operator U() const { throw 0; }
};
// The same for base classes of T alone: they come before the fields and would count as one.
template <class T> struct AnyBase {
  template <class U>
  requires(std::is_base_of_v<U, T> && !std::is_same_v<U, T>) operator U() const { throw 0; }
};

template <class T, std::size_t... I> constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{(void(I), Any{})...}; };
}
template <class T, std::size_t N>
inline constexpr bool takes_n = takes<T>(std::make_index_sequence<N>{});

inline constexpr std::size_t most_fields = 32;

// takes Low, may take up to High
template <class T, std::size_t Low, std::size_t High> constexpr std::size_t bisect() {
  constexpr std::size_t mid = (Low + High + 1) / 2;
  if constexpr (Low == High)
    return Low;
  else if constexpr (takes_n<T, mid>)
    return bisect<T, mid, High>();
  else
    return bisect<T, Low, mid - 1>();
}
template <class T, std::size_t N> constexpr std::size_t count_down() {
  if constexpr (N == 0 || takes_n<T, N>)
    return N;
  else
    return count_down<T, N - 1>();
}
// Fields that cannot be left out make small numbers of initialisers fail as well; then only
// counting down is right.
template <class T> constexpr std::size_t count_fields() {
  if constexpr (takes_n<T, 0>)
    return bisect<T, 0, most_fields + 1>();
  else
    return count_down<T, most_fields + 1>();
}
template <class T> inline constexpr std::size_t field_count = count_fields<T>();

template <class T> inline constexpr bool has_base = requires { T{AnyBase<T>{}}; };

// A C array swallows one initialiser per element, but a single {}: with {} in its place the others
// are too many.
template <class T, std::size_t... I, std::size_t... J>
constexpr bool array_at(std::index_sequence<I...>, std::index_sequence<J...>) {
  if constexpr (requires { T{(void(I), Any{})..., {}, (void(J), Any{})...}; })
    return false;
  else
    return requires { T{(void(I), Any{})..., {}}; };
}
template <class T, std::size_t... I> constexpr bool has_c_array(std::index_sequence<I...>) {
  return (array_at<T>(std::make_index_sequence<I>{},
                      std::make_index_sequence<sizeof...(I) - I - 1>{}) ||
          ...);
}

// ---- the fields ----

// Calls visit(field0, field1, ...). The one ugly ladder; C++26 reflection deletes it and leaves
// user code unchanged.
template <class T, class Visit> constexpr decltype(auto) apply(T& node, Visit&& visit) {
  constexpr std::size_t fields = field_count<std::remove_const_t<T>>;
  if constexpr (fields == 0) return visit();
#define HALIAX_CASE(N, ...)         \
  else if constexpr (fields == N) { \
    auto& [__VA_ARGS__] = node;     \
    return visit(__VA_ARGS__);      \
  }
  HALIAX_CASE(1, a)
  HALIAX_CASE(2, a, b)
  HALIAX_CASE(3, a, b, c)
  HALIAX_CASE(4, a, b, c, d)
  HALIAX_CASE(5, a, b, c, d, e) HALIAX_CASE(6, a, b, c, d, e, f) HALIAX_CASE(7, a, b, c, d, e, f, g)
      HALIAX_CASE(8, a, b, c, d, e, f, g, h) HALIAX_CASE(9, a, b, c, d, e, f, g, h, i) HALIAX_CASE(
          10, a, b, c, d, e, f, g, h, i, j) HALIAX_CASE(11, a, b, c, d, e, f, g, h, i, j, k)
          HALIAX_CASE(12, a, b, c, d, e, f, g, h, i, j, k, l) HALIAX_CASE(
              13, a, b, c, d, e, f, g, h, i, j, k, l, m) HALIAX_CASE(14, a, b, c, d, e, f, g, h, i,
                                                                     j, k, l, m, n)
              HALIAX_CASE(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n,
                          o) HALIAX_CASE(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
                  HALIAX_CASE(17, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q)
                      HALIAX_CASE(18, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r)
                          HALIAX_CASE(19, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s)
                              HALIAX_CASE(20, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r,
                                          s, t) HALIAX_CASE(21, a, b, c, d, e, f, g, h, i, j, k, l,
                                                            m, n, o, p, q, r, s, t, u)
                                  HALIAX_CASE(22, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q,
                                              r, s, t, u, v)
                                      HALIAX_CASE(23, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o,
                                                  p, q, r, s, t, u, v, w)
                                          HALIAX_CASE(24, a, b, c, d, e, f, g, h, i, j, k, l, m, n,
                                                      o, p, q, r, s, t, u, v, w, x)
                                              HALIAX_CASE(25, a, b, c, d, e, f, g, h, i, j, k, l, m,
                                                          n, o, p, q, r, s, t, u, v, w, x,
                                                          y) HALIAX_CASE(26, a, b, c, d, e, f, g, h,
                                                                         i, j, k, l, m, n, o, p, q,
                                                                         r, s, t, u, v, w, x, y, z)
                                                  HALIAX_CASE(27, a, b, c, d, e, f, g, h, i, j, k,
                                                              l, m, n, o, p, q, r, s, t, u, v, w, x,
                                                              y, z, A)
                                                      HALIAX_CASE(28, a, b, c, d, e, f, g, h, i, j,
                                                                  k, l, m, n, o, p, q, r, s, t, u,
                                                                  v, w, x, y, z, A, B)
                                                          HALIAX_CASE(29, a, b, c, d, e, f, g, h, i,
                                                                      j, k, l, m, n, o, p, q, r, s,
                                                                      t, u, v, w, x, y, z, A, B, C)
                                                              HALIAX_CASE(30, a, b, c, d, e, f, g,
                                                                          h, i, j, k, l, m, n, o, p,
                                                                          q, r, s, t, u, v, w, x, y,
                                                                          z, A, B, C, D)
                                                                  HALIAX_CASE(31, a, b, c, d, e, f,
                                                                              g, h, i, j, k, l, m,
                                                                              n, o, p, q, r, s, t,
                                                                              u, v, w, x, y, z, A,
                                                                              B, C, D, E)
                                                                      HALIAX_CASE(
                                                                          32, a, b, c, d, e, f, g,
                                                                          h, i, j, k, l, m, n, o, p,
                                                                          q, r, s, t, u, v, w, x, y,
                                                                          z, A, B, C, D, E, F)
#undef HALIAX_CASE
}

// ---- the names: the compiler spells the member inside __PRETTY_FUNCTION__ ----

template <class T> struct Box { T value; };
// clang before 18 wants the pointer inside a class
template <class P> struct Member { P pointer; };
#pragma GCC diagnostic push
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
template <class T> extern const Box<T> fake;  // declared, never defined, never read

// A flat tuple: std::tuple and cutting the names at compile time would cost more than the rest of
// this file.
template <std::size_t I, class P> struct Slot { Member<P> member; };
template <class Index, class... P> struct Slots;
template <std::size_t... I, class... P>
struct Slots<std::index_sequence<I...>, P...> : Slot<I, P>... {};
template <std::size_t I, class P> constexpr Member<P> slot(const Slot<I, P>& s) { return s.member; }

// A function and no variable: one of a local T would be emitted, and would not link for want of
// `fake`.
template <class T> constexpr auto members() {
  return reflect::apply(fake<T>.value, [](const auto&... field) {
    return Slots<std::make_index_sequence<sizeof...(field)>, decltype(&field)...>{{{&field}}...};
  });
}
#pragma GCC diagnostic pop

template <auto M> constexpr std::string_view spelled() { return __PRETTY_FUNCTION__; }

void cut_spelled(std::string_view* names, std::size_t count);  // in place, to the field's name
// "a, b_, c" of HALIAX_FIELDS
void cut_listed(std::string_view* names, std::size_t count, std::string_view text);

// What HALIAX_FIELDS made, reached also where it is private.
struct Access {
  template <class T> static constexpr bool listed = requires(T& t) { t.haliax_fields(); };
  template <class T> static auto fields(T& t) {
    if constexpr (std::is_const_v<T>)
      return t.haliax_fields_const();
    else
      return t.haliax_fields();
  }
  template <class R, class C> static C owner(R (C::*)());
  template <class T>
  static constexpr bool own = std::is_same_v<decltype(owner(&T::haliax_fields)), T>;
  template <class T> static constexpr std::string_view text = T::haliax_names();
};

// The names of T's fields; called only when paths are wanted.
template <class T> [[gnu::noinline]] void write_names(std::string_view* names, std::size_t count) {
  if constexpr (Access::listed<T>)
    cut_listed(names, count, Access::text<T>);
  else
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((names[I] = spelled<slot<I>(members<T>())>()), ...);
      cut_spelled(names, count);
    }
  (std::make_index_sequence<field_count<T>>{});
}

// ---- what a type is to a walk ----

template <class T, template <class...> class Of> inline constexpr bool is_a = false;
template <class... T, template <class...> class Of> inline constexpr bool is_a<Of<T...>, Of> = true;
template <class T> inline constexpr bool is_std_array = false;
template <class T, std::size_t N> inline constexpr bool is_std_array<std::array<T, N>> = true;
template <class T, class... U> inline constexpr bool is_one_of = (std::is_same_v<T, U> || ...);

enum class Kind {
  leaf,
  frozen,
  plain,
  value,
  nothing,
  function,
  optional,
  sequence,
  map,
  tuple,
  listed,
  fields,
  // refused, and why
  arr,
  pointer,
  static_array,
  incomparable,
  inherited,
  base,
  c_array,
  too_many,
  unordered,
  unknown
};

// std::map<std::string, T> and std::function<R(A...)>, known by what they have: their headers are
// not included here.
template <class T>
concept AMap = requires(T& t, const typename T::key_type& key) {
  { t.find(key)->second } -> std::same_as<typename T::mapped_type&>;
};
template <class T> inline constexpr bool is_text_map = AMap<T>&& requires {
  requires std::same_as<typename T::key_type, std::string>;
  typename T::key_compare;
};
template <class T> inline constexpr bool is_function = false;
template <template <class> class Of, class R, class... A>
inline constexpr bool is_function<Of<R(A...)>> = requires(const Of<R(A...)>& f) {
  f.target_type();
  f.template target<R (*)(A...)>();
};
template <template <class> class Of, class R, class... A>
R (*const* target_of(const Of<R(A...)>& f))
(A...) {
  return f.template target<R (*)(A...)>();
}

// Does a static type hold an array: in a field, a container, an optional, a tuple, behind a
// pointer? Private parts are not seen: those jit finds when it copies a value. `Seen`: the types
// around it, which may come again inside.
struct AnArray {
  operator NamedArray() const;
};
template <class T, std::size_t... I> constexpr bool takes_array_after(std::index_sequence<I...>) {
  return requires { T{(void(I), Any{})..., AnArray{}}; };
}
template <class T, std::size_t... I> constexpr bool takes_array(std::index_sequence<I...>) {
  return (takes_array_after<T>(std::make_index_sequence<I>{}) || ...);
}
template <class T, class... Seen> constexpr bool holds_array();
// what a template is made of
template <class T, class... Seen> inline constexpr bool parts_hold_array = false;
template <template <class...> class Of, class... A, class... Seen>
inline constexpr bool parts_hold_array<Of<A...>, Seen...> =
    (holds_array<std::remove_cvref_t<A>, Seen...>() || ...);
template <class T, std::size_t N, class... Seen>
inline constexpr bool parts_hold_array<std::array<T, N>, Seen...> =
    holds_array<std::remove_cv_t<T>, Seen...>();
template <class T, class... Seen> constexpr bool holds_array() {
  if constexpr (is_one_of<T, Seen...>)
    return false;
  else if constexpr (is_one_of<T, NamedArray, Arr>)
    return true;
  else if constexpr (std::is_pointer_v<T> && requires { sizeof(std::remove_pointer_t<T>); })
    return holds_array<std::remove_cv_t<std::remove_pointer_t<T>>, T, Seen...>();
  else if constexpr (!std::is_class_v<T> || std::is_empty_v<T>)
    return false;
  else if constexpr (Access::listed<T>)
    return parts_hold_array<decltype(Access::fields(std::declval<T&>())), T, Seen...>;
  else if constexpr (parts_hold_array<T, T, Seen...>)
    return true;
  else if constexpr (!std::is_aggregate_v<T> || is_std_array<T> || field_count<T> == 0)
    return false;
  else if constexpr (field_count<T> > most_fields || has_base<T> ||
                     has_c_array<T>(std::make_index_sequence<field_count<T>>{}))
    return takes_array<T>(std::make_index_sequence<field_count<T>>{});
  else
    return parts_hold_array<decltype(reflect::apply(std::declval<T&>(),
                                                    [](auto&... f) { return std::tie(f...); })),
                            T, Seen...>;
}

template <class T> constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, NamedArray>)
    return Kind::leaf;
  else if constexpr (std::is_same_v<T, Arr>)
    return Kind::arr;
  else if constexpr (is_a<T, Frozen>)
    return Kind::frozen;
  // has padding, so its bytes mean nothing
  else if constexpr (std::is_same_v<T, long double>)
    return Kind::value;
  else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_member_pointer_v<T>)
    return Kind::plain;
  else if constexpr (std::is_pointer_v<T>)
    return std::is_function_v<std::remove_pointer_t<T>> ? Kind::plain : Kind::pointer;
  else if constexpr (is_one_of<T, std::string, std::string_view, Name, Axis, AxisSpec, AxisSelector,
                               AxisSelection>)
    return Kind::plain;
  else if constexpr (is_static<T>)
    return holds_array<T>() ? Kind::static_array : requires(const T& a) { bool(a == a); }
  ? Kind::value : Kind::incomparable;
  else if constexpr (Access::listed<T>) return Access::own<T> ? Kind::listed : Kind::inherited;
  else if constexpr (is_function<T>) return Kind::function;
  else if constexpr (AMap<T>) return is_text_map<T> ? Kind::map : Kind::unordered;
  else if constexpr (is_a<T, std::optional>) return Kind::optional;
  else if constexpr (is_a<T, std::vector> || is_std_array<T>) return Kind::sequence;
  else if constexpr (is_a<T, std::tuple> || is_a<T, std::pair>) return Kind::tuple;
  else if constexpr (std::is_array_v<T>) return Kind::c_array;
  // the type says it all
  else if constexpr (std::is_empty_v<T> || std::is_null_pointer_v<T>) return Kind::nothing;
  else if constexpr (!std::is_aggregate_v<T> || field_count<T> == 0) return Kind::unknown;
  else if constexpr (field_count<T> >
                     most_fields) return has_c_array<T>(std::make_index_sequence<field_count<T>>{})
      ? Kind::c_array
      : Kind::too_many;
  else if constexpr (has_base<T>) return Kind::base;
  else if constexpr (has_c_array<T>(
                         std::make_index_sequence<field_count<T>>{})) return Kind::c_array;
  else return Kind::fields;
}
template <class T> inline constexpr Kind kind = kind_of<std::remove_const_t<T>>();

// ---- what is refused, and the sentence that says so ----

constexpr bool is_refused(Kind k) { return k >= Kind::arr; }
// What is wrong with a type of a field, in itself or in what it contains; `nothing`: nothing is.
// Structs speak for themselves.
template <class T> constexpr Kind fault_of();
template <class T> inline constexpr Kind fault_of_parts = Kind::nothing;
template <template <class...> class Of, class... A>
inline constexpr Kind fault_of_parts<Of<A...>> = [] {
  Kind first = Kind::nothing;
  ((first = first == Kind::nothing ? fault_of<A>() : first), ...);
  return first;
}();
template <class T> constexpr Kind fault_of() {
  constexpr Kind k = kind<T>;
  if constexpr (is_refused(k))
    return k;
  else if constexpr (k == Kind::frozen || k == Kind::optional || k == Kind::tuple)
    return fault_of_parts<std::remove_const_t<T>>;
  else if constexpr (k == Kind::sequence)
    return fault_of<typename T::value_type>();
  else if constexpr (k == Kind::map)
    return fault_of<typename T::mapped_type>();
  else
    return Kind::nothing;
}

template <class T, std::size_t I> constexpr std::string_view field_name() {
  if constexpr (Access::listed<T>) {
    std::string_view all = Access::text<T>;
    for (std::size_t i = 0; i < I; ++i) all.remove_prefix(all.find(',') + 1);
    all = all.substr(0, all.find(','));
    return all.substr(all.find_first_not_of(' '));
  } else {
    auto s = spelled<slot<I>(members<T>())>();
    auto end = s.rfind(")}");
    if (end == s.npos) end = s.rfind("}]");
    s = s.substr(0, end);
    return s.substr(s.find_last_of(":.") + 1);
  }
}
// The name as a type, which a compiler writes out where it says which template went wrong:
// Field<{"title"}>.
#if defined(__clang__)  // Field<'t', 'i', 't', 'l', 'e'>: of a text it writes the codes
template <char...> struct Field {};
template <class T, std::size_t I, std::size_t... K>
Field<field_name<T, I>()[K]...> field_of(std::index_sequence<K...>);
#else
template <std::size_t N> struct Text {
  char text[N + 1] = {};
};
template <Text> struct Field {};
template <class T, std::size_t I, std::size_t... K>
Field<Text<sizeof...(K)>{{field_name<T, I>()[K]...}}> field_of(std::index_sequence<K...>);
#endif
template <class T, std::size_t I>
using FieldOf = decltype(field_of<T, I>(std::make_index_sequence<field_name<T, I>().size()>()));

// One sentence on what is wrong with `Type` and what to do; the compiler says beside it of which
// field of which module.
template <Kind kind, class Type, class Module = Type, class Field = void> constexpr void refuse() {
  static_assert(kind != Kind::arr, "haliax: Arr is a parameter type; make the field a NamedArray.");
  static_assert(kind != Kind::pointer,
                "haliax: a field must not be a raw pointer to data: hold the value itself, a "
                "std::string for text, or a std::optional for what may be absent. Pointers to "
                "functions are fine.");
  static_assert(kind != Kind::static_array,
                "haliax: a type with is_static = true must not hold a NamedArray: jit compares "
                "static values to find the program for a call, and the values of arrays are not "
                "known then. Leave is_static "
                "out: the fields are found by themselves.");
  static_assert(kind != Kind::incomparable,
                "haliax: a type with is_static = true needs an operator==.");
  static_assert(kind != Kind::inherited,
                "haliax: HALIAX_FIELDS comes from a base class, so the fields of the class itself "
                "would be forgotten; list all fields in the class itself.");
  static_assert(
      kind != Kind::base,
      "haliax: a module must be a plain struct without a base class; hold the base as a field, "
      "or list all fields with HALIAX_FIELDS(...).");
  static_assert(kind != Kind::c_array,
                "haliax: a field must not be a C array (x[3]); use std::array.");
  static_assert(kind != Kind::too_many,
                "haliax: a module has at most 32 fields; group some into a nested struct, or list "
                "them with HALIAX_FIELDS(...).");
  static_assert(kind != Kind::unordered,
                "haliax: of maps only a std::map with keys of std::string can be a field: its keys "
                "are names in paths, and their order is always the same.");
  static_assert(kind != Kind::unknown,
                "haliax: a module must be a plain struct: no constructor, base, virtual or private "
                "member; give it a static init(), or list its fields with HALIAX_FIELDS(...). A "
                "field that is not a "
                "parameter says `static constexpr bool is_static = true;` and has an operator==. A "
                "lambda that captures is "
                "held in a haliax::StaticFunction<R(A...)>.");
}
// Refuses the first field that must not be. Few templates lie between the user's line and the
// sentence: clang tells of each.
template <class...> struct Types {};
template <class Module, class... F> constexpr void check_fields(Types<F...>) {
  constexpr Kind faults[] = {fault_of<F>()..., Kind::unknown};
  constexpr std::size_t first = [&] {
    std::size_t i = 0;
    while (!is_refused(faults[i])) ++i;
    return i;
  }();
  if constexpr (first < sizeof...(F))
    refuse<faults[first], std::tuple_element_t<first, std::tuple<F...>>, Module,
           FieldOf<Module, first>>();
}

}  // namespace reflect

// What can be walked, as far as its own type says; its fields are checked when it is walked.
template <class T>
concept Tree = !reflect::is_refused(reflect::kind<T>);

namespace detail {
[[noreturn]] void refuse_empty(const char* op, const char* what, SourceLocation);
}

// A function as a field of a module, captures included. Part of the structure: copies are equal,
// and two that were made apart are not, so that jit traces anew where another is put in its place.
// Arrays that it captures are no parameters.
template <class Signature> class StaticFunction;
template <class R, class... A> class StaticFunction<R(A...)> {
 public:
  static constexpr bool is_static = true;
  StaticFunction() = default;
  template <class F>
  requires(std::is_invocable_r_v<R, const F&, A...> && !std::is_same_v<F, StaticFunction>)
      StaticFunction(F f)
      : f_(std::make_shared<const F>(std::move(f))), call_([](const void* self, A... a) -> R {
          return (*static_cast<const F*>(self))(std::forward<A>(a)...);
        }) {}
  R operator()(A... a, SourceLocation at = SourceLocation::current()) const {
    if (!f_)
      detail::refuse_empty("StaticFunction", "it is empty: it was never given a function", at);
    return call_(f_.get(), std::forward<A>(a)...);
  }
  explicit operator bool() const { return f_ != nullptr; }
  friend bool operator==(const StaticFunction& a, const StaticFunction& b) { return a.f_ == b.f_; }

 private:
  std::shared_ptr<const void> f_;
  R (*call_)(const void*, A...) = nullptr;
};

namespace detail {
std::uint64_t arrays_copied();  // on this thread, so far
}
// A value of a static type that has no bytes to compare: compared by type and ==.
class StaticValue {
 public:
  template <class T> static StaticValue of(const T& value) {
    StaticValue v;
    const auto before = detail::arrays_copied();
    v.value_ = std::make_shared<const T>(value);
    v.holds_array_ = detail::arrays_copied() != before;
    v.equal_ = [](const void* a, const void* b) {
      return bool(*static_cast<const T*>(a) == *static_cast<const T*>(b));
    };
    return v;
  }
  bool holds_array() const { return holds_array_; }  // in a private part, say
  friend bool operator==(const StaticValue& a, const StaticValue& b) {
    return a.equal_ == b.equal_ && (!a.equal_ || a.equal_(a.value_.get(), b.value_.get()));
  }

 private:
  std::shared_ptr<const void> value_;
  bool holds_array_ = false;
  // one per type, so it stands for the type as well
  bool (*equal_)(const void*, const void*) = nullptr;
};

// What a walk finds, in the order of the fields. Several trees may be walked into one.
struct Walk {
  bool with_paths = false, with_statics = false;

  std::vector<NamedArray*> arrays;
  std::vector<bool> frozen;        // per array: is it inside a Frozen?
  std::vector<std::string> paths;  // per array: blocks.0.attn.weight
  // Two trees of one type have equal statics and values if and only if their static fields, the
  // lengths of their vectors and the presence of their optionals are equal. Which arrays are empty
  // is not part of it.
  std::string statics;
  std::vector<StaticValue> values;
  // paths of functions of which nobody can say whether they are equal, of statics
  std::vector<std::string> unequal;
  std::vector<std::string> holding;  // paths of static values that hold arrays
  // With paths and statics: each static value, for people. Its bytes end at `end` of `statics`, or
  // it is a number of `values`.
  struct Told {
    std::string path, text;
    std::size_t end = 0;
    int value = -1;
  };
  std::vector<Told> told;

  Walk();
  Walk(Walk&&) noexcept;
  ~Walk();
  bool same_statics(const Walk& other) const;
  std::vector<NamedArray> leaves() const;
  // Raises if the number differs.
  void assign(const std::vector<NamedArray>& leaves,
              SourceLocation = SourceLocation::current()) const;

  // ---- called while walking; no templates, so that a module adds little code of its own and
  // compiles quickly ----
  struct Part {
    void* node;
    void (*visit)(Walk&, void* node);
  };
  using WriteNames = void (*)(std::string_view* names, std::size_t count);

  std::string path;
  int frozen_depth = 0;

  void leaf(NamedArray&);
  // the fields of a struct; without names, of a tuple
  void parts(const Part*, std::size_t count, WriteNames);
  void items(void* first, std::size_t size_of_item, std::size_t count, void (*visit)(Walk&, void*));
  void named(std::string_view name, const Part&);
  void add_bytes(const void*, std::size_t size);
  template <class T> void add(const T& x) {  // numbers and pointers
    add_bytes(&x, sizeof x);
    if constexpr (std::is_floating_point_v<T>)
      note(double(x));
    else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>)
      note(std::int64_t(x));
    else
      note("");
  }
  void add_length(std::size_t);                              // of a vector
  void note(double), note(std::int64_t), note(const char*);  // what was added last, for people
  void add(const std::string&);
  void add(std::string_view);
  void add(Name);
  void add(const Axis&);
  void add(const AxisSelector&);
  void add(const AxisSpec&);
  void add(const AxisSelection&);
  void add(StaticValue);
  void add_unequal();
};

// Adds what `tree` holds to `w`.
template <class T> void walk(Walk& w, T& tree);

// The same by address: one function per type, whatever is done with the leaves. Null for what a
// field must not be.
template <class T> void visit(Walk& w, void* address);
template <class T> constexpr auto visitor() -> void (*)(Walk&, void*) {
  if constexpr (reflect::is_refused(reflect::fault_of<T>()))
    return nullptr;
  else
    return &visit<T>;
}
template <class T> void visit(Walk& w, void* address) {
  using reflect::Kind;
  constexpr Kind kind = reflect::kind<T>;
  T& node = *static_cast<T*>(address);
  auto erase = [](const void* p) { return const_cast<void*>(p); };
  auto parts = [&]<class... P>(P&... part) {
    const Walk::Part table[] = {{erase(&part), &visit<P>}..., {nullptr, nullptr}};
    w.parts(table, sizeof...(part), nullptr);
  };
  auto fields = [&]<class... P>(P&... part) {
    const Walk::Part table[] = {{erase(&part), visitor<P>()}..., {nullptr, nullptr}};
    w.parts(table, sizeof...(part), &reflect::write_names<std::remove_const_t<T>>);
    return reflect::Types<std::remove_const_t<P>...>();
  };
  if constexpr (kind == Kind::leaf) {
    static_assert(
        !std::is_const_v<T>,
        "haliax: a field that holds arrays must not be const, or no new tree could be made.");
    if constexpr (!std::is_const_v<T>) w.leaf(node);
  } else if constexpr (kind == Kind::frozen) {
    ++w.frozen_depth;
    walk(w, node.value);
    --w.frozen_depth;
  } else if constexpr (kind == Kind::plain) {
    if (w.with_statics) w.add(node);
  } else if constexpr (kind == Kind::value) {
    if (w.with_statics) w.add(StaticValue::of(node));
  } else if constexpr (kind == Kind::function) {
    if (!w.with_statics) return;
    auto* plain = reflect::target_of(node);  // a pointer to a function can be compared
    w.add(plain != nullptr);
    if (plain)
      w.add(*plain);
    else if (node)
      w.add_unequal();
  } else if constexpr (kind == Kind::optional) {
    if (w.with_statics) w.add(node.has_value());
    if (node) walk(w, *node);
  } else if constexpr (kind == Kind::map) {
    if (w.with_statics) w.add_length(node.size());
    for (auto& [key, value] : node) {
      if (w.with_statics) w.add(key);
      Walk::Part item{erase(&value), &visit<std::remove_reference_t<decltype(value)>>};
      w.named(key, item);
    }
  } else if constexpr (kind == Kind::sequence) {
    using Item = typename T::value_type;
    if (w.with_statics) w.add_length(node.size());
    if constexpr (std::is_same_v<Item, bool>) {  // those of a std::vector<bool> are no objects
      if (w.with_statics)
        for (bool x : node) w.add(x);
    } else {
      w.items(erase(node.data()), sizeof(Item), node.size(),
              &visit<std::remove_pointer_t<decltype(node.data())>>);
    }
  } else if constexpr (kind == Kind::tuple) {
    std::apply(parts, node);
  } else if constexpr (kind == Kind::listed) {
    reflect::check_fields<std::remove_const_t<T>>(
        std::apply(fields, reflect::Access::fields(node)));
  } else if constexpr (kind == Kind::fields) {
    reflect::check_fields<std::remove_const_t<T>>(reflect::apply(node, fields));
  } else if constexpr (kind != Kind::nothing) {
    reflect::refuse<kind, std::remove_const_t<T>>();
  }
}

template <class T> void walk(Walk& w, T& tree) {
  haliax::visit<T>(w, const_cast<void*>(static_cast<const void*>(&tree)));
}

struct WalkOptions {
  bool paths = false, statics = false;
};

// The arrays are those of `tree` itself: read them as long as it lives, and write them only if it
// is not const.
template <class T> Walk walk_of(const T& tree, WalkOptions options = {}) {
  Walk w;
  w.with_paths = options.paths;
  w.with_statics = options.statics;
  haliax::visit<T>(w, const_cast<T*>(&tree));  // not what is found beside T: std::visit
  return w;
}

// ---- what is done with trees: modules are values, so a changed tree is a new one ----

using Leaves = std::vector<NamedArray>;

template <class T> Leaves flatten(const T& tree) { return walk_of(tree).leaves(); }

// `like` with other arrays, in the order of flatten.
template <class T>
T unflatten(T like, const Leaves& leaves, SourceLocation at = SourceLocation::current()) {
  walk_of(like).assign(leaves, at);
  return like;
}

namespace detail {
// From here on messages about these arrays name their fields; the walk has paths.
void note_fields(const Walk&);
// Raises unless both have as many arrays, naming the first path that one of them lacks; the walks
// have paths.
void check_alike(const char* op, const Walk&, const Walk&, SourceLocation);
template <class T, class U>
Walk walk_alike(const char* op, const Walk& w, const T& tree, const U& other, SourceLocation at) {
  Walk o = walk_of(other);
  if (o.arrays.size() != w.arrays.size())
    check_alike(op, walk_of(tree, {.paths = true}), walk_of(other, {.paths = true}), at);
  return o;
}
template <class F, class T, class... Ts>
T tree_mapped(F& f, T tree, [[maybe_unused]] SourceLocation at, const Ts&... trees) {
  Walk w = walk_of(tree);
  auto map = [&](const auto&... other) {
    for (std::size_t i = 0; i < w.arrays.size(); ++i)
      if (!(w.arrays[i]->empty() || ... || other.arrays[i]->empty()))
        *w.arrays[i] = f(std::as_const(*w.arrays[i]), std::as_const(*other.arrays[i])...);
  };
  map(walk_alike("tree_map", w, tree, trees, at)...);
  return tree;
}
}  // namespace detail

// f(leaf, the same leaf of the other trees...) in place of each leaf. One that is empty in any of
// them stays as it is.
template <class F, class T>
T tree_map(F&& f, T tree, SourceLocation at = SourceLocation::current()) {
  return detail::tree_mapped(f, std::move(tree), at);
}
template <class F, class T, class T2>
T tree_map(F&& f, T tree, const T2& second, SourceLocation at = SourceLocation::current()) {
  return detail::tree_mapped(f, std::move(tree), at, second);
}
template <class F, class T, class T2, class T3>
T tree_map(F&& f, T tree, const T2& second, const T3& third,
           SourceLocation at = SourceLocation::current()) {
  return detail::tree_mapped(f, std::move(tree), at, second, third);
}
template <class F, class T, class T2, class T3, class T4>
T tree_map(F&& f, T tree, const T2& second, const T3& third, const T4& fourth,
           SourceLocation at = SourceLocation::current()) {
  return detail::tree_mapped(f, std::move(tree), at, second, third, fourth);
}

// f(path, leaf, frozen) for each leaf; the leaves may be assigned if the tree is not const.
template <class T, class F> void for_each_leaf(T& tree, F&& f) {
  using Leaf = std::conditional_t<std::is_const_v<T>, const NamedArray, NamedArray>;
  Walk w = walk_of(tree, {.paths = true});
  for (std::size_t i = 0; i < w.arrays.size(); ++i)
    f(std::as_const(w.paths[i]), static_cast<Leaf&>(*w.arrays[i]), bool(w.frozen[i]));
}

template <class T> std::vector<std::string> tree_paths(const T& tree) {
  return walk_of(tree, {.paths = true}).paths;
}

// ---- parts of trees ----
// Which arrays of a tree: those that have a text in their path ("lora", "blocks.attn"), as
// tree_paths has it or as errors and checkpoints do, without the level that Stacked adds; or those
// for which a function of path and array is true. {}: all.
class LeafFilter {
 public:
  LeafFilter() = default;
  LeafFilter(const char* part) : part_(part) {}
  LeafFilter(std::string part) : part_(std::move(part)) {}
  template <class F>
  requires(std::is_invocable_r_v<bool, const F&, const std::string&, const NamedArray&> &&
           !std::is_same_v<F, LeafFilter>) LeafFilter(F f)
      : f_(std::make_shared<const F>(std::move(f))),
        call_([](const void* g, const std::string& path, const NamedArray& leaf) -> bool {
          return (*static_cast<const F*>(g))(path, leaf);
        }) {}
  LeafFilter operator!() const;  // all others
  bool operator()(const std::string& path, const NamedArray& leaf) const;
  bool all() const { return part_.empty() && !f_ && !inverted_; }
  // Which of the arrays, of those that are not empty; the walk has paths. Raises for a text that is
  // in no path.
  std::vector<bool> chosen(const char* op, const Walk&, SourceLocation) const;

 private:
  std::string part_;
  std::shared_ptr<const void> f_;
  bool (*call_)(const void*, const std::string&, const NamedArray&) = nullptr;
  bool inverted_ = false;
};

namespace detail {
Leaves only_leaves(Leaves, const std::vector<bool>&);  // the others are empty
Leaves merged_leaves(Leaves, const Leaves&);           // in place of empty ones those of the second
// of these the floats that are not Frozen
std::vector<bool> trainable_of(const Walk&, std::vector<bool> chosen);
}  // namespace detail

// The tree with those arrays alone; the others are empty. Jit, optimisers and tree_map leave what
// is empty alone.
template <class T>
T filter(const T& tree, const LeafFilter& keep, SourceLocation at = SourceLocation::current()) {
  Walk w = walk_of(tree, {.paths = true});
  return unflatten(tree, detail::only_leaves(w.leaves(), keep.chosen("filter", w, at)));
}
// Those, and all others.
template <class T>
std::pair<T, T> partition(const T& tree, const LeafFilter& first,
                          SourceLocation at = SourceLocation::current()) {
  return {filter(tree, first, at), filter(tree, !first, at)};
}
// What was apart put together: where `first` is empty, the array of the second.
template <class T>
T combine(const T& first, const T& second, SourceLocation at = SourceLocation::current()) {
  auto others = detail::walk_alike("combine", walk_of(first), first, second, at).leaves();
  return unflatten(first, detail::merged_leaves(flatten(first), others));
}
// What a gradient can be taken by, of those arrays: floats that are not Frozen.
template <class T>
T trainable(const T& model, const LeafFilter& keep = {},
            SourceLocation at = SourceLocation::current()) {
  Walk w = walk_of(model, {.paths = true});
  return unflatten(model, detail::only_leaves(w.leaves(), detail::trainable_of(
                                                              w, keep.chosen("trainable", w, at))));
}

// ---- trees as text ----
namespace detail {
std::string tree_text(const Walk&);
std::string summary(const Walk&, int depth);
std::ostream& write(std::ostream&, const std::string&);
}  // namespace detail

// For each array a line: its path, dtype and axes, elements, bytes; then their sums. Values are not
// shown.
template <class T> std::string tree_to_string(const T& tree) {
  return detail::tree_text(walk_of(tree, {.paths = true}));
}
// A table: for each module how many arrays and parameters it has, of them frozen ones, and their
// bytes. `depth`: levels shown.
template <class T> std::string summary(const T& model, int depth = -1) {
  return detail::summary(walk_of(model, {.paths = true}), depth);
}

// Modules, states of optimisers, and other trees that hold arrays.
template <class T>
concept ArrayTree = Tree<T> &&(reflect::kind<T> == reflect::Kind::frozen ||
                               reflect::kind<T> >= reflect::Kind::optional) &&
                    reflect::holds_array<std::remove_cv_t<T>>();
template <ArrayTree T> std::ostream& operator<<(std::ostream& out, const T& tree) {
  return detail::write(out, tree_to_string(tree));
}

namespace nn {
using haliax::operator<<;
}  // namespace nn
namespace optim {
using haliax::operator<<;
}

}  // namespace haliax
