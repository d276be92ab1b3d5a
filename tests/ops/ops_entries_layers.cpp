// Entries of convolutions, pools and contractions by groups of rows.
#include "haliax/conv.h"
#include "haliax/moe.h"
#include "ops/first_positions.h"
#include "ops/ragged.h"
#include "ops/window.h"
#include "ops_entries.h"

namespace ops_test {

namespace {

// Returns the result of a layer with this weight.
NamedArray conv(In x, const Names& spatial, const nn::PerAxis& kernel, nn::ConvOptions o = {}) {
  nn::Conv layer{x[1], {}, spatial, {}, {}, kernel, o.stride, o.padding, o.dilation, o.groups};
  layer.In = *find_axis(x[0].axes(), "c");
  layer.Out = *find_axis(x[1].axes(), "o");
  return layer(x[0]);
}
NamedArray transposed(In x, const Names& spatial, const nn::PerAxis& kernel,
                      nn::ConvTransposeOptions o = {}) {
  nn::ConvTranspose layer{x[1],     {},        spatial,          {},         {},      kernel,
                          o.stride, o.padding, o.output_padding, o.dilation, o.groups};
  layer.In = *find_axis(x[0].axes(), "c");
  layer.Out = *find_axis(x[1].axes(), "o");
  return layer(x[0]);
}
const Axis Row("r", 2), Col("s", 3);

}  // namespace

Entries layer_entries() {
  return {
      {"conv", {"b2t7c3", "o4c3t3"}, [](In x) { return conv(x, {"t"}, 3); }, "b2t5o4"},
      {"conv with padding",
       {"b2c3t7", "o4c3t3"},
       [](In x) { return conv(x, {"t"}, 3, {.padding = 1}); },
       "b2o4t7"},
      {"conv with a stride",
       {"b2t7c3", "o4c3t3"},
       [](In x) { return conv(x, {"t"}, 3, {.stride = 2, .padding = 1}); },
       "b2t4o4"},
      {"conv with a stride and a dilation",
       {"b2c3t11", "o2c3t3"},
       [](In x) {
         return conv(x, {"t"}, 3, {.stride = 3, .padding = {{1, 2}}, .dilation = 2});
       },
       "b2o2t4"},
      {"conv of adjacent windows",
       {"b2c3r4s6", "o4c3r2s3"},
       [](In x) {
         return conv(x, {"r", "s"}, {2, 3}, {.stride = {2, 3}});
       },
       "b2o4r2s2"},
      {"conv of one position",
       {"b2c3t5", "o4c3t1"},
       [](In x) { return conv(x, {"t"}, 1, {.stride = 2}); },
       "b2o4t3"},
      {"conv over two axes, channels first",
       {"b2c3r4s5", "o4c3r3s2"},
       [](In x) {
         return conv(x, {"r", "s"}, {3, 2}, {.padding = "SAME"});
       },
       "b2o4r4s5"},
      {"conv over two axes, channels last",
       {"b2r4s5c3", "o4c3r3s2"},
       [](In x) {
         return conv(x, {"r", "s"}, {3, 2}, {.stride = {2, 1}, .padding = 1});
       },
       "b2r2s6o4"},
      {"conv over three axes",
       {"c2q3r3s3", "o2c2q2r2s2"},
       [](In x) {
         return conv(x, {"q", "r", "s"}, 2);
       },
       "o2q2r2s2"},
      {"conv in groups",
       {"b2c4t5", "o6c2t2"},
       [](In x) { return conv(x, {"t"}, 2, {.groups = 2}); },
       "b2o6t4"},
      {"conv of single channels",
       {"b2c3t5", "o6c1t2"},
       [](In x) { return conv(x, {"t"}, 2, {.padding = 1, .groups = 3}); },
       "b2o6t6"},
      {"conv_transpose",
       {"b2t4c3", "o4c3t3"},
       [](In x) { return transposed(x, {"t"}, 3); },
       "b2t6o4"},
      {"conv_transpose with a stride",
       {"b2c3r3s4", "o2c3r3s2"},
       [](In x) {
         return transposed(x, {"r", "s"}, {3, 2},
                           {.stride = {2, 3}, .padding = {{1, 0}, {0, 1}}, .output_padding = 1});
       },
       "b2o2r7s11"},
      {"max_pool",
       {"b2r4s6"},
       [](In x) {
         return nn::max_pool(x[0], {Row, Col}, {.stride = {2, 3}});
       },
       "b2r2s2"},
      {"max_pool with padding",
       {"b2r4s6"},
       [](In x) {
         return nn::max_pool(x[0], {Row, Col}, {.padding = 1});
       },
       "b2r5s6"},
      {"min_pool",
       {"r5s6"},
       [](In x) { return nn::min_pool(x[0], Row, {.stride = 2, .use_ceil = true}); },
       "r3s6"},
      {"mean_pool",
       {"b2r5s6"},
       [](In x) {
         return nn::mean_pool(x[0], {Row, Col}, {.stride = 2, .padding = "SAME"});
       },
       "b2r3s3"},
      {"ragged_dot",
       {"n8d4", "e3d4m5", ints("e3", 0, 3)},
       [](In x) { return ragged_dot(x[0], x[1], x[2], "d"); },
       "n8m5"},
      {"ragged_dot of two axes",
       {"h2n8d2", "e3m2k2d2h2", ints("e3", 0, 3)},
       [](In x) {
         return ragged_dot(x[0], x[1], x[2], {"d", "h"});
       },
       "n8m2k2"},
      {"prim window",
       {"b2t7"},
       [](In x) {
         return NamedArray(prim::window(
             x[0].node(), {{{"t", 2, 3}}, {{Axis("i", 2), 0, 2}, {Axis("j", 2), 0, 1}}}));
       },
       "b2t2i2j2"},
      {"prim first rows",
       {"c2n3b2", ints("b2", 0, 4)},
       [](In x) {
         return NamedArray(
             prim::first_rows(x[0].node(), prim::cast(x[1].node(), DType::i64), Name("n")));
       },
       "b2n3c2"},
      {"prim ragged sums",
       {"n8d4", "n8m5", ints("e3", 0, 3)},
       [](In x) {
         return NamedArray(prim::ragged_sums(x[0].node(), x[1].node(),
                                             prim::cast(x[2].node(), DType::i64),
                                             {"n", "e", "d", "m"}, *find_axis(x[2].axes(), "e")));
       },
       "e3d4m5"},
      {"prim first positions",
       {"b2n9"},
       [](In x) { return NamedArray(prim::first_positions(x[0].node(), "n", 3)); },
       "b2n3",
       DType::i32},
  };
}

}  // namespace ops_test
