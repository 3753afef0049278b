#include "worker/rank/kernels/cpu/rope.h"

#include "tests/worker/rank/kernels/simulated_kernels.h"

namespace titan::kernels::testing {
namespace {

struct RopeCase {
  int64_t batches, tokens, heads, dim, padding;  // Padding: unrotated channels of a head, before the rotated ones.
  Dtype type;
  bool halves, positions;
};

std::vector<RopeCase> rope_cases() {
  std::vector<RopeCase> cases;
  for (const Dtype type : kBothTypes) {
    for (const bool halves : {false, true}) {
      cases.push_back({1, 0, 2, 16, 0, type, halves, false});
      cases.push_back({2, 5, 3, 16, 0, type, halves, false});
      cases.push_back({1, 4, 1, 2, 0, type, halves, true});
      cases.push_back({2, 3, 2, 64, 8, type, halves, true});  // The rotated part of a latent query.
      cases.push_back({1, 7, 2, 38, 1, type, halves, true});
      cases.push_back({3, 1, 2, 128, 0, type, halves, true});
    }
  }
  return cases;
}

constexpr int64_t kTableRows = 50;

// x [batches, tokens, heads, padding + dim]
struct Rotation {
  explicit Rotation(const RopeCase& c, uint64_t seed = 1)
      : c(c),
        random(seed),
        width(c.padding + c.dim),
        x(c.type, random.normals(c.batches * c.tokens * c.heads * width), random.edge()),
        y(c.type, std::vector<double>(x.size(), 42), random.edge()),
        table(kTableRows * c.dim, random.edge()),
        positions(c.tokens, random.edge()) {
    for (int64_t token = 0; token < c.tokens; ++token) positions[token] = random.pick(0, kTableRows - 1);
    for (int64_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(random.normal());
  }

  RopeRotation args() const {
    return {.batches = c.batches,
            .tokens = c.tokens,
            .heads = c.heads,
            .dim = c.dim,
            .type = c.type,
            .x = x.at(c.padding),
            .x_batch = c.tokens * c.heads * width,
            .x_token = c.heads * width,
            .x_head = width,
            .y = y.at(c.padding),
            .y_batch = c.tokens * c.heads * width,
            .y_token = c.heads * width,
            .y_head = width,
            .table = table.data(),
            .positions = c.positions ? positions.data() : nullptr,
            .halves = c.halves};
  }

  // Checks every rotated number of `from`. The other channels of y keep the value 42.
  void check(const std::vector<double>& from, const Numbers& turned, bool inverse) const {
    const double sign = inverse ? -1 : 1;
    for (int64_t row = 0; row < c.batches * c.tokens * c.heads; ++row) {
      const int64_t token = row / c.heads % c.tokens, first = row * width + c.padding;
      const float* rotation = table.data() + c.dim * (c.positions ? positions[token] : token);
      for (int64_t pair = 0; pair < c.dim / 2; ++pair) {
        const int64_t a = c.halves ? pair : 2 * pair, b = c.halves ? pair + c.dim / 2 : 2 * pair + 1;
        const double cosine = rotation[a], sine = sign * rotation[b], p = from[first + a], q = from[first + b];
        const double slack = 2e-7 * std::hypot(p, q) * std::hypot(cosine, sine);
        ASSERT_TRUE(is_close(turned.get(first + a), p * cosine - q * sine, rounding(c.type), slack));
        ASSERT_TRUE(is_close(turned.get(first + b), q * cosine + p * sine, rounding(c.type), slack));
      }
    }
  }
  void check_padding(const std::vector<double>& truth) const {
    for (int64_t i = 0; i < y.size(); ++i) {
      if (i % width < c.padding) {
        ASSERT_EQ(y.get(i), truth[i]);
      }
    }
  }

  RopeCase c;
  Random random;
  int64_t width;
  Numbers x, y;
  Buffer<float> table;
  Buffer<int64_t> positions;
};

TEST(RopeTest, RotatesForwardAndBackInAnyLayout) {
  for (const RopeCase& c : rope_cases()) {
    SCOPED_TRACE(::testing::Message() << c.batches << ", " << c.tokens << ", " << c.heads << ", " << c.dim << ", "
                                      << name(c.type) << ", halves " << c.halves);
    for_each_computer([&](const Computer& by) {
      for (const bool inverse : {false, true}) {
        const Rotation rotation(c);
        RopeRotation args = rotation.args();
        args.inverse = inverse;
        const std::vector<double> before = rotation.x.values();
        ASSERT_TRUE(by.run(rope, args));
        rotation.check(before, rotation.y, inverse);
        rotation.check_padding(std::vector<double>(before.size(), 42));
        EXPECT_EQ(rotation.x.values(), before);
      }
    });
  }
}

TEST(RopeTest, RotatesInPlace) {
  for (const RopeCase& c : rope_cases()) {
    for_each_computer([&](const Computer& by) {
      const Rotation rotation(c);
      const std::vector<double> before = rotation.x.values();
      RopeRotation args = rotation.args();
      args.y = rotation.x.at(c.padding);
      ASSERT_TRUE(by.run(rope, args));
      rotation.check(before, rotation.x, false);
    });
  }
}

TEST(RopeTest, InverseRestoresPlainRotations) {
  for (const Level level : levels_here()) {
    const Rotation rotation({1, 8, 2, 32, 0, Dtype::kF32, false, false});
    for (int64_t i = 0; i < rotation.table.size(); i += 2) {
      rotation.table[i] = std::cos(static_cast<float>(i));
      rotation.table[i + 1] = std::sin(static_cast<float>(i));
    }
    const std::vector<double> before = rotation.x.values();
    RopeRotation args = rotation.args();
    args.y = rotation.x.data();
    ASSERT_TRUE(rope(level, args));
    args.inverse = true;
    ASSERT_TRUE(rope(level, args));
    EXPECT_TRUE(all_close(rotation.x.values(), before, 1e-6, 1e-6));
  }
}

// Heads are read in pieces of 16 bytes if each head, and each of its halves, is at a multiple of 16 bytes.
TEST(RopeTest, DeviceReadsAlignedRowsEightAtATime) {
  const SimulatedKernels kernels;
  const auto width = [&](int64_t dim, int64_t padding, bool halves) {
    const Rotation rotation({1, 2, 2, dim, padding, Dtype::kBf16, halves, true});
    return kernels.run(rotation.args()) ? kernels.width() : 0;
  };
  EXPECT_EQ(width(64, 8, true), 8);
  EXPECT_EQ(width(64, 8, false), 8);
  EXPECT_EQ(width(24, 0, false), 8);
  EXPECT_EQ(width(24, 0, true), 1);
  EXPECT_EQ(width(64, 4, false), 1);
}

TEST(RopeTest, DeclinesAnOddHead) {
  for (const Level level : levels_here()) EXPECT_FALSE(rope(level, {.tokens = 1, .dim = 15}));
}

}  // namespace
}  // namespace titan::kernels::testing
