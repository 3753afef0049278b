#include "controller/reconcile/config_cache.h"

#include "gtest/gtest.h"

namespace titan::reconcile {
namespace {

TEST(ConfigCacheTest, IsParsedOnceAndShared) {
  ConfigCache cache;
  EXPECT_EQ(cache.find("a"), nullptr);
  const ConfigCache::Config config = cache.add("a", R"({"training":{"steps":3}})").value();
  EXPECT_EQ((*config)["training"]["steps"], 3);
  EXPECT_EQ(cache.find("a"), config);
  EXPECT_EQ(cache.add("a", "{}").value(), config) << "the first one stays";
}

// A damaged record of the store must not reach a rank's launch file.
TEST(ConfigCacheTest, RefusesWhatIsNotJson) {
  ConfigCache cache;
  for (const char* text : {"", "{", R"({"training":)"}) {
    const absl::Status status = cache.add("a", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_EQ(status.message(), "the configuration of job a is not JSON");
    EXPECT_EQ(cache.find("a"), nullptr);
  }
  EXPECT_TRUE(cache.add("a", "{}").ok());
}

TEST(ConfigCacheTest, EvictsTheLeastRecentlyUsed) {
  ConfigCache cache(/*capacity=*/8);
  ASSERT_TRUE(cache.add("a", "[1]").ok());
  ASSERT_TRUE(cache.add("b", "[2]").ok());
  EXPECT_NE(cache.find("a"), nullptr);
  ASSERT_TRUE(cache.add("c", "[3]").ok());
  EXPECT_EQ(cache.find("b"), nullptr);
  EXPECT_NE(cache.find("a"), nullptr);
  EXPECT_NE(cache.find("c"), nullptr);
  ASSERT_TRUE(cache.add("large", "[1,2,3,4,5,6,7,8,9]").ok());
  EXPECT_NE(cache.find("large"), nullptr) << "the newest always fits";
  EXPECT_EQ(cache.find("a"), nullptr);
}

}  // namespace
}  // namespace titan::reconcile
