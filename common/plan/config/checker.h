#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/plan/config/load.h"
#include "common/plan/models/model_spec.h"
#include "common/plan/pipeline/plan.h"

namespace titan::config {

// Collects the problems that checks across keys find, with the place where each key was set.
class Checker {
 public:
  Checker(const JobConfig& config, const std::map<std::string, Origin>& origins) : config_(config), origins_(origins) {}

  const JobConfig& config() const { return config_; }
  const std::vector<Problem>& problems() const { return problems_; }

  template <typename T>
  void fail(const std::string& key, const T& value, std::string message, std::string suggestion) {
    problems_.push_back({origin(key), key, text(value), std::move(message), std::move(suggestion)});
  }
  // Adds an error of another library. Its message may begin with the key: "training.seq_len: 100 is not a multiple of
  // 8".
  void fail_as(const std::string& key, const std::string& value, const absl::Status& status);

 private:
  static std::string text(const std::string& value) { return value; }
  static std::string text(bool value) { return value ? "true" : "false"; }
  template <typename T>
  static std::string text(const T& value) {
    return absl::StrCat(value);
  }
  // Returns where the key was set, or the first key of the section that `key` names.
  Origin origin(const std::string& key) const;

  const JobConfig& config_;
  const std::map<std::string, Origin>& origins_;
  std::vector<Problem> problems_;
};

// Parts of check() in separate files. `blocks` are not known when the model is not.
void check_mesh(Checker& check, const std::optional<models::ModelSpec>& spec);  // parallelism.cc
void check_pipeline(Checker& check, const pipeline::ModelBlocks& blocks);       // parallelism.cc
void check_checkpoint(Checker& check);
void check_sources(Checker& check, const std::string& section, const DataLoaderSection& settings,
                   const std::optional<std::string>& dataset_path);  // data_sources.cc; section: "training".
void check_dataset_names(Checker& check);                            // data_sources.cc
void check_datasets(Checker& check, const std::string& section, const std::string& dataset,
                    const std::optional<std::string>& dataset_path,
                    const DataLoaderSection& settings);                                  // data_sources.cc
void check_lora(Checker& check, const std::optional<models::ModelSpec>& spec);           // trained_model.cc
void check_low_precision(Checker& check, const std::optional<models::ModelSpec>& spec);  // low_precision.cc
void check_images(Checker& check);                                                       // image_models.cc

}  // namespace titan::config
