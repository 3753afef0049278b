#pragma once

// manifest.json: the one file that makes a step folder a checkpoint. It names every shard with the checksum of the
// index at its end, and says in a few rows which of them holds which piece of which tensor. A shard's index has the
// checksums of its data, so that a reader opens the shards that it needs and verifies exactly what it reads.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/manifest_records.h"

namespace titan::checkpoint {

// 1: each tensor lists its pieces with their places and checksums, and shards have no index. Read, no longer written.
inline constexpr int kManifestVersion = 2;
inline constexpr char kManifestName[] = "manifest.json";

struct Manifest {
  int version = kManifestVersion;
  int64_t step = 0;
  bool full = true;
  int attempt = 1;
  std::string job_uid;
  int world = 1;
  int64_t load_step =
      -1;  // The writer's checkpoint.load_step: its later attempts go on from here, not from there again.
  std::string titan_version;  // Of the writer; empty: older than this member.
  nlohmann::json model;       // models::to_json of what the step holds; null: written before steps said so.
  nlohmann::json config;      // The writer's resolved configuration; null likewise.
  nlohmann::json train_state = nlohmann::json::object();
  std::vector<nlohmann::json> per_rank;
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;  // Sorted by key.
  std::vector<PlacementRow> rows;     // Of the tensors' and files' numbers here; empty in the first version.

  const TensorRecord* find(const std::string& key) const;
  // Of each tensor, in their order.
  std::vector<int64_t> piece_counts() const;
};

// Everything a reader relies on: pieces inside their files, as many checksums as chunks, exact cover.
absl::Status check(const Manifest& manifest);

// The file's text: JSON whose first member is a CRC32C of every byte that follows it.
std::string to_text(const Manifest& manifest);

// Errors: DataLoss saying what is wrong (no path: the caller knows it).
absl::StatusOr<Manifest> manifest_from_text(std::string_view text);

}  // namespace titan::checkpoint
