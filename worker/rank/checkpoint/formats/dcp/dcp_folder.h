#pragma once

// Reads a folder of torch.distributed.checkpoint: any box of any tensor, and its objects.

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/formats/pickle/archive.h"

namespace titan::checkpoint {

// Use it on one thread.
class DcpFolder {
 public:
  // Errors: NotFound without .metadata; those of dcp_metadata().
  static absl::StatusOr<std::unique_ptr<DcpFolder>> open(storage::Files& files, const std::string& folder);

  const std::string& folder() const { return folder_; }
  const DcpMetadata& metadata() const { return metadata_; }
  // CRC-32C of .metadata, with which ranks check that they read the same folder.
  uint32_t metadata_crc() const { return metadata_crc_; }

  // Returns `box` of the tensor, `[box.shape...]`, on the CPU, in the saved type. Of a row-major piece, reads little
  // more than the needed bytes; of any other piece, its whole storage. DCP has no checksums: damage inside a tensor's
  // numbers goes unnoticed. Errors: NotFound, DataLoss.
  absl::StatusOr<at::Tensor> read(const std::string& key, const Box& box);

  // Returns an object made of numbers, texts, lists and dicts (pickle/plain.h). NotFound, names it, if there is none.
  absl::StatusOr<nlohmann::json> object(const std::string& key);

 private:
  DcpFolder(storage::Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}
  absl::StatusOr<pickle::Archive> archive(const DcpMetadata::Place& place, const std::string& key);
  // Reads the part of `piece` that `box` needs into `out`, `[box.shape...]`.
  absl::Status read_piece(const DcpMetadata::Tensor& tensor, const DcpMetadata::Piece& piece, const std::string& key,
                          const Box& box, at::Tensor& out);

  storage::Files& files_;
  std::string folder_;
  DcpMetadata metadata_;
  uint32_t metadata_crc_ = 0;
  std::map<std::string, std::unique_ptr<storage::ReadableFile>> open_;
};

}  // namespace titan::checkpoint
