// The fields of structs: their number, their names and their kinds, by reflection over aggregates.
// Included by haliax/tree.h, which defines Frozen and is_static first.
#pragma once
#include <array>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/array.h"
#include "haliax/axis.h"

namespace [[gnu::visibility("default")]] haliax {
namespace reflect {

// ---- the number of fields: the largest number of initializers that T{...} accepts ----

// Converts to any type. Never called: tests in `requires` if T{any, any, ...} is well formed.
struct Any {
  template <class U> operator U() const { throw 0; }
};
// Converts to the base classes of T only. A base precedes the fields and would count as a field.
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

// T accepts Low initializers, and at most High.
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
// If a field requires an initializer, small numbers of initializers fail as well. Bisection is then
// wrong, and the number is found by counting down.
template <class T> constexpr std::size_t count_fields() {
  if constexpr (takes_n<T, 0>)
    return bisect<T, 0, most_fields + 1>();
  else
    return count_down<T, most_fields + 1>();
}
template <class T> inline constexpr std::size_t field_count = count_fields<T>();

template <class T> inline constexpr bool has_base = requires { T{AnyBase<T>{}}; };

// A C array consumes one initializer per element, but only one {}. With {} in its place, the other
// initializers are too many.
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

// Calls visit(field0, field1, ...) with the fields of `node`, which structured bindings name.
template <class T, class Visit> constexpr decltype(auto) apply(T& node, Visit&& visit) {
  constexpr std::size_t fields = field_count<std::remove_const_t<T>>;
  if constexpr (fields == 0) return visit();
#define HALIAX_CASE(N, ...)         \
  else if constexpr (fields == N) { \
    auto& [__VA_ARGS__] = node;     \
    return visit(__VA_ARGS__);      \
  }
  // clang-format off
  HALIAX_CASE(1, a)
  HALIAX_CASE(2, a,b)
  HALIAX_CASE(3, a,b,c)
  HALIAX_CASE(4, a,b,c,d)
  HALIAX_CASE(5, a,b,c,d,e)
  HALIAX_CASE(6, a,b,c,d,e,f)
  HALIAX_CASE(7, a,b,c,d,e,f,g)
  HALIAX_CASE(8, a,b,c,d,e,f,g,h)
  HALIAX_CASE(9, a,b,c,d,e,f,g,h,i)
  HALIAX_CASE(10, a,b,c,d,e,f,g,h,i,j)
  HALIAX_CASE(11, a,b,c,d,e,f,g,h,i,j,k)
  HALIAX_CASE(12, a,b,c,d,e,f,g,h,i,j,k,l)
  HALIAX_CASE(13, a,b,c,d,e,f,g,h,i,j,k,l,m)
  HALIAX_CASE(14, a,b,c,d,e,f,g,h,i,j,k,l,m,n)
  HALIAX_CASE(15, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o)
  HALIAX_CASE(16, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p)
  HALIAX_CASE(17, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q)
  HALIAX_CASE(18, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r)
  HALIAX_CASE(19, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s)
  HALIAX_CASE(20, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t)
  HALIAX_CASE(21, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u)
  HALIAX_CASE(22, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v)
  HALIAX_CASE(23, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w)
  HALIAX_CASE(24, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x)
  HALIAX_CASE(25, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y)
  HALIAX_CASE(26, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z)
  HALIAX_CASE(27, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,A)
  HALIAX_CASE(28, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,A,B)
  HALIAX_CASE(29, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,A,B,C)
  HALIAX_CASE(30, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,A,B,C,D)
  HALIAX_CASE(31, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,A,B,C,D,E)
  HALIAX_CASE(32, a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,A,B,C,D,E,F)
  // clang-format on
#undef HALIAX_CASE
}

// ---- the names of fields, from __PRETTY_FUNCTION__ of a template over a pointer to the field ----

template <class T> struct Box { T value; };
// clang before 18 requires that the pointer is inside a class.
template <class P> struct Member { P pointer; };
#pragma GCC diagnostic push
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
template <class T> extern const Box<T> fake;  // declared, never defined, never read

// A flat tuple. std::tuple costs more compile time than the rest of this header.
template <std::size_t I, class P> struct Slot { Member<P> member; };
template <class Index, class... P> struct Slots;
template <std::size_t... I, class... P>
struct Slots<std::index_sequence<I...>, P...> : Slot<I, P>... {};
template <std::size_t I, class P> constexpr Member<P> slot(const Slot<I, P>& s) { return s.member; }

// A function rather than a variable: a variable of a local T would be emitted and would not link,
// because `fake` is undefined.
template <class T> constexpr auto members() {
  return reflect::apply(fake<T>.value, [](const auto&... field) {
    return Slots<std::make_index_sequence<sizeof...(field)>, decltype(&field)...>{{{&field}}...};
  });
}
#pragma GCC diagnostic pop

template <auto M> constexpr std::string_view spelled() { return __PRETTY_FUNCTION__; }

// Replaces each output of `spelled` by the name of the field.
void trim_spelled(std::string_view* names, std::size_t count);
// Writes the names in the argument list of HALIAX_FIELDS, such as "a, b_, c".
void split_listed(std::string_view* names, std::size_t count, std::string_view text);

// Access to the members that HALIAX_FIELDS defines, also if they are private.
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

// Writes the names of the fields of T. Called only if a `Walk` has paths.
template <class T> [[gnu::noinline]] void write_names(std::string_view* names, std::size_t count) {
  if constexpr (Access::listed<T>)
    split_listed(names, count, Access::text<T>);
  else
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((names[I] = spelled<slot<I>(members<T>())>()), ...);
      trim_spelled(names, count);
    }
  (std::make_index_sequence<field_count<T>>{});
}

// ---- the kind of a type in a tree ----

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
  // invalid, with the reason
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

// std::map<std::string, T> and std::function<R(A...)> are recognized by their members, because this
// header does not include their headers.
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

// holds_array: true if a type holds an array in a field, a container, an optional, a tuple or a
// pointee. Private members are not visible here; jit finds arrays in them when it copies a value.
// `Seen` lists the enclosing types, so that recursive types end.
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
// True if a template argument of T holds an array.
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
  // It has padding, so its bytes cannot be compared.
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
  // The type determines the value.
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

// ---- invalid types, and their error messages ----

constexpr bool is_refused(Kind k) { return k >= Kind::arr; }
// The kind that makes the type of a field invalid, in the type itself or in a template argument;
// `nothing` if it is valid. `visit` checks structs.
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
// The name of a field as a type, which compilers print with the failed template: Field<{"title"}>.
#if defined(__clang__)  // prints character codes of a string, but characters of a pack
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

// Fails with one sentence that states the problem of `Type` and a fix. The compiler adds the names
// of the field and of the module.
template <Kind kind, class Type, class Module = Type, class Field = void> constexpr void refuse() {
  static_assert(kind != Kind::arr, "haliax: Arr is a parameter type; make the field a NamedArray.");
  static_assert(kind != Kind::pointer,
                "haliax: a field must not be a raw pointer to data: hold the value itself, a "
                "std::string for text, or a std::optional for an optional value. Pointers to "
                "functions are fine.");
  static_assert(kind != Kind::static_array,
                "haliax: a type with is_static = true must not hold a NamedArray: jit compares "
                "static values to find the program for a call, and the values of arrays are not "
                "known then. Remove is_static "
                "to detect the fields automatically.");
  static_assert(kind != Kind::incomparable,
                "haliax: a type with is_static = true needs an operator==.");
  static_assert(
      kind != Kind::inherited,
      "haliax: HALIAX_FIELDS is inherited from a base class, so the fields of the class itself "
      "would be missing; list all fields in the class itself.");
  static_assert(
      kind != Kind::base,
      "haliax: a module must be a plain struct without a base class; hold the base as a field, "
      "or list all fields with HALIAX_FIELDS(...).");
  static_assert(kind != Kind::c_array,
                "haliax: a field must not be a C array (x[3]); use std::array.");
  static_assert(kind != Kind::too_many,
                "haliax: a module has at most 32 fields; group some into a nested struct, or list "
                "them with HALIAX_FIELDS(...).");
  static_assert(
      kind != Kind::unordered,
      "haliax: the only map that can be a field is a std::map with std::string keys: its keys "
      "are names in paths, and their order is always the same.");
  static_assert(kind != Kind::unknown,
                "haliax: a module must be a plain struct: no constructor, base, virtual or private "
                "member; give it a static init(), or list its fields with HALIAX_FIELDS(...). A "
                "field that is not a "
                "parameter has `static constexpr bool is_static = true;` and an operator==. A "
                "lambda that captures is "
                "stored in a haliax::StaticFunction<R(A...)>.");
}
// Fails for the first invalid field. Few templates are instantiated between the line of the user
// and the message, because clang lists each of them.
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
}  // namespace haliax
