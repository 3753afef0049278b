#include "worker/rank/data/samples/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace titan::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<int64_t> pass_of(const SampleOrder& order, int64_t pass) {
  std::vector<int64_t> samples;
  for (int64_t row = 0; row < order.samples(); ++row) samples.push_back(order.sample({pass, row}));
  return samples;
}

// Each pass has every sample once, in a separate order.
TEST(SampleOrderTest, PassesArePermutations) {
  for (const int64_t count : {1, 2, 3, 5, 64, 1000, 4097}) {
    std::vector<int64_t> sorted(static_cast<size_t>(count));
    std::iota(sorted.begin(), sorted.end(), 0);
    const SampleOrder plain({.samples = count}), shuffled({.samples = count, .shuffle = true, .shuffle_seed = 5});
    std::set<std::vector<int64_t>> orders;
    for (int64_t pass = 0; pass < 4; ++pass) {
      EXPECT_EQ(pass_of(plain, pass), sorted);
      std::vector<int64_t> order = pass_of(shuffled, pass);
      orders.insert(order);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, sorted);
    }
    const SampleOrder other({.samples = count, .shuffle = true, .shuffle_seed = 6});
    orders.insert(pass_of(other, 0));
    if (count >= 64) {
      EXPECT_EQ(orders.size(), 5u) << "passes and seeds differ";
    }
  }
}

TEST(SampleOrderTest, PlacesAndNumbers) {
  const SampleOrder order({.samples = 7});
  for (int64_t number = 0; number < 30; ++number) EXPECT_EQ(order.number(order.place(number)), number);
  EXPECT_EQ(order.place(20), (SamplePlace{2, 6}));
}

// Any good sample is found by the substitutes of any row, and the substitutes of neighbouring rows differ.
TEST(SampleOrderTest, SubstitutesAreAllSamples) {
  for (const bool shuffle : {false, true}) {
    const SampleOrder order({.samples = 50, .shuffle = shuffle, .shuffle_seed = 1});
    EXPECT_EQ(order.attempts(), 51);
    std::set<int64_t> first;
    for (int64_t row = 0; row < 50; ++row) {
      std::set<int64_t> all;
      for (int64_t attempt = 1; attempt < order.attempts(); ++attempt) all.insert(order.sample({3, row}, attempt));
      EXPECT_EQ(all.size(), 50u);
      first.insert(order.sample({3, row}, 1));
    }
    EXPECT_EQ(first.size(), 50u);
    EXPECT_NE(order.sample({3, 0}, 1), order.sample({4, 0}, 1)) << "for this seed";
  }
  EXPECT_EQ(SampleOrder({.samples = 1'000'000}).attempts(), 257);
}

// The order is part of checkpoints: this version has to give the rows of earlier ones.
TEST(SampleOrderTest, TheOrderIsFixed) {
  const SampleOrder order({.samples = 1000, .shuffle = true, .shuffle_seed = 42});
  const std::vector<int64_t> now = {order.sample({0, 0}), order.sample({0, 1}), order.sample({3, 999}),
                                    order.sample({0, 0}, 1), order.sample({3, 999}, 2)};
  EXPECT_EQ(now, (std::vector<int64_t>{762, 86, 103, 152, 615}));
}

TEST(SampleOrderTest, CursorsAreValidInTheirOrderOnly) {
  const SampleOrder order({.samples = 100, .dataset = "abc", .shuffle = true, .shuffle_seed = 3});
  const SampleCursor cursor{{4, 17}, 2};
  const nlohmann::json state = order.to_json(cursor);
  EXPECT_EQ(*order.cursor_from_json(nlohmann::json::parse(state.dump())), cursor);

  const auto refused = [&](const SampleOrder& by, const nlohmann::json& saved) {
    const absl::Status status = by.cursor_from_json(saved).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused(SampleOrder({.samples = 99, .dataset = "abc", .shuffle = true, .shuffle_seed = 3}), state),
              AllOf(HasSubstr("100 samples"), HasSubstr("99 samples")));
  EXPECT_THAT(refused(SampleOrder({.samples = 100, .dataset = "abc", .shuffle = true, .shuffle_seed = 4}), state),
              AllOf(HasSubstr("seed 3"), HasSubstr("seed 4")));
  EXPECT_THAT(refused(SampleOrder({.samples = 100, .dataset = "abc"}), state), HasSubstr("shuffle"));
  EXPECT_THAT(refused(SampleOrder({.samples = 100, .dataset = "x", .shuffle = true, .shuffle_seed = 3}), state),
              AllOf(HasSubstr("abc"), HasSubstr("same dataset")));
  for (const char* key : {"pass", "row", "bad_samples"}) {
    for (const nlohmann::json& wrong :
         {nlohmann::json(-1), nlohmann::json("1"), nlohmann::json(1.5), nlohmann::json()}) {
      nlohmann::json changed = state;
      changed[key] = wrong;
      EXPECT_THAT(refused(order, changed), HasSubstr(key));
    }
    nlohmann::json changed = state;
    changed.erase(key);
    EXPECT_THAT(refused(order, changed), HasSubstr(key));
  }
  nlohmann::json beyond = state;
  beyond["row"] = 100;
  EXPECT_THAT(refused(order, beyond), HasSubstr("row 100 of a pass of 100"));
  refused(order, nlohmann::json::array());
  refused(order, {{"sample_idx", 3}});
}

}  // namespace
}  // namespace titan::data
