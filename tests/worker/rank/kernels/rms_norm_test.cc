#include "worker/rank/kernels/cpu/rms_norm.h"

#include "tests/worker/rank/kernels/simulated_kernels.h"

namespace titan::kernels::testing {
namespace {

struct NormCase {
  int64_t rows, dim;
  Dtype type;
  bool weighted, residual;
  double scale = 1;      // Scale of the input.
  int64_t padding = -1;  // Between rows; -1: some.
};

std::vector<NormCase> norm_cases() {
  std::vector<NormCase> cases;
  for (const auto& [rows, dim] :
       {std::pair<int64_t, int64_t>{0, 8}, {1, 1}, {1, 16}, {3, 7}, {5, 33}, {70, 16}, {33, 100}, {2, 4100}}) {
    for (const Dtype type : kBothTypes) {
      cases.push_back({rows, dim, type, true, false});
      cases.push_back({rows, dim, type, true, true});
      cases.push_back({rows, dim, type, false, false});
    }
  }
  for (const double scale : {1e18, 1e-18, 1e-40}) cases.push_back({4, 40, Dtype::kF32, true, false, scale});
  for (const auto& [rows, dim] : {std::pair<int64_t, int64_t>{3, 8}, {70, 64}, {5, 1040}, {600, 520}}) {
    for (const bool residual : {false, true}) cases.push_back({rows, dim, Dtype::kBf16, true, residual, 1, 8});
    cases.push_back({rows, dim, Dtype::kF32, rows != 5, false, 1, 0});
  }
  return cases;
}

constexpr double kEps = 1e-5;

// The numbers of a case, with gaps between rows, and the fp64 truth of both passes.
struct Norm {
  Norm(const NormCase& c, uint64_t seed)
      : c(c),
        random(seed),
        stride(c.dim + (c.padding < 0 ? random.pick(0, 3) : c.padding)),
        x(c.type, random.normals(c.rows * stride, c.scale), random.edge()),
        residual(c.type, random.normals(c.rows * stride, c.scale), random.edge()),
        sum(c.type, c.rows * stride, random.edge()),
        y(c.type, c.rows * stride, random.edge()),
        dy(c.type, random.normals(c.rows * stride), random.edge()),
        dx(c.type, c.rows * stride, random.edge()),
        weight(c.type, random.normals(c.dim), random.edge()),
        dweight(Dtype::kF32, c.dim, random.edge()),
        inverse_rms(c.rows, random.edge()),
        scratch(std::max(rms_norm_scratch(c.dim), device_rms_norm_parts(c.rows, c.dim) * c.dim)) {}

  bool forward(const Computer& by) {
    return by.run(rms_norm_forward, {.rows = c.rows,
                                     .dim = c.dim,
                                     .type = c.type,
                                     .x = x.data(),
                                     .x_stride = stride,
                                     .residual = c.residual ? residual.data() : nullptr,
                                     .residual_stride = stride,
                                     .sum = sum.data(),
                                     .sum_stride = stride,
                                     .weight = c.weighted ? weight.data() : nullptr,
                                     .y = y.data(),
                                     .y_stride = stride,
                                     .inverse_rms = inverse_rms.data(),
                                     .eps = kEps});
  }
  bool backward(const Computer& by) {
    return by.run(rms_norm_backward, {.rows = c.rows,
                                      .dim = c.dim,
                                      .type = c.type,
                                      .x = normed().data(),
                                      .x_stride = stride,
                                      .dy = dy.data(),
                                      .dy_stride = stride,
                                      .weight = c.weighted ? weight.data() : nullptr,
                                      .inverse_rms = inverse_rms.data(),
                                      .also = c.residual ? residual.data() : nullptr,
                                      .also_stride = stride,
                                      .dx = dx.data(),
                                      .dx_stride = stride,
                                      .dweight = c.weighted ? dweight.data() : nullptr,
                                      .scratch = scratch.data()});
  }
  const Numbers& normed() const { return c.residual ? sum : x; }
  double weight_at(int64_t i) const { return c.weighted ? weight.get(i) : 1; }
  double true_inverse_rms(int64_t row) const {
    double squares = 0;
    for (int64_t i = 0; i < c.dim; ++i) squares += std::pow(normed().get(row * stride + i), 2);
    return 1 / std::sqrt(squares / static_cast<double>(c.dim) + kEps);
  }

