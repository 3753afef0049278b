#pragma once

// manifest.json is the one file that makes a step folder a checkpoint. It names every shard with the checksum of the
// index at its end, and states in a few rows which shard holds which piece of which tensor. A shard's index has the
// checksums of its data, so a reader opens only the shards that it needs and verifies exactly what it reads.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/manifest_records.h"

namespace titan::checkpoint {

// In version 1, each tensor lists its pieces with their places and checksums, and shards have no index. Version 1 is
// read, but no longer written.
inline constexpr int kManifestVersion = 2;
inline constexpr char kManifestName[] = "manifest.json";

// The content of manifest.json.
struct Manifest {
  int version = kManifestVersion;
  int64_t step = 0;
  bool full = true;
  int attempt = 1;
  std::string job_uid;
  int world = 1;
  int64_t load_step =
      -1;  // The writer's checkpoint.load_step: its later attempts resume from here instead of loading that step again.
  std::string titan_version;  // The writer's version; empty: older than this field.
  nlohmann::json model;       // models::to_json of the saved model; null: older than this field.
  nlohmann::json config;      // The writer's resolved configuration; null: older than this field.
  nlohmann::json train_state = nlohmann::json::object();
  std::vector<nlohmann::json> per_rank;
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;  // Sorted by key.
  std::vector<PlacementRow> rows;     // Refer to tensors and files by their indices here; empty in version 1.

  const TensorRecord* find(const std::string& key) const;
  // Returns the number of pieces of each tensor, in the order of `tensors`.
  std::vector<int64_t> piece_counts() const;
};

// Checks all that a reader relies on: pieces lie inside their files, every chunk has a checksum, and pieces cover each
// tensor exactly once. Errors: DataLoss.
absl::Status check(const Manifest& manifest);

// Returns the file's text: JSON whose first member is a CRC-32C of all bytes after it.
std::string to_text(const Manifest& manifest);

// Parses and checks the file's text. Errors: DataLoss, says what is wrong (without a path, which the caller knows).
absl::StatusOr<Manifest> manifest_from_text(std::string_view text);

}  // namespace titan::checkpoint
