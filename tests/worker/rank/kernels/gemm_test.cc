#include <algorithm>
#include <numeric>

#include "tests/worker/rank/kernels/gemm_bodies.h"

namespace titan::kernels::testing {
namespace {

struct GemmCase {
  std::vector<int64_t> group_rows;
  int64_t columns, depth;

  int64_t rows() const { return std::accumulate(group_rows.begin(), group_rows.end(), int64_t{0}); }
  int64_t max_rows() const { return *std::max_element(group_rows.begin(), group_rows.end()); }
  int64_t groups() const { return static_cast<int64_t>(group_rows.size()); }
};

const std::vector<GemmCase>& gemm_cases() {
  static const std::vector<GemmCase> cases = [] {
    std::vector<GemmCase> all = {
        {{0}, 8, 8},    {{1}, 1, 1},        {{5}, 3, 0},     {{6}, 16, 32},    {{32}, 32, 64},
        {{7}, 33, 31},  {{13}, 17, 300},    {{130}, 40, 33}, {{33}, 70, 1100}, {{3, 0, 40, 1}, 24, 20},
        {{0, 0}, 5, 6}, {{64, 32}, 64, 96}, {{2300}, 9, 5}};
    Random random(17);
    for (int i = 0; i < 8; ++i) {
      GemmCase drawn{{}, random.pick(1, 90), random.pick(1, 400)};
      for (int64_t groups = random.pick(1, 4); groups > 0; --groups) drawn.group_rows.push_back(random.pick(0, 50));
      all.push_back(drawn);
    }
    return all;
  }();
  return cases;
}

int64_t depth_blocks(int64_t depth) { return 1 + depth / 1024; }

void* aligned(const Buffer<unsigned char>& buffer) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(buffer.data()) + 63) / 64 * 64);
}

// Two bf16 matrices with gaps between rows, and scratch memory.
struct Factors {
  Factors(int64_t a_rows, int64_t a_width, int64_t b_rows, int64_t b_width, int64_t scratch_bytes, uint64_t seed = 1)
      : random(seed),
        a_stride(a_width + random.pick(0, 3)),
        b_stride(b_width + random.pick(0, 3)),
        a(Dtype::kBf16, random.normals(a_rows * a_stride), random.edge()),
        b(Dtype::kBf16, random.normals(b_rows * b_stride), random.edge()),
        scratch(scratch_bytes + 64) {}

  Random random;
  int64_t a_stride, b_stride;
  Numbers a, b;
  Buffer<unsigned char> scratch;
};

struct Sum {
  double truth = 0, magnitude = 0;
  void add(double product) {
    truth += product;
    magnitude += std::abs(product);
  }
};

struct Product : Factors {
  Product(const GemmCase& c, bool deep, Dtype type, int threads, bool add = false)
      : Factors(c.rows(), c.depth, c.groups() * (deep ? c.depth : c.columns), deep ? c.columns : c.depth,
                gemm_scratch(c.columns, c.depth, threads)),
        c(c),
        deep(deep),
        stride(c.columns + random.pick(0, 3)),
        result(type, std::vector<double>(c.rows() * stride, 42), random.edge()) {
    args = {.rows = c.rows(),
            .columns = c.columns,
            .depth = c.depth,
            .groups = c.groups(),
            .group_rows = this->c.group_rows.data(),
            .a = static_cast<uint16_t*>(a.data()),
            .a_stride = a_stride,
            .b = static_cast<uint16_t*>(b.data()),
            .b_stride = b_stride,
            .b_group = (deep ? c.depth : c.columns) * b_stride,
            .b_is_deep = deep,
            .c = result.data(),
            .c_type = type,
            .c_stride = stride,
            .add = add,
            .scratch = aligned(scratch),
            .threads = threads};
  }

  Sum truth(int64_t group, int64_t row, int64_t column) const {
    Sum sum;
    for (int64_t k = 0; k < c.depth; ++k) {
      const int64_t place = deep ? k * b_stride + column : column * b_stride + k;
      sum.add(a.get(row * a_stride + k) * b.get(group * args.b_group + place));
    }
    return sum;
  }

  GemmCase c;
  bool deep;
  int64_t stride;
  Numbers result;
  Gemm args;
};

TEST(GemmTest, MultipliesEachGroupByItsMatrix) {
  for (const GemmCase& c : gemm_cases()) {
    for (const bool deep : {false, true}) {
      for (const Dtype type : kBothTypes) {
        SCOPED_TRACE(::testing::Message() << c.rows() << " rows of " << c.groups() << " groups, " << c.columns << " x "
                                          << c.depth << ", deep " << deep << ", " << name(type));
        with_every_gemm([&](const GemmBody& body, int threads) {
          const bool add = threads > 1;
          const Product product(c, deep, type, threads, add);
          ASSERT_TRUE(body.gemm(product.args));
          int64_t row = 0;
          for (int64_t group = 0; group < c.groups(); ++group) {
            for (const int64_t end = row + c.group_rows[group]; row < end; ++row) {
              for (int64_t column = 0; column < product.stride; ++column) {
                const double found = product.result.get(row * product.stride + column);
                Sum sum;
                if (column < c.columns) sum = product.truth(group, row, column);
                if (add || column >= c.columns) sum.add(42);
                const double slack = 1e-6 * static_cast<double>(depth_blocks(c.depth)) * sum.magnitude;
                ASSERT_TRUE(is_close(found, sum.truth, rounding(type), slack))
                    << row << ", " << column << ": " << found << ", " << sum.truth;
              }
            }
          }
        });
      }
    }
  }
}

