#pragma once

// The `.metadata` of a folder that torch.distributed.checkpoint (DCP) wrote: which tensors and objects it has, and
// where their pieces lie.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {

inline constexpr char kDcpMetadataName[] = ".metadata";

// The content of `.metadata`, checked.
struct DcpMetadata {
  // Place of an archive of torch.save.
  struct Place {
    std::string file;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  struct Piece {
    Box box;
    Place place;
  };
  struct Tensor {
    c10::ScalarType dtype = c10::ScalarType::Float;
    std::vector<int64_t> shape;
    std::vector<Piece> pieces;  // Cover the tensor exactly once; pieces without elements are left out.
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, Place> objects;  // Everything that is not a tensor.
};

// Parses and checks a .metadata. `path` is for messages. Errors: DataLoss (damaged, cut short, pieces that do not form
// a tensor), FailedPrecondition (not supported, by name: other classes, types, transforms such as compression).
absl::StatusOr<DcpMetadata> dcp_metadata(std::string bytes, const std::string& path);

// Convert between torch's names, "float32", and types.
absl::StatusOr<c10::ScalarType> dcp_type(std::string_view name);
absl::StatusOr<std::string> dcp_type_name(c10::ScalarType type);

}  // namespace titan::checkpoint
