// Tests that a sample's random numbers depend on nothing but the seed and the row, and have the distributions that the
// training of a model of images assumes.

#include "worker/rank/random/sample_draws.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "worker/rank/random/random_math.h"

namespace titan::random {
namespace {

constexpr int64_t kRows = 40000;
constexpr SampleStream kStreams[] = {SampleStream::kNoise, SampleStream::kTimestep, SampleStream::kAutoencoder};

// Five standard deviations of a frequency over kRows rows.
double tolerance(double probability) { return 5 * std::sqrt(probability * (1 - probability) / kRows); }

TEST(SampleDrawsTest, EachEncodingIsDroppedIndependently) {
  for (const double probability : {0.447, 0.1}) {
    double t5 = 0, clip = 0, both = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      const SampleDraws draws = draw_sample(7, row, probability);
      t5 += draws.drop_t5;
      clip += draws.drop_clip;
      both += draws.drop_t5 && draws.drop_clip;
    }
    EXPECT_NEAR(t5 / kRows, probability, tolerance(probability));
    EXPECT_NEAR(clip / kRows, probability, tolerance(probability));
    EXPECT_NEAR(both / kRows, probability * probability, tolerance(probability * probability));
  }
  for (int64_t row = 0; row < 1000; ++row) {
    EXPECT_FALSE(draw_sample(7, row, 0).drop_t5 || draw_sample(7, row, 0).drop_clip);
    EXPECT_TRUE(draw_sample(7, row, 1).drop_t5 && draw_sample(7, row, 1).drop_clip);
  }
}

// The largest distance between the empirical and the true distribution of sorted values (Kolmogorov and Smirnov).
template <typename Distribution>
double distance(std::vector<double> values, const Distribution& below) {
  std::sort(values.begin(), values.end());
  double largest = 0;
  const auto count = static_cast<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = below(values[i]), rank = static_cast<double>(i);
    largest = std::max({largest, expected - rank / count, (rank + 1) / count - expected});
  }
  return largest;
}
double allowed(size_t count) { return 2.5 / std::sqrt(static_cast<double>(count)); }  // Exceeded once in 130,000 cases.

TEST(SampleDrawsTest, CropsAndTimestepsAreUniform) {
  std::vector<double> crops, times;
  for (int64_t row = 0; row < kRows; ++row) {
    crops.push_back(draw_sample(3, row, 0.5).crop);
    times.push_back(draw_unit(sample_key(3, row, SampleStream::kTimestep), 0));
    ASSERT_TRUE(crops.back() >= 0 && crops.back() < 1 && times.back() >= 0 && times.back() < 1);
  }
  const auto uniform = [](double value) { return value; };
  EXPECT_LT(distance(crops, uniform), allowed(crops.size()));
  EXPECT_LT(distance(times, uniform), allowed(times.size()));
}

TEST(SampleDrawsTest, NoiseIsNormalAlongAndAcrossRows) {
  const auto normal = [](double value) { return 0.5 * std::erfc(-value / std::sqrt(2.0)); };
  std::vector<float> row(kRows);
  draw_normal(sample_key(1, 5, SampleStream::kNoise), 0, kRows, row.data());
  EXPECT_LT(distance({row.begin(), row.end()}, normal), allowed(row.size()));
  std::vector<double> column;
  double product = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    float noise = 0, autoencoder = 0;
    draw_normal(sample_key(1, i, SampleStream::kNoise), 9, 1, &noise);
    draw_normal(sample_key(1, i, SampleStream::kAutoencoder), 9, 1, &autoencoder);
    column.push_back(noise);
    product += static_cast<double>(noise) * autoencoder;
  }
  EXPECT_LT(distance(column, normal), allowed(column.size()));
  EXPECT_NEAR(product / kRows, 0, 5 / std::sqrt(static_cast<double>(kRows)));
}

// A rank that holds a part of a latent image draws that part alone.
TEST(SampleDrawsTest, AnyPartHasTheBitsOfTheWhole) {
  const uint64_t key = sample_key(11, 123456789012, SampleStream::kNoise);
  std::vector<float> whole(1000);
  draw_normal(key, 0, 1000, whole.data());
  for (const auto& [first, count] : {std::pair{0, 1}, {63, 2}, {64, 64}, {1, 999}, {130, 500}, {999, 1}, {500, 0}}) {
    std::vector<float> part(static_cast<size_t>(count) + 1, -77);
    draw_normal(key, first, count, part.data());
    for (int i = 0; i < count; ++i) EXPECT_EQ(part[i], whole[first + i]) << first << " " << i;
    EXPECT_EQ(part[count], -77);
  }
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(whole[i], element(key, i, 1, -kInfinite, kInfinite, 0, 0, 1)) << i;
}

TEST(SampleDrawsTest, SeedsRowsAndStreamsDiffer) {
  std::set<uint64_t> keys;
  std::set<double> crops;
  size_t count = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{2}, ~uint64_t{0}}) {
    for (const int64_t first : {int64_t{0}, int64_t{1} << 32, int64_t{1} << 62}) {
      for (int64_t row = first; row < first + 1000; ++row, ++count) {
        for (const SampleStream stream : kStreams) keys.insert(sample_key(seed, row, stream));
        crops.insert(draw_sample(seed, row, 0).crop);
      }
    }
  }
  EXPECT_EQ(keys.size(), 3 * count);
  EXPECT_EQ(crops.size(), count);
}

// A run continues with the same numbers in a later version. (The numbers are those of an independent Philox-4x32-10.)
TEST(SampleDrawsTest, NumbersNeverChange) {
  const SampleDraws draws = draw_sample(42, 1000, 0.447);
  EXPECT_EQ(draws.crop, 0.73290296860132542);
  EXPECT_FALSE(draws.drop_t5);   // 0.732
  EXPECT_TRUE(draws.drop_clip);  // 0.379
  EXPECT_EQ(sample_key(42, 1000, SampleStream::kNoise), 10399205214160152839u);
  EXPECT_EQ(sample_key(42, 1000, SampleStream::kTimestep), 13068675207278287450u);
  EXPECT_EQ(sample_key(42, 1000, SampleStream::kAutoencoder), 16251596875332195207u);
  EXPECT_EQ(draw_unit(sample_key(42, 1000, SampleStream::kTimestep), 0), 0.23115533590316772f);
}

}  // namespace
}  // namespace titan::random
