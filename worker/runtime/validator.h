#pragma once

#include <memory>

#include "common/config/job_config.h"
#include "worker/comm/device_mesh.h"
#include "worker/data/loader.h"
#include "worker/runtime/block_engine.h"

namespace titan::runtime {

// The loss on held-out data, over the same batches each time.
class Validator {
 public:
  // `steps` > 0: that many batches of an endless loader; -1: all of a finite one.
  Validator(std::unique_ptr<data::Loader> loader, int64_t steps);

  bool due(int64_t step, int64_t frequency) const { return step == 1 || step % frequency == 0; }

  // Mean over batches of the loss per valid token over all ranks. With uneven data no rank waits for another: before
  // each batch all ranks agree that everyone has one. NaN when there was no batch. Throws Failure for unusable data.
  double run(BlockEngine& engine, const comm::DeviceMesh& mesh, at::Device device);

 private:
  std::unique_ptr<data::Loader> loader_;
  int64_t steps_;
  nlohmann::json start_;
};

}  // namespace titan::runtime
