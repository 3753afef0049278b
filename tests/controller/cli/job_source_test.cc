#include "controller/cli/job_source.h"

#include <gtest/gtest.h>

#include "common/plan/config/json.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

// Only the configuration is sent: a second copy could only contradict it.
TEST(JobSourceTest, AJobIsSentAsItsConfiguration) {
  Prepared prepared;
  config::JobConfig& config = prepared.loaded.config;
  config.job.dump_folder = ::testing::TempDir();
  config.resources.ranks = 4;
  config.resources.ranks_per_node = 2;
  config.scheduling.priority = 3;
  config.scheduling.project = "vision";
  config.scheduling.job_id = "a";
  config.scheduling.time_limit_seconds = 60;
  prepared.text = "# as written";
  const v1::JobSpec spec = to_spec(prepared);
  EXPECT_EQ(spec.config_json(), config::to_json_text(config));
  EXPECT_EQ(spec.config_source(), "# as written");
  v1::JobSpec rest = spec;
  rest.clear_config_json();
  rest.clear_config_source();
  rest.clear_real_folder();
  rest.clear_folder_id();
  EXPECT_EQ(rest.ByteSizeLong(), 0u) << rest.ShortDebugString();
}

}  // namespace
}  // namespace titan::cli
