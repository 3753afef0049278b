#pragma once

// How the ranks' words about their shards come to rank 0.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/session.h"
#include "worker/checkpoint/step_report.h"

namespace titan::checkpoint {

// Collective: this rank's word about the shard that it wrote or could not write. Rank 0 gets all of them in one.
absl::StatusOr<std::string> gather_shards(Session& session, const std::string& topic,
                                          const absl::StatusOr<WrittenShard>& shard, nlohmann::json per_rank);

// Rank 0: puts what they say into the manifest; the first error among them, naming the rank.
absl::Status complete(Session& session, const std::string& words, Manifest& manifest);

// Words of neighbouring ranks as one.
std::string join_words(const std::vector<std::string>& words);

}  // namespace titan::checkpoint
