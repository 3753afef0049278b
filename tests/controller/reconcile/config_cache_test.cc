#include "controller/reconcile/config_cache.h"

#include "gtest/gtest.h"

namespace titan::reconcile {
namespace {

TEST(ConfigCacheTest, IsParsedOnceAndShared) {
  ConfigCache cache;
  EXPECT_EQ(cache.find("a"), nullptr);
  const ConfigCache::Config config = cache.add("a", R"({"training":{"steps":3}})");
  EXPECT_EQ((*config)["training"]["steps"], 3);
  EXPECT_EQ(cache.find("a"), config);
  EXPECT_EQ(cache.add("a", "{}"), config) << "the first one stays";
}

TEST(ConfigCacheTest, EvictsTheLeastRecentlyUsed) {
  ConfigCache cache(/*capacity=*/8);
  cache.add("a", "[1]");
  cache.add("b", "[2]");
  EXPECT_NE(cache.find("a"), nullptr);
  cache.add("c", "[3]");
  EXPECT_EQ(cache.find("b"), nullptr);
  EXPECT_NE(cache.find("a"), nullptr);
  EXPECT_NE(cache.find("c"), nullptr);
  cache.add("large", "[1,2,3,4,5,6,7,8,9]");
  EXPECT_NE(cache.find("large"), nullptr) << "the newest always fits";
  EXPECT_EQ(cache.find("a"), nullptr);
}

}  // namespace
}  // namespace titan::reconcile