  NormCase c;
  Random random;
  int64_t stride;
  Numbers x, residual, sum, y, dy, dx, weight, dweight;
  Buffer<float> inverse_rms, scratch;
};

void check_forward(const Norm& n) {
  for (int64_t row = 0; row < n.c.rows; ++row) {
    const double inverse_rms = n.true_inverse_rms(row);
    ASSERT_NEAR(n.inverse_rms[row], inverse_rms, 1e-6 * inverse_rms);
    for (int64_t i = 0; i < n.c.dim; ++i) {
      const int64_t at = row * n.stride + i;
      if (n.c.residual) {
        ASSERT_TRUE(is_close(n.sum.get(at), n.x.get(at) + n.residual.get(at), rounding(n.c.type), 0));
      }
      const double truth = n.normed().get(at) * inverse_rms * n.weight_at(i);
      ASSERT_TRUE(is_close(n.y.get(at), truth, rounding(n.c.type) + 1e-6, 1e-35)) << n.y.get(at) << ", " << truth;
    }
  }
}

void check_backward(const Norm& n) {
  std::vector<double> dweight(n.c.dim), magnitudes(n.c.dim);
  for (int64_t row = 0; row < n.c.rows; ++row) {
    const double inverse_rms = n.true_inverse_rms(row);
    double mean = 0, largest = 0;
    for (int64_t i = 0; i < n.c.dim; ++i) {
      const double normed = n.normed().get(row * n.stride + i) * inverse_rms, dy = n.dy.get(row * n.stride + i);
      mean += normed * dy * n.weight_at(i) / static_cast<double>(n.c.dim);
      largest = std::max(largest, std::abs(dy * n.weight_at(i)));
      dweight[i] += normed * dy;
      magnitudes[i] += std::abs(normed * dy);
    }
    for (int64_t i = 0; i < n.c.dim; ++i) {
      const int64_t at = row * n.stride + i;
      const double normed = n.normed().get(at) * inverse_rms;
      const double truth =
          (n.dy.get(at) * n.weight_at(i) - normed * mean) * inverse_rms + (n.c.residual ? n.residual.get(at) : 0);
      ASSERT_TRUE(is_close(n.dx.get(at), truth, rounding(n.c.type), 2e-6 * inverse_rms * largest))
          << n.dx.get(at) << ", " << truth;
    }
  }
  for (int64_t i = 0; n.c.weighted && i < n.c.dim; ++i) {
    ASSERT_NEAR(n.dweight.get(i), dweight[i], 1e-5 * magnitudes[i] + 1e-35);
  }
}

TEST(RmsNormTest, MatchesFp64ForwardAndBackward) {
  for (const NormCase& c : norm_cases()) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows of " << c.dim << ", " << name(c.type) << ", weight "
                                      << c.weighted << ", residual " << c.residual << ", scale " << c.scale);
    for_each_computer([&](const Computer& by) {
      Norm norm(c, c.rows + c.dim);
      ASSERT_TRUE(norm.forward(by));
      check_forward(norm);
      ASSERT_TRUE(norm.backward(by));
      check_backward(norm);
    });
  }
}

TEST(RmsNormTest, HasTheSameBitsForAnyNumberOfThreads) {
  for (const Level level : levels_here()) {
    Norm one({101, 70, Dtype::kBf16, true, true}, 1), three({101, 70, Dtype::kBf16, true, true}, 1);
    for (Norm* norm : {&one, &three}) {
      const Computer by{level, norm == &one ? 1 : 3, nullptr};
      ASSERT_TRUE(norm->forward(by) && norm->backward(by));
    }
    EXPECT_EQ(one.dweight.bits(), three.dweight.bits());
    for (int64_t row = 0; row < 101; ++row) {
      for (int64_t i = row * one.stride; i < row * one.stride + 70; ++i) {
        ASSERT_EQ(one.y.get(i), three.y.get(i));
        ASSERT_EQ(one.dx.get(i), three.dx.get(i));
      }
    }
  }
}

TEST(RmsNormTest, InfinitiesStayInTheirRow) {
  for_each_computer([](const Computer& by) {
    Norm norm({3, 20, Dtype::kBf16, true, false}, 1);
    norm.x.set(norm.stride + 3, kInfinity);
    ASSERT_TRUE(norm.forward(by));
    EXPECT_TRUE(
        std::isnan(norm.y.get(norm.stride + 3)));  // Infinity times the inverse of an infinite mean, as in LibTorch.
    EXPECT_EQ(norm.y.get(norm.stride), 0);
    norm.c.rows = 1;
    check_forward(norm);
  });
}

// Rows at multiples of 16 bytes are read in pieces of that size, others one number at a time.
TEST(RmsNormTest, DeviceReadsAlignedRowsEightAtATime) {
  const SimulatedKernels kernels;
  const auto widths = [&](int64_t dim, int64_t padding) {
    Norm norm({2, dim, Dtype::kBf16, true, true, 1, padding}, 1);
    const Computer by{std::nullopt, 1, &kernels};
    const int forward = norm.forward(by) ? kernels.width() : 0, backward = norm.backward(by) ? kernels.width() : 0;
    return std::pair(forward, backward);
  };
  EXPECT_EQ(widths(64, 8), std::pair(8, 8));
  EXPECT_EQ(widths(64, 4), std::pair(1, 1));
  EXPECT_EQ(widths(60, 4), std::pair(1, 1));
}

TEST(RmsNormTest, DeclinesRowsWithoutElements) {
  for (const Level level : levels_here()) EXPECT_FALSE(rms_norm_forward(level, {.rows = 3, .dim = 0}));
}

}  // namespace
}  // namespace titan::kernels::testing
