#pragma once

// Checks the data and the folders of weights that a configuration names, as ranks would find them.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/job_config.h"
#include "nlohmann/json.hpp"

namespace titan::cli {

// A problem with the files of a dataset.
struct DataProblem {
  std::string message;
  bool is_missing = false;  // Nothing exists there.
};

// Checks that the ranks will find documents at `path`, with the code that they use (common/io/data_files). A library's
// dataset is only checked for existence, and a hub's path not at all. Returns nothing when all is well. Adds warnings
// that ranks will print to `warnings`.
std::optional<DataProblem> check_data(const std::string& dataset, const std::string& path,
                                      const config::DataLoaderSection& settings, std::vector<std::string>& warnings);

// Checks only that the path leads to files.
std::optional<DataProblem> check_listed(const std::string& path);

// Explains why a job that resumes from a step would not find its place in the data: the step was saved with another
// dataset. `train_state`: from the step's manifest. Returns "" if it would, or if only ranks can know: with sources, a
// token index or a hub.
std::string check_place_in_data(const nlohmann::json& train_state, const config::TrainingSection& training);

// Explains why the weights in a folder belong to another model than the configuration's.
struct WeightsMismatch {
  std::string message;  // Empty: they fit, or only a rank knows (a library's model, an old step).
  std::string remedy;   // Names the Titan model that they fit; may be empty.
};

// Checks config.json next to Hugging Face weights, as ranks do, and the shape of their embedding.
WeightsMismatch hf_folder_mismatch(const config::ModelSection& model, const std::string& folder);

// Checks config.json next to the Hugging Face weights of a vision tower, as ranks do.
WeightsMismatch tower_mismatch(const config::ModelSection& model, const std::string& folder);

// Checks the manifest of a step that Titan saved.
WeightsMismatch step_mismatch(const config::ModelSection& model, const std::string& step_folder);

}  // namespace titan::cli
