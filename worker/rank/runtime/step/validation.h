#pragma once

// The loss on held-out data between steps ([validation]).

#include <cstdint>
#include <memory>

#include "nlohmann/json.hpp"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/step/microbatches.h"

namespace titan::runtime {

struct ValidationResult {
  double loss = 0;      // Sum of all loss terms divided by their number, over all batches and ranks.
  int64_t terms = 0;    // Over all ranks. Without terms the loss is 0.
  int64_t batches = 0;  // Per rank.
  int64_t rows = 0;     // Rows of this rank.
};

// Computes the loss on held-out data, over the same batches each time.
class Validator {
 public:
  // `steps` > 0: that many batches of an endless loader; -1: all batches of a finite one. Batches go through the stages
  // of the training's schedule.
  // `objective`, which must outlive this, makes the microbatches.
  Validator(std::unique_ptr<data::BatchSource> loader, int64_t steps, const model::Objective& objective,
            const MicrobatchOptions& microbatches, pipeline::Schedule training);

  bool due(int64_t step, int64_t frequency) const { return step == 1 || step % frequency == 0; }

  // All ranks must have the same number of batches: finite data is split in the global order (config::check ensures
  // it), which ends at the same batch on all ranks. The device runs without a stop until the sums are read at the end.
  // Throws Failure for unusable data.
  ValidationResult run(Executor& executor, const comm::DeviceMesh& mesh);

  // The rows that run() read last.
  data::BatchSource& data() { return *loader_; }

 private:
  // Returns float64 [2]: the sum of the loss terms and their number.
  at::Tensor evaluate(Executor& executor, const comm::DeviceMesh& mesh, const data::Batch& batch);

  std::unique_ptr<data::BatchSource> loader_;
  const int64_t steps_;
  const model::Objective& objective_;
  MicrobatchOptions microbatch_options_;
  const pipeline::Schedule training_;
  nlohmann::json start_;
};

}  // namespace titan::runtime
