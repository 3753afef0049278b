#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/common/rank_protocol/temp_folder.h"
#include "worker/rank/runtime/local_ranks.h"

namespace titan::testing {

// Trains a model of tests/numerics/small_models to the end, with threads of this process as ranks: four rows of 32
// tokens per microbatch, two microbatches per step. `words` are more flags of titan-rank, which include --model.name,
// --model.flavor and --training.steps.
inline void run_small_job(const std::string& words) {
  const rank_protocol::TempFolder folder;
  const std::string config = folder.file("job.toml");
  std::ofstream(config) << "";
  const std::string line = absl::StrCat(
      "--config ", config, " --job.dump_folder ", folder.file("dump"), " --experimental.custom_import ",
      std::getenv("TITAN_BIN"), "/../tests/libsmall_models.so --comm.mode local_tensor",
      " --training.seq_len 32 --training.local_batch_size 4 --training.global_batch_size 8 --metrics.log_freq 100",
      " --resources.threads_per_rank 1 --training.mixed_precision_param float32 ", words);
  const runtime::RankJob job =
      runtime::read_job(runtime::parse_options(absl::StrSplit(line, ' ', absl::SkipEmpty())).value()).value();
  EXPECT_EQ(runtime::run_local_ranks(job, nullptr, 0), rank_protocol::kExitFinished) << words;
}

}  // namespace titan::testing
