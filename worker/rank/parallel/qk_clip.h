#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/attention.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::parallel {

// QK-clip (MuonClip: Kimi K2, arXiv 2507.20534, 2.1), for any optimizer. If the largest logit S of a query head
// exceeded tau in a step's forward passes, the head's query and key weights are scaled after the update so that its
// logits become tau / S times as large (nn::SelfAttention::logit_rows). Momentum does not change. Other heads keep
// their bits.
//
// S is the maximum over all tokens of the step on all ranks. Microbatches raise it on the device, and one maximum per
// step combines the ranks of a stage. Validation and recomputed layers do not count.
class QkClip {
 public:
  // `blocks`: those of all pipeline stages of this rank. `parameters`: those that this rank holds parts of. Both must
  // outlive this, and so must the mesh, which has mesh::Axis::kHolders. Logits are recorded on `device`. Errors:
  // InvalidArgument if tau is not above 0; Unimplemented names a layer whose weights are frozen or do not determine the
  // logits.
  static absl::StatusOr<std::unique_ptr<QkClip>> create(const std::vector<nn::Block*>& blocks,
                                                        const std::vector<ShardedParameter*>& parameters, double tau,
                                                        const comm::DeviceMesh& mesh, at::Device device);
  ~QkClip();

  // Call it once per step on all ranks, after the optimizer's step: it scales the weights and resets the record.
  // Collectives: one all_reduce of 8 bytes per head and local layer over kHolders, or none without layers. The factors
  // are equal on every rank, and the host does not wait. `skip`: a scalar, 1 if the step is skipped and no weight
  // changes, else 0; undefined: 0.
  void finish_step(const at::Tensor& skip = {});

  struct Figures {
    double largest = 0;   // Largest logit of the step, or -infinity if none was recorded.
    int64_t clipped = 0;  // Number of heads above tau.
  };
  // Returns the figures of the last finished step over all layers of the model. Uses two all_reduces of 8 bytes over
  // the pipeline, in which all ranks of the stages take part. Waits for the device.
  Figures figures() const;

 private:
  // Where one layer's factors apply in one parameter.
  struct Target {
    int64_t layer = 0;  // Row of the table.
    ShardedParameter* placed = nullptr;
    std::vector<nn::LogitRows> rows;
  };

  QkClip(double tau, const comm::DeviceMesh& mesh) : tau_(tau), mesh_(mesh) {}
  absl::Status add(nn::Block& block, const std::vector<ShardedParameter*>& parameters);
  void open_table(at::Device device);
  // factors: float64 [heads].
  static void scale(const Target& target, const at::Tensor& factors);

  const double tau_;
  const comm::DeviceMesh& mesh_;
  std::vector<nn::SelfAttention*> layers_;
  std::vector<Target> targets_;
  at::Tensor table_;    // float64 [local layers, heads]: largest logits of the current step.
  at::Tensor largest_;  // float64 [local layers, heads]: those of the last finished step, over all ranks.
};

}  // namespace titan::parallel
