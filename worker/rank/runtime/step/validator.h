#pragma once

#include <memory>

#include "common/plan/config/job_config.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/step/microbatches.h"

namespace titan::runtime {

struct ValidationResult {
  double loss = 0;      // The sum of all cross-entropies over the number of all labels, of all batches and ranks.
  int64_t labels = 0;   // Of all ranks; without any there is no loss.
  int64_t batches = 0;  // Per rank.
  int64_t tokens = 0;   // Of this rank.
};

// The loss on held-out data, over the same batches each time.
class Validator {
 public:
  // `steps` > 0: that many batches of an endless loader; -1: all of a finite one. Batches go through the stages of the
  // training's schedule.
  Validator(std::unique_ptr<data::Loader> loader, int64_t steps, const MicrobatchOptions& microbatches,
            pipeline::Schedule training);

  bool due(int64_t step, int64_t frequency) const { return step == 1 || step % frequency == 0; }

  // All ranks must have as many batches: data that ends is dealt in the global order (config::check sees to it), which
  // ends for all ranks at the same batch. The device works on without a stop until the sums are read at the end. Throws
  // Failure for unusable data.
  ValidationResult run(Executor& executor, const comm::DeviceMesh& mesh);

 private:
  at::Tensor evaluate(Executor& executor, const comm::DeviceMesh& mesh, const data::Batch& batch);

  std::unique_ptr<data::Loader> loader_;
  const int64_t steps_;
  MicrobatchOptions microbatch_options_;
  const pipeline::Schedule training_;
  nlohmann::json start_;
};

}  // namespace titan::runtime
