#pragma once

// Describes what ranks wrote, as it travels to rank 0. Reports are joined on the way, so that they stay short.

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
// the same table. It is long, so it travels once, and reports only name it, by a hash of its content.
using TensorTable = std::vector<TensorRecord>;
// Convert a table to text, name it by its text, and convert the text back. Errors: Internal.
std::string table_text(const TensorTable& table);
std::string table_name(const std::string& text);
absl::StatusOr<TensorTable> table_from_text(const std::string& text);

// The report of one rank, or of several ranks with consecutive numbers.
struct WrittenStep {
  std::vector<FileRecord> files;                          // Files of the ranks that wrote, in rank order.
  std::map<std::string, std::vector<PlacementRow>> rows;  // Keyed by the name of the table that numbers their tensors.
  std::vector<nlohmann::json> per_rank;
};
nlohmann::json to_json(const WrittenStep& report);
// Errors: Internal.
absl::StatusOr<WrittenStep> report_from_json(const nlohmann::json& from);

// Makes this rank's report, and `table`, which it names. Errors: Internal if the rank contradicts itself about a
// tensor.
absl::StatusOr<WrittenStep> report_of(const WrittenShard& shard, nlohmann::json per_rank, TensorTable& table);

// Joins reports of consecutive ranks, in order.
WrittenStep join(std::vector<WrittenStep> reports);

// Puts what all ranks wrote into `manifest`. `tables` has the tables that the report names. Errors: Internal, names the
// tensor, if ranks disagree about it or leave out a part of it.
absl::Status complete(WrittenStep report, const std::map<std::string, TensorTable>& tables, Manifest& manifest);

// Does the same for shards that one process wrote, in order.
absl::Status complete(const std::vector<WrittenShard>& shards, Manifest& manifest);

}  // namespace titan::checkpoint
