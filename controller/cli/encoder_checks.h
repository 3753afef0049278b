#pragma once

// Checks the folders of flux's encoders and the autoencoder's file or folder.

#include <string>
#include <vector>

#include "common/plan/config/job_config.h"

namespace titan::cli {

struct EncoderProblem {
  std::string key;  // "encoder.t5_encoder", ...
  std::string value;
  std::string message;
  std::string remedy;
  bool is_missing = false;  // Nothing exists there.
};

// Checks that the encoders exist, are of the kind that their key names and have weights, as far as one can tell without
// reading these. Nothing if the job uses no encoders, or those of training.test_mode, which have random weights.
std::vector<EncoderProblem> check_encoders(const config::JobConfig& config);

}  // namespace titan::cli
