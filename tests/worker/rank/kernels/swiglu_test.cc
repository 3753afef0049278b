#include "worker/rank/kernels/cpu/swiglu.h"

#include "tests/worker/rank/kernels/simulated_kernels.h"

namespace titan::kernels::testing {
namespace {

enum class Layout { kTwo, kHalves, kAlternating };

struct GluCase {
  int64_t rows, width;
  Dtype type;
  Layout layout;
  float limit;
  double scale = 2;
  int64_t padding = -1;  // Between rows; -1: some.
};

std::vector<GluCase> glu_cases() {
  std::vector<GluCase> cases;
  for (const auto& [rows, width] :
       {std::pair<int64_t, int64_t>{0, 8}, {3, 0}, {1, 1}, {3, 4}, {2, 8}, {3, 13}, {2, 16}, {5, 100}}) {
    for (const Dtype type : kBothTypes) {
      for (const Layout layout : {Layout::kTwo, Layout::kHalves, Layout::kAlternating}) {
        for (const float limit : {0.0F, 1.5F}) cases.push_back({rows, width, type, layout, limit});
      }
    }
  }
  for (const float limit : {0.0F, 7.0F}) cases.push_back({4, 50, Dtype::kF32, Layout::kTwo, limit, 60});
  for (const Layout layout : {Layout::kTwo, Layout::kHalves, Layout::kAlternating}) {
    for (const float limit : {0.0F, 1.5F}) {
      cases.push_back({3, 24, Dtype::kBf16, layout, limit, 2, 8});
      cases.push_back({2, 1040, Dtype::kF32, layout, limit, 2, 0});
    }
  }
  return cases;
}

// A buffer for gate and linear part: two matrices one below the other, the two halves of each row, or alternating
// pairs.
struct Glu {
  explicit Glu(const GluCase& c, uint64_t seed = 1)
      : c(c),
        random(seed),
        stride((c.layout == Layout::kTwo ? 1 : 2) * c.width + (c.padding < 0 ? random.pick(0, 3) : c.padding)),
        x(c.type, random.normals((c.layout == Layout::kTwo ? 2 : 1) * c.rows * stride, c.scale), random.edge()),
        dx(c.type, x.size(), random.edge()),
        y(c.type, c.rows * c.width, random.edge()),
        dy(c.type, random.normals(c.rows * c.width), random.edge()) {}

  int64_t gate_at(int64_t row, int64_t i) const {
    return row * stride + (c.layout == Layout::kAlternating ? 2 * i : i);
  }
  int64_t linear_at(int64_t row, int64_t i) const { return linear_begin() + gate_at(row, i); }
  int64_t linear_begin() const {
    return c.layout == Layout::kTwo ? c.rows * stride : c.layout == Layout::kHalves ? c.width : 1;
  }
  void* linear_of(const Numbers& numbers) const {
    return c.layout == Layout::kAlternating ? nullptr : numbers.at(linear_begin());
  }

  SwigluForward forward() const {
    return {.rows = c.rows,
            .width = c.width,
            .type = c.type,
            .gate = x.data(),
            .gate_stride = stride,
            .linear = linear_of(x),
            .linear_stride = stride,
            .y = y.data(),
            .y_stride = c.width,
            .limit = c.limit};
  }
  SwigluBackward backward(const Numbers& into) const {
    return {.rows = c.rows,
            .width = c.width,
            .type = c.type,
            .gate = x.data(),
            .gate_stride = stride,
            .linear = linear_of(x),
            .linear_stride = stride,
            .dy = dy.data(),
            .dy_stride = c.width,
            .dgate = into.data(),
            .dgate_stride = stride,
            .dlinear = linear_of(into),
            .dlinear_stride = stride,
            .limit = c.limit};
  }

