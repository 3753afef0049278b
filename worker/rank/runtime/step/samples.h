#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/runtime/engine/sharded_model.h"

namespace titan::runtime {

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
