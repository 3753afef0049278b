#pragma once

// Between steps [validation] asks for the loss on held-out data, and for sample texts that the model continues.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/data/loader/loader.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/runtime/engine/executor.h"
#include "worker/rank/runtime/engine/sharded_model.h"
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

// Texts that the model goes on with while it trains (validation.sample_prompts), for whoever reads the log.
class Samples {
 public:
  // Null without prompts. InvalidArgument names the prompt that is none; NotFound and others of the tokenizer.
  static absl::StatusOr<std::unique_ptr<Samples>> create(const config::JobConfig& config);

  int64_t longest() const { return longest_; }  // Tokens of a prompt with what follows it: what rotations must reach.

  struct Texts {
    std::vector<std::string> lines;       // Of the log, one for each prompt; on rank 0 alone.
    std::vector<std::string> not_finite;  // Prompts, in quotes, after which some logit was not a finite number.
  };
  // Collective: every rank of the mesh takes part, and rank 0 chooses. `vocabulary`: the model's. Adapters and weights
  // in 8 bits take part as in training. A prompt of `not_finite` has no line: whatever followed it means nothing.
  Texts run(ShardedModel& model, const comm::DeviceMesh& mesh, int64_t vocabulary);

 private:
  Samples() = default;

  std::vector<std::string> prompts_;
  std::vector<std::vector<int64_t>> tokens_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  int64_t new_tokens_ = 0;
  double temperature_ = 0;
  bool sequence_parallel_ = true;
  int64_t longest_ = 0;
};

}  // namespace titan::runtime
