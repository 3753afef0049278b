#pragma once

// The work of [validation] between steps: the loss on held-out data, and sample texts that the model continues.

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
  double loss = 0;      // Sum of all cross-entropies divided by the number of labels, over all batches and ranks.
  int64_t labels = 0;   // Over all ranks. Without labels the loss is 0.
  int64_t batches = 0;  // Per rank.
  int64_t tokens = 0;   // Tokens of this rank.
};

// Computes the loss on held-out data, over the same batches each time.
class Validator {
 public:
  // `steps` > 0: that many batches of an endless loader; -1: all batches of a finite one. Batches go through the stages
  // of the training's schedule.
  Validator(std::unique_ptr<data::DataLoader> loader, int64_t steps, const MicrobatchOptions& microbatches,
            pipeline::Schedule training);

  bool due(int64_t step, int64_t frequency) const { return step == 1 || step % frequency == 0; }

  // All ranks must have the same number of batches: finite data is split in the global order (config::check ensures
  // it), which ends at the same batch on all ranks. The device runs without a stop until the sums are read at the end.
  // Throws Failure for unusable data.
  ValidationResult run(Executor& executor, const comm::DeviceMesh& mesh);

 private:
  // Returns float64 [2]: cross-entropies and labels.
  at::Tensor evaluate(Executor& executor, const comm::DeviceMesh& mesh, const data::Batch& batch);

  std::unique_ptr<data::DataLoader> loader_;
  const int64_t steps_;
  MicrobatchOptions microbatch_options_;
  const pipeline::Schedule training_;
  nlohmann::json start_;
};

// Texts with which the model continues prompts during training (validation.sample_prompts), for the log.
class Samples {
 public:
  // Null without prompts. InvalidArgument names an invalid prompt; NotFound and others come from the tokenizer.
  static absl::StatusOr<std::unique_ptr<Samples>> create(const config::JobConfig& config);

  // Tokens of the longest prompt and its continuation, which the RoPE tables must cover.
  int64_t longest() const { return longest_; }

  struct Texts {
    std::vector<std::string> lines;       // Log lines, one for each prompt. Only on rank 0.
    std::vector<std::string> not_finite;  // Quoted prompts after which some logit was not finite.
  };
  // Collective: every rank of the mesh takes part, and rank 0 chooses the tokens. `vocabulary`: the model's. Adapters
  // and 8-bit weights are used as in training. Prompts in `not_finite` have no line, because their continuation is
  // meaningless.
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
