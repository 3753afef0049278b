#include "tests/numerics/mesh_table/closed_form.h"

#include <algorithm>

namespace titan::testing {
namespace {

using mesh::Axis;

// Returns the bytes of this rank's rows under FSDP.
int64_t own_bytes(const RankShare& share, const Part& part) {
  const int64_t ranks = share.shard_ranks(part), rows = part.shape[share.shard_dim(part)];
  const int64_t chunk = (rows + ranks - 1) / ranks;
  const int64_t index = share.mesh.index(share.rank, part.expert && share.expert > 1 ? Axis::kExpertFsdp : Axis::kFsdp);
  const int64_t own = std::min(chunk * (index + 1), rows) - std::min(chunk * index, rows);
  return part.numel() / rows * own * share.bytes;
}

}  // namespace

ClosedForm closed_form(const MeshJob& job, int rank, const std::vector<RankRecord>& records) {
  const RankShare share(job, rank, records);
  ClosedForm form;
  for (const std::string& block : share.blocks()) {
    for (const Part& part : share.parts_of(block)) form.parameter_bytes += own_bytes(share, part);
    if (block == "output" && share.has_one_tied_end()) {
      form.parameter_bytes += own_bytes(share, share.parts_of("tok_embeddings").front());
    }
  }
  form.optimizer_bytes = 2 * form.parameter_bytes;
  form.traffic = traffic_of(share);
  form.product_flops = share.model.product_flops(share);
  form.attention_flops = share.model.attention_flops(share);
  form.held = resident_bytes_of(share);
  return form;
}

}  // namespace titan::testing
