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

struct DcpMetadata {
  // An archive of torch.save.
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
    std::vector<Piece> pieces;  // Cover the tensor exactly once; those without elements are left out.
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, Place> objects;  // Whatever is no tensor.
};

// `path` is for messages. Errors: DataLoss (damaged, cut short, pieces that make up no tensor), FailedPrecondition
// (what is not read, by name: other classes, types, transforms such as compression).
absl::StatusOr<DcpMetadata> dcp_metadata(std::string bytes, const std::string& path);

// "float32" as torch names it, and back.
absl::StatusOr<c10::ScalarType> dcp_type(std::string_view name);
absl::StatusOr<std::string> dcp_type_name(c10::ScalarType type);

}  // namespace titan::checkpoint
