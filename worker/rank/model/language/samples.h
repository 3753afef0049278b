#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/model/objective.h"

namespace titan::model {

// Texts with which the model continues prompts during training (validation.sample_prompts), for the log.
class TextSamples {
 public:
  // Null without prompts. InvalidArgument names an invalid prompt; NotFound and others come from the tokenizer.
  static absl::StatusOr<std::unique_ptr<TextSamples>> create(const config::JobConfig& config);

  // Tokens of the longest prompt and its continuation, which the RoPE tables must cover.
  int64_t longest() const { return longest_; }

  // Returns a line for each prompt. Rank 0 chooses the tokens. `vocabulary`: the model's. Adapters and 8-bit weights
  // are used as in training. A prompt after which some logit is not finite has no line, because its continuation is
  // meaningless.
  Samples run(const WholeModel& model, const comm::DeviceMesh& mesh, int64_t vocabulary) const;

 private:
  TextSamples() = default;

  std::vector<std::string> prompts_;
  std::vector<std::vector<int64_t>> tokens_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  int64_t new_tokens_ = 0;
  double temperature_ = 0;
  bool sequence_parallel_ = true;
  int64_t longest_ = 0;
};

}  // namespace titan::model
