// Random keys and samplers.
#include "haliax/transforms.h"
#include "table.h"

namespace golden {

using namespace haliax;

namespace {

Key key_of(const Value& args) {
  if (const Value* words = args.find("key"))
    return random::key(std::uint32_t(words->at(0).as_integer()),
                       std::uint32_t(words->at(1).as_integer()));
  return random::key(args["seed"].as_integer());
}
Arrays words_of(const Key& key) {
  return {rename(key.words, AxisSelector(key_word), AxisSelector("word"))};
}
Arr parameter(const Value& args, const char* name, const Arrays& in, double otherwise) {
  const Value* v = args.find(name);
  return v ? operand(*v, in) : Arr(otherwise);
}
void sampler(Table& t, const char* name,
             NamedArray (*f)(const Key&, const AxisSpec&, DType, SourceLocation)) {
  t[name] = [f](const Arrays&, const Value& args) {
    return Arrays{f(key_of(args), spec_of(args["shape"]), dtype_or(args["dtype"], DType::f32),
                    SourceLocation::current())};
  };
}

}  // namespace

void add_random_ops(Table& t) {
  t["random.key"] = [](const Arrays&, const Value& args) { return words_of(key_of(args)); };
  t["random.split"] = [](const Arrays&, const Value& args) {
    return words_of(random::split(key_of(args), Axis("split", args["num"].as_integer())));
  };
  t["random.fold_in"] = [](const Arrays&, const Value& args) {
    return words_of(random::fold_in(key_of(args), number_of(args["data"])));
  };
  t["random.bits"] = [](const Arrays&, const Value& args) {
    return Arrays{
        random::bits(key_of(args), spec_of(args["shape"]), dtype_or(args["dtype"], DType::u32))};
  };
  t["random.uniform"] = [](const Arrays& in, const Value& args) {
    return Arrays{
        random::uniform(key_of(args), spec_of(args["shape"]), parameter(args, "minval", in, 0),
                        parameter(args, "maxval", in, 1), dtype_or(args["dtype"], DType::f32))};
  };
  sampler(t, "random.normal", random::normal);
  sampler(t, "random.gumbel", random::gumbel);
  sampler(t, "random.exponential", random::exponential);
  sampler(t, "random.laplace", random::laplace);
  sampler(t, "random.logistic", random::logistic);
  sampler(t, "random.cauchy", random::cauchy);
  sampler(t, "random.rademacher", random::rademacher);
  t["random.pareto"] = [](const Arrays& in, const Value& args) {
    return Arrays{random::pareto(key_of(args), spec_of(args["shape"]), operand(args["b"], in),
                                 dtype_or(args["dtype"], DType::f32))};
  };
  t["random.weibull_min"] = [](const Arrays& in, const Value& args) {
    return Arrays{random::weibull_min(
        key_of(args), spec_of(args["shape"]), operand(args["scale"], in),
        operand(args["concentration"], in), dtype_or(args["dtype"], DType::f32))};
  };
  t["random.choice"] = [](const Arrays& in, const Value& args) {
    std::optional<Arr> p;
    if (args["p"].as_flag(false)) p = input(in, 1);
    return Arrays{random::choice(key_of(args), spec_of(args["shape"]), input(in, 0),
                                 selector_of(args["axis"]), args["replace"].as_flag(true), p)};
  };
  t["random.truncated_normal"] = [](const Arrays& in, const Value& args) {
    return Arrays{random::truncated_normal(key_of(args), spec_of(args["shape"]),
                                           operand(args["lower"], in), operand(args["upper"], in),
                                           dtype_or(args["dtype"], DType::f32))};
  };
  t["random.bernoulli"] = [](const Arrays& in, const Value& args) {
    return Arrays{
        random::bernoulli(key_of(args), spec_of(args["shape"]), parameter(args, "p", in, 0.5))};
  };
  t["random.randint"] = [](const Arrays& in, const Value& args) {
    return Arrays{random::randint(key_of(args), spec_of(args["shape"]), operand(args["minval"], in),
                                  operand(args["maxval"], in),
                                  dtype_or(args["dtype"], DType::i32))};
  };
  t["random.categorical"] = [](const Arrays& in, const Value& args) {
    std::optional<AxisSpec> shape;
    if (const Value* s = args.find("shape"); s && *s) shape = spec_of(*s);
    return Arrays{
        random::categorical(key_of(args), input(in, 0), selector_of(args["axis"]), shape)};
  };
  t["random.permutation"] = [](const Arrays& in, const Value& args) {
    return Arrays{random::permutation(key_of(args), input(in, 0), selector_of(args["axis"]),
                                      args["independent"].as_flag(false))};
  };
  t["random.generate_sharded"] = [](const Arrays&, const Value& args) {
    const bool normal = args["inner"].as_text() == "normal";
    auto draw = [&](const Key& k, const AxisSpec& axes) {
      return normal ? random::normal(k, axes) : random::uniform(k, axes);
    };
    return Arrays{random::generate_sharded(draw, args["axis"].as_text())(key_of(args),
                                                                         spec_of(args["shape"]))};
  };
}

}  // namespace golden
