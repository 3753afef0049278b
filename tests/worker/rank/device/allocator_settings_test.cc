#include "worker/rank/device/allocator_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace titan::device {
namespace {

using Variables = std::map<std::string, std::string>;

std::string setting(const Variables& variables, bool expandable = true) {
  const auto found = segments_setting(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto entry = variables.find(name);
        if (entry == variables.end()) return std::nullopt;
        return entry->second;
      },
      expandable);
  return found ? found->name + "=" + found->value : "";
}

TEST(AllocatorSettingsTest, SegmentsAreExpandableUnlessTheJobDisablesThem) {
  EXPECT_EQ(setting({}), "PYTORCH_ALLOC_CONF=expandable_segments:True");
  EXPECT_EQ(setting({}, false), "PYTORCH_ALLOC_CONF=expandable_segments:False");
  EXPECT_EQ(setting({{"PYTORCH_CUDA_ALLOC_CONF", ""}}), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
}

TEST(AllocatorSettingsTest, UserSettingsWin) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    EXPECT_EQ(setting({{name, "expandable_segments:False"}}), "");
    EXPECT_EQ(setting({{name, "max_split_size_mb:64,expandable_segments:True"}}, false), "");
    EXPECT_EQ(setting({{name, "backend:cudaMallocAsync"}}), "") << "which has no segments";
  }
}

// LibTorch reads only the first of several variables, so Titan's setting must go there. Other settings stay.
TEST(AllocatorSettingsTest, OtherSettingsStay) {
  EXPECT_EQ(setting({{"PYTORCH_ALLOC_CONF", "max_split_size_mb:64"}}),
            "PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True");
  EXPECT_EQ(setting({{"PYTORCH_ALLOC_CONF", "expandable_segments:False"},
                     {"PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.8"}}),
            "PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8,expandable_segments:True");
}

TEST(AllocatorSettingsTest, ReachesTheEnvironment) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}) unsetenv(name);
  set_segments(true);
  EXPECT_STREQ(std::getenv("PYTORCH_ALLOC_CONF"), "expandable_segments:True");
  EXPECT_TRUE(c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments()) << "as LibTorch reads it";
  set_segments(false);
  EXPECT_STREQ(std::getenv("PYTORCH_ALLOC_CONF"), "expandable_segments:True") << "a set variable is not changed";
  unsetenv("PYTORCH_ALLOC_CONF");
}

}  // namespace
}  // namespace titan::device