struct Gradient : Factors {
  Gradient(const GemmCase& c, int64_t outputs, Dtype type, int threads)
      : Factors(c.rows(), outputs, c.rows(), c.columns, gemm_scratch(c.columns, c.max_rows(), threads)),
        c(c),
        outputs(outputs),
        stride(c.columns + random.pick(0, 3)),
        result(type, random.normals(c.groups() * outputs * stride), random.edge()) {
    args = {.rows = c.rows(),
            .outputs = outputs,
            .inputs = c.columns,
            .groups = c.groups(),
            .group_rows = this->c.group_rows.data(),
            .dy = static_cast<uint16_t*>(a.data()),
            .dy_stride = a_stride,
            .x = static_cast<uint16_t*>(b.data()),
            .x_stride = b_stride,
            .c = result.data(),
            .c_type = type,
            .c_stride = stride,
            .c_group = outputs * stride,
            .scratch = aligned(scratch),
            .threads = threads};
  }

  GemmCase c;
  int64_t outputs, stride;
  Numbers result;
  WeightGradient args;
};

TEST(GemmTest, SumsTheGradientOfEachGroupsMatrix) {
  for (const GemmCase& c : gemm_cases()) {
    for (const Dtype type : kBothTypes) {
      SCOPED_TRACE(::testing::Message() << c.rows() << " rows of " << c.groups() << " groups, " << c.columns
                                        << " inputs, " << name(type));
      with_every_gemm([&](const GemmBody& body, int threads) {
        const Gradient gradient(c, c.depth % 140 + 1, type, threads);
        const std::vector<double> before = gradient.result.values();
        ASSERT_TRUE(body.weight_gradient(gradient.args));
        int64_t first = 0;
        for (int64_t group = 0; group < c.groups(); first += c.group_rows[group++]) {
          const double slack = 1e-6 * static_cast<double>(depth_blocks(c.group_rows[group]));
          for (int64_t i = 0; i < gradient.outputs * gradient.stride; ++i) {
            const int64_t output = i / gradient.stride, input = i % gradient.stride;
            const int64_t place = group * gradient.args.c_group + i;
            const double found = gradient.result.get(place);
            if (input >= c.columns) {  // Nothing is written outside the matrix.
              ASSERT_EQ(found, before[place]) << output << ", " << input;
              continue;
            }
            Sum sum;
            for (int64_t row = first; row < first + c.group_rows[group]; ++row) {
              sum.add(gradient.a.get(row * gradient.a_stride + output) *
                      gradient.b.get(row * gradient.b_stride + input));
            }
            ASSERT_TRUE(is_close(found, sum.truth, rounding(type), slack * sum.magnitude))
                << output << ", " << input << ": " << found << ", " << sum.truth;
          }
        }
      });
    }
  }
}

TEST(GemmTest, HasTheSameBitsForAnyNumberOfThreads) {
  const GemmCase c = {{200, 77}, 50, 700};
  for (const GemmBody& body : gemm_bodies()) {
    const Product one(c, false, Dtype::kBf16, 1), three(c, false, Dtype::kBf16, 3);
    ASSERT_TRUE(body.gemm(one.args) && body.gemm(three.args));
    EXPECT_EQ(one.result.bits(), three.result.bits());
    const Gradient first(c, 300, Dtype::kBf16, 1), second(c, 300, Dtype::kBf16, 3);
    ASSERT_TRUE(body.weight_gradient(first.args) && body.weight_gradient(second.args));
    EXPECT_EQ(first.result.bits(), second.result.bits());
  }
}

TEST(GemmTest, KeepsInfinitiesInTheirRow) {
  for (const GemmBody& body : gemm_bodies()) {
    const Product product({{40}, 40, 40}, false, Dtype::kBf16, 1);
    product.a.set(7 * product.a_stride + 39, kInfinity);
    product.a.set(8 * product.a_stride, kNan);
    ASSERT_TRUE(body.gemm(product.args));
    for (int64_t row = 0; row < 40; ++row) {
      for (int64_t column = 0; column < 40; ++column) {
        const double found = product.result.get(row * product.stride + column);
        EXPECT_EQ(std::isinf(found), row == 7);
        EXPECT_EQ(std::isnan(found), row == 8);
      }
    }
  }
}

TEST(GemmTest, DeclinesWithoutScratchMemory) {
  for (const Level level : levels_here()) {
    EXPECT_FALSE(gemm(level, {.rows = 1}));
    EXPECT_FALSE(weight_gradient(level, {.rows = 1}));
  }
}

}  // namespace
}  // namespace titan::kernels::testing
