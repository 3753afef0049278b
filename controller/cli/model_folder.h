#pragma once

#include <string>

#include "common/plan/config/job_config.h"

namespace titan::cli {

// Why the weights in a folder are another model's than the configuration's.
struct Misfit {
  std::string message;  // Empty: they fit, or only a rank can tell (a library's model, an old step).
  std::string remedy;   // Which of Titan's models they are; may be empty.
};

// Looks at config.json beside Hugging Face weights, as ranks do, and at the shape of their embedding.
Misfit misfit_of_hf_folder(const config::Model& model, const std::string& folder);

// Looks at the manifest of a step of Titan's.
Misfit misfit_of_step(const config::Model& model, const std::string& step_folder);

}  // namespace titan::cli
