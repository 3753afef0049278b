#pragma once

// manifest.json: the one file that makes a step folder a checkpoint. It names every shard and says, with checksums,
// where each piece of each tensor lies, so that a reader verifies exactly what it reads.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/box.h"

namespace titan::checkpoint {

inline constexpr int kManifestVersion = 1;
inline constexpr int64_t kChunkBytes = 1 << 20;
inline constexpr char kManifestName[] = "manifest.json";

struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  int64_t header_bytes = 0;  // Safetensors length and header.
  uint32_t header_crc = 0;
};

struct Piece {
  int file = 0;       // Index into Manifest::files.
  int64_t begin = 0;  // First byte in the file.
  Box box;
  std::vector<uint32_t> chunk_crcs;  // Of each kChunkBytes of the piece; the last may be shorter.
};

struct TensorRecord {
  std::string key;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;  // Cover the tensor exactly once.
};

struct Manifest {
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

  const TensorRecord* find(const std::string& key) const;
};

// The file's text: JSON whose first member is a CRC32C of every byte that follows it.
std::string to_text(const Manifest& manifest);

// Errors: DataLoss saying what is wrong (no path: the caller knows it).
absl::StatusOr<Manifest> manifest_from_text(std::string_view text);

// What one rank wrote, as it travels to the leader: {"file":{...}|null,"pieces":[...],"per_rank":...}.
struct ShardReport {
  bool has_file = false;
  FileRecord file;
  std::vector<TensorRecord> tensors;  // One piece each, `file` index 0.
  nlohmann::json per_rank = nullptr;
};
nlohmann::json to_json(const ShardReport& report);
absl::StatusOr<ShardReport> report_from_json(const nlohmann::json& json);

// Joins all ranks' reports, in rank order, into `manifest.files` and `.tensors`. Errors: Internal when the ranks
// disagree about a tensor or leave a part of it out, naming it.
absl::Status merge(const std::vector<ShardReport>& reports, Manifest& manifest);

}  // namespace titan::checkpoint
