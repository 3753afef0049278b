#include "worker/rank/runtime/engine/matrix_parts.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace titan::runtime {
namespace {

using mesh::Axis;
using parallel::ShardedParameter;

// Returns whether the parameter belongs to experts with a separate mesh.
bool on_expert_mesh(const ShardedParameter& placed, const mesh::Mesh& mesh) {
  return placed.parameter->expert && mesh.size(Axis::kExpert) > 1;
}

// Returns the axis that splits dimension `dim` of the parameter.
Axis axis_of(const ShardedParameter& placed, size_t dim, const mesh::Mesh& mesh) {
  if (!on_expert_mesh(placed, mesh)) return Axis::kTensor;
  return dim == 0 ? Axis::kExpert : Axis::kExpertTensor;
}

struct Part {
  std::vector<int64_t> offset, size;
};

Part part_of_rank(const ShardedParameter& placed, const mesh::Mesh& mesh, int rank) {
  const nn::Parameter& parameter = *placed.parameter;
  Part part{std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape};
  for (size_t dim = 0; dim < parameter.shape.size(); ++dim) {
    if (parameter.shape[dim] == parameter.global_shape[dim]) continue;
    part.offset[dim] = mesh.index(rank, axis_of(placed, dim, mesh)) * parameter.shape[dim];
  }
  const int64_t index = mesh.index(rank, on_expert_mesh(placed, mesh) ? Axis::kExpertFsdp : Axis::kFsdp);
  const int64_t first = std::min(index * placed.chunk_rows, placed.total_rows);
  const auto cut = static_cast<size_t>(placed.dim);
  part.offset[cut] += first;
  part.size[cut] = std::min(first + placed.chunk_rows, placed.total_rows) - first;
  return part;
}

optim::MatrixBox box_of(const Part& part) {
  const size_t last = part.size.size() - 1;
  const bool many = part.size.size() == 3;
  return {{many ? part.offset[0] : 0, part.offset[last - 1], part.offset[last]},
          {many ? part.size[0] : 1, part.size[last - 1], part.size[last]}};
}

}  // namespace

std::vector<optim::MatrixParameter> matrix_parameters(const std::vector<ShardedParameter*>& parameters,
                                                      const mesh::Mesh& mesh, int rank) {
  const std::vector<int> ranks = mesh.group(rank, Axis::kHolders);
  std::vector<optim::MatrixParameter> all;
  for (const ShardedParameter* placed : parameters) {
    optim::MatrixParameter& matrix = all.emplace_back();
    const std::vector<int64_t>& shape = placed->parameter->global_shape;
    if (shape.size() != (placed->parameter->expert ? 3 : 2)) continue;
    matrix.shape = box_of({shape, shape}).size;
    for (const int other : ranks) {
      const Part part = part_of_rank(*placed, mesh, other);
      matrix.held.push_back(box_of(part));
      TORCH_CHECK(other != rank || (part.offset == placed->global_offset() && placed->value.sizes() == part.size),
                  placed->parameter->fqn, ": this rank's part does not match the mesh");
    }
  }
  return all;
}

}  // namespace titan::runtime
