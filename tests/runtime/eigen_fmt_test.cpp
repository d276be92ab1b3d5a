// Tests of haliax/eigen.h, haliax/view.h and haliax/fmt.h.
#include <doctest/doctest.h>

#include "haliax/eigen.h"
#include "haliax/fmt.h"
#include "haliax/haliax.h"

namespace {

using namespace haliax;

const Axis R("row", 2), C("column", 3);

TEST_CASE("eigen: an array is viewed as a matrix by the names of its axes") {
  auto a = array({1, 2, 3, 4, 5, 6}, {R, C});
  auto m = as_matrix<float>(a, R, C), t = as_matrix<float>(a, "column", "row");
  CHECK(m.rows() == 2);
  CHECK(m.cols() == 3);
  CHECK(m(1, 0) == 4);
  CHECK(t.rows() == 3);
  CHECK(t(2, 1) == 6);
  CHECK(t.data() == m.data());
  Eigen::MatrixXf product = m * t;
  auto expected = dot(a, rename(a, {{"row", "other"}}), C);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) CHECK(product(i, j) == expected.floats()[std::size_t(2 * i + j)]);
}

TEST_CASE("eigen: a view computes a lazy array") {
  CHECK(as_vector<float>(arange(C).astype(DType::f32) * 2, C).sum() == 6);
  CHECK(as_vector<Eigen::bfloat16>(ones(C, DType::bf16).eval(), C).size() == 3);
}

TEST_CASE("eigen: matrices become arrays") {
  Eigen::MatrixXd m(2, 3);  // column-major
  m << 1, 2, 3, 4, 5, 6;
  auto a = from_eigen(m, R, C);
  CHECK(a.dtype() == DType::f64);
  CHECK(to_string(a.axes()) == "(row=2, column=3)");
  CHECK(a.doubles() == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(from_eigen(m.transpose(), C, R).doubles() == std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(from_eigen(m.row(1) * 2, C).doubles() == std::vector<double>{8, 10, 12});
  Eigen::Vector2i v(7, 8);
  CHECK(from_eigen(v, R).dtype() == DType::i32);
  CHECK(as_matrix<double>(from_eigen(m, R, C), R, C).isApprox(m));
}

TEST_CASE("eigen: mismatched axes and dtypes raise") {
  auto a = array({1, 2, 3, 4, 5, 6}, {R, C});
  CHECK_THROWS_WITH_AS((void)as_matrix<double>(a, R, C),
                       doctest::Contains("[host_view] expected f64, got f32; cast it with astype"),
                       Error);
  CHECK_THROWS_WITH_AS((void)as_matrix<float>(a, R, "colum"),
                       doctest::Contains("did you mean column?"), Error);
  CHECK_THROWS_WITH_AS((void)as_matrix<float>(a, R, "row"), doctest::Contains("twice"), Error);
  CHECK_THROWS_WITH_AS((void)as_vector<float>(a, R),
                       doctest::Contains("1 axes are requested, but the array has (row=2"), Error);
  CHECK_THROWS_WITH_AS((void)as_vector<float>(NamedArray(), R), doctest::Contains("empty"), Error);
  CHECK_THROWS_WITH_AS((void)from_eigen(Eigen::MatrixXf::Zero(2, 2), R, C),
                       doctest::Contains("axis column"), Error);
}

TEST_CASE("fmt: prints arrays, axes and dtypes") {
  auto a = array({1, 2}, R);
  CHECK(fmt::format("{}", a) == a.to_string());
  CHECK(fmt::format("{}", R) == "row=2");
  CHECK(fmt::format("{:>8}|{:<8}|", R, C.name) == "   row=2|column  |");
  CHECK(fmt::format("{}", AxisSpec{R, C}) == "(row=2, column=3)");
  CHECK(fmt::format("{}", DType::bf16) == "bf16");
}

}  // namespace
