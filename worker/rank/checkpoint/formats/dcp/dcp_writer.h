#pragma once

// Writes a folder that torch.distributed.checkpoint loads: pieces of tensors and objects as they come, .metadata last.

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"

namespace titan::checkpoint {

class DcpWriter {
 public:
  // Starts a new file before one would exceed `max_file_bytes`, and calls `progress` with each name.
  DcpWriter(storage::Files& files, std::string folder, int64_t max_file_bytes,
            std::function<void(const std::string& file)> progress)
      : files_(files), folder_(std::move(folder)), max_file_bytes_(max_file_bytes), progress_(std::move(progress)) {}

  // Adds `piece [box.shape...]` of the tensor `key` of `shape`: contiguous, on the CPU. Pieces of one tensor come one
  // after the other.
  absl::Status add(const std::string& key, const std::vector<int64_t>& shape, const Box& box, const at::Tensor& piece);
  // Adds a plain object; binary JSON becomes bytes.
  absl::Status add(const std::string& key, const nlohmann::json& value);
  // Gives the tensor `of` a second name, `key`.
  void alias(const std::string& key, const std::string& of) { metadata_.tensors[key] = metadata_.tensors.at(of); }

  absl::Status finish();  // Syncs, and writes .metadata.

 private:
  absl::StatusOr<DcpMetadata::Place> append(const std::string& archive);
  absl::Status close();

  storage::Files& files_;
  std::string folder_;
  int64_t max_file_bytes_;
  std::function<void(const std::string& file)> progress_;
  std::unique_ptr<storage::WritableFile> file_;
  std::string name_;
  int64_t bytes_ = 0, files_begun_ = 0;
  DcpMetadata metadata_;
};

// Returns the pickle in .metadata. It also records where each key stands in the state dict: keys that begin with
// "optimizer.", "lr_scheduler.", "dataloader." and "train_state." are entries of dicts of these names, any other key is
// an entry of the outer dict.
std::string dcp_metadata_pickle(const DcpMetadata& metadata);

}  // namespace titan::checkpoint