  GluCase c;
  Random random;
  int64_t stride;
  Numbers x, dx, y, dy;
};

struct Truth {
  double y, dgate, dlinear;
};

Truth truth_of(double gate, double linear, double dy, double limit) {
  const double slope = limit > 0 ? 1.702F : 1;
  const double g = limit > 0 ? std::min(gate, limit) : gate;
  const double l = limit > 0 ? std::clamp(linear, -limit, limit) + 1 : linear;
  const double part = 1 / (1 + std::exp(-slope * g));
  const bool free_gate = limit == 0 || gate <= limit, free_linear = limit == 0 || std::abs(linear) <= limit;
  return {g * part * l, free_gate ? dy * l * part * (1 + slope * g * (1 - part)) : 0, free_linear ? dy * g * part : 0};
}

// Returns the error of a sigmoid: rounding the exponent costs more for larger gates.
double relative(double gate) { return 1e-6 + 2e-7 * std::abs(gate); }
constexpr double kTiny = 1e-33;  // Absolute limit for sigmoids that are too small for fp32.

void check_gradients(const Glu& glu, const std::vector<double>& x, const Numbers& dx) {
  for (int64_t row = 0; row < glu.c.rows; ++row) {
    for (int64_t i = 0; i < glu.c.width; ++i) {
      const double gate = x[glu.gate_at(row, i)], linear = x[glu.linear_at(row, i)];
      const double dy = glu.dy.get(row * glu.c.width + i);
      const Truth truth = truth_of(gate, linear, dy, glu.c.limit);
      const double slack = 2e-6 * std::abs(dy) * (std::abs(linear) + 1) * (1 + std::abs(gate));
      ASSERT_TRUE(is_close(dx.get(glu.gate_at(row, i)), truth.dgate, rounding(glu.c.type), slack))
          << gate << ", " << linear << ": " << dx.get(glu.gate_at(row, i)) << ", " << truth.dgate;
      ASSERT_TRUE(is_close(dx.get(glu.linear_at(row, i)), truth.dlinear, rounding(glu.c.type) + relative(gate), kTiny));
    }
  }
}

TEST(SwigluTest, MatchesFp64InEveryLayout) {
  for (const GluCase& c : glu_cases()) {
    SCOPED_TRACE(::testing::Message() << c.rows << " rows of " << c.width << ", " << name(c.type) << ", layout "
                                      << static_cast<int>(c.layout) << ", limit " << c.limit);
    for_each_computer([&](const Computer& by) {
      const Glu glu(c);
      ASSERT_TRUE(by.run(swiglu_forward, glu.forward()));
      for (int64_t row = 0; row < c.rows; ++row) {
        for (int64_t i = 0; i < c.width; ++i) {
          const double gate = glu.x.get(glu.gate_at(row, i));
          const Truth truth = truth_of(gate, glu.x.get(glu.linear_at(row, i)), 0, c.limit);
          ASSERT_TRUE(is_close(glu.y.get(row * c.width + i), truth.y, rounding(c.type) + relative(gate), kTiny));
        }
      }
      const std::vector<double> x = glu.x.values();
      ASSERT_TRUE(by.run(swiglu_backward, glu.backward(glu.dx)));
      check_gradients(glu, x, glu.dx);
      ASSERT_TRUE(by.run(swiglu_backward, glu.backward(glu.x)));  // The gradients overwrite the inputs.
      check_gradients(glu, x, glu.x);
    });
  }
}

TEST(SwigluTest, HandlesInfiniteGatesAndPropagatesNan) {
  for_each_computer([](const Computer& by) {
    for (const float limit : {0.0F, 7.0F}) {
      const Glu glu({1, 20, Dtype::kBf16, Layout::kAlternating, limit});
      glu.x.set(glu.gate_at(0, 3), kInfinity);
      glu.x.set(glu.linear_at(0, 3), 1);
      glu.x.set(glu.gate_at(0, 17), kNan);
      glu.x.set(glu.linear_at(0, 18), kNan);
      ASSERT_TRUE(by.run(swiglu_forward, glu.forward()));
      EXPECT_EQ(glu.y.get(3), limit > 0 ? 14 : kInfinity);
      EXPECT_TRUE(std::isnan(glu.y.get(17)) && std::isnan(glu.y.get(18)));
      EXPECT_FALSE(std::isnan(glu.y.get(16)) || std::isnan(glu.y.get(19)));
    }
  });
}

// Rows at multiples of 16 bytes are read in pieces of that size, as the norm's are.
TEST(SwigluTest, DeviceReadsAlignedRowsEightAtATime) {
  const SimulatedKernels kernels;
  for (const Layout layout : {Layout::kTwo, Layout::kHalves, Layout::kAlternating}) {
    for (const int64_t padding : {8, 4}) {
      const Glu glu({2, 16, Dtype::kBf16, layout, 0, 2, padding});
      ASSERT_TRUE(kernels.run(glu.forward()));
      EXPECT_EQ(kernels.width(), padding == 8 ? 8 : 1);
      ASSERT_TRUE(kernels.run(glu.backward(glu.dx)));
      EXPECT_EQ(kernels.width(), padding == 8 ? 8 : 1);
    }
  }
}

TEST(SwigluTest, DeclinesGradientsInAnotherLayout) {
  float some[2] = {};
  for (const Level level : levels_here()) {
    EXPECT_FALSE(swiglu_backward(
        level, {.rows = 1, .width = 1, .type = Dtype::kF32, .gate = some, .dgate = some, .dlinear = some}));
  }
}

}  // namespace
}  // namespace titan::kernels::testing
