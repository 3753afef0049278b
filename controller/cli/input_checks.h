#pragma once

// Checks the data and the folders of weights that a configuration names, as ranks would find them.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

// What is wrong with the files of a dataset.
struct DataProblem {
  std::string message;
  bool is_missing = false;  // Nothing is there.
};

// Whether the ranks will find documents where `path` leads, by the code that they use (common/io/data_files). Nothing
// for a path of a hub, and for what only ranks can look into: the files of a library's dataset. Warnings that ranks
// will give are added to `warnings`.
std::optional<DataProblem> check_data(const std::string& dataset, const std::string& path,
                                      const config::DataLoader& settings, std::vector<std::string>& warnings);

// Why a job that resumes from a step would not find its place in the data where `path` leads: the step was saved in
// another dataset. `train_state`: of the step's manifest. Nothing where only ranks can tell: sources, tokens, a hub.
std::string check_place_in_data(const nlohmann::json& train_state, const config::Training& training);

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
