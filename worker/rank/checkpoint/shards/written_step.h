#pragma once

// What ranks wrote, as it travels to rank 0: joined on the way, so that it stays short.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/shard_index.h"

namespace titan::checkpoint {

// One rank's part of a step.
struct WrittenShard {
  bool has_file = false;
  FileRecord file;
  std::vector<PieceRecord> pieces;
};

// Types and shapes of the tensors that a rank writes, sorted by key. Ranks that write pieces of the same tensors have
// the same table, which is long: it travels once, and in reports stands its name, which is made from what is in it.
using TensorTable = std::vector<TensorRecord>;
std::string table_text(const TensorTable& table);
std::string table_name(const std::string& text);
absl::StatusOr<TensorTable> table_from_text(const std::string& text);

// Of one rank, or of several with neighbouring numbers.
struct WrittenStep {
  std::vector<FileRecord> files;                          // In rank order, of those that wrote.
  std::map<std::string, std::vector<PlacementRow>> rows;  // By the table in which their tensors are numbered.
  std::vector<nlohmann::json> per_rank;
};
nlohmann::json to_json(const WrittenStep& report);
// Errors: Internal.
absl::StatusOr<WrittenStep> report_from_json(const nlohmann::json& from);

// Errors: Internal when the rank says two things of one tensor.
absl::StatusOr<WrittenStep> report_of(const WrittenShard& shard, nlohmann::json per_rank, TensorTable& table);

// Of neighbouring ranks, in their order.
WrittenStep join(std::vector<WrittenStep> reports);

// Puts what all ranks wrote into `manifest`. `tables`: those that the report names. Errors: Internal when the ranks
// disagree about a tensor or leave a part of it out, naming it.
absl::Status complete(WrittenStep report, const std::map<std::string, TensorTable>& tables, Manifest& manifest);

// The same for shards that one process wrote, in their order.
absl::Status complete(const std::vector<WrittenShard>& shards, Manifest& manifest);

}  // namespace titan::checkpoint
