#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/nn/attention.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::parallel {

// QK-clip (MuonClip: Kimi K2, arXiv 2507.20534, 2.1), beside any optimizer: where the largest logit S of a query head
// was above tau in a step's forward passes, its query and key weights shrink after the update so that its logits become
// tau / S of what they were (nn::SelfAttention::logit_rows). Momentum stays. Other heads keep their bits.
//
// S is over all tokens of the step on all ranks: microbatches raise it on the device, one maximum a step joins the
// ranks of a stage. Validation and layers that run again for their backward pass do not count.
class QkClip {
 public:
  // `blocks` of all pipeline stages of this rank, `parameters` those that it holds parts of; they and the mesh, which
  // has mesh::Axis::kHolders, must outlive this. Notes are kept on `device`. Errors: InvalidArgument for tau that is
  // not above 0, Unimplemented names a layer whose logits do not follow from its weights, or whose weights are frozen.
  static absl::StatusOr<std::unique_ptr<QkClip>> create(const std::vector<nn::Block*>& blocks,
                                                        const std::vector<ShardedParameter*>& parameters, double tau,
                                                        const comm::DeviceMesh& mesh, at::Device device);
  ~QkClip();

  // Once a step, on all ranks, after the optimizer's: scales, and starts counting anew. Collectives: one all_reduce of
  // 8 bytes a head of every layer here over kHolders, none where there are no layers. Equal factors on every rank; no
  // host waits. `skip`: a scalar, 1 where the step is skipped and no weight changes, else 0; undefined: 0.
  void finish_step(const at::Tensor& skip = {});

  struct Figures {
    double largest = 0;   // Logit of the step, -infinity where none was seen.
    int64_t clipped = 0;  // Heads above tau.
  };
  // Of the last finished step, over all layers of the model; two all_reduces of 8 bytes over the pipeline, for all
  // ranks of the stages together. Waits for the device.
  Figures figures() const;

 private:
  // Where the factors of one layer's heads go in one parameter.
  struct Target {
    int64_t layer = 0;  // Row of the table.
    ShardedParameter* placed = nullptr;
    std::vector<nn::LogitRows> rows;
  };

  QkClip(double tau, const comm::DeviceMesh& mesh) : tau_(tau), mesh_(mesh) {}
  absl::Status add(nn::Block& block, const std::vector<ShardedParameter*>& parameters);
  void open_table(at::Device device);
  static void scale(const Target& target, const at::Tensor& factors);

  const double tau_;
  const comm::DeviceMesh& mesh_;
  std::vector<nn::SelfAttention*> layers_;
  std::vector<Target> targets_;
  at::Tensor table_;    // float64 [layers here, heads]: of the step under way.
  at::Tensor largest_;  // The same of the last finished step, of all ranks.
};

}  // namespace titan::parallel
