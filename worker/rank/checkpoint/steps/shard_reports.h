#pragma once

// How the ranks' words about their shards come to rank 0.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/written_step.h"
#include "worker/rank/checkpoint/steps/exchange.h"

namespace titan::checkpoint {

class ShardReports {
 public:
  explicit ShardReports(Exchange& exchange) : exchange_(exchange) {}

  // Collective: this rank's word about the shard that it wrote, or why it could not. Rank 0 gets all of them in one.
  absl::StatusOr<std::string> gather(const std::string& topic, const absl::StatusOr<WrittenShard>& shard,
                                     nlohmann::json per_rank);

  // Rank 0: puts what they say into the manifest; the first error among them.
  absl::Status complete(const std::string& words, Manifest& manifest);

 private:
  absl::StatusOr<WrittenStep> report_here(const absl::StatusOr<WrittenShard>& shard, nlohmann::json per_rank,
                                          absl::Status& shared);

  Exchange& exchange_;
  std::map<std::string, TensorTable> tables_;  // Rank 0's, of all reports so far.
};

}  // namespace titan::checkpoint
