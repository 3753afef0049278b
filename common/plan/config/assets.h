#pragma once

// Default data of a job: c4 from a hub, and the tokenizer and text of an installation, {assets}/tokenizer and
// {assets}/{c4_test,c4_validation}.

#include <string>
#include <string_view>

#include "common/plan/config/job_config.h"

namespace titan::config {

// Returns TITAN_ASSETS; else share/titan/assets next to the program's bin folder (an installation); else .deps/assets
// in the nearest folder above the program that has one (a build tree); else "".
std::string assets_folder();

// Datasets that a job can select without a path; a library may add others (experimental.custom_import).
inline constexpr std::string_view kBuiltinDatasets[] = {"c4_test", "c4", "c4_validation"};
bool is_builtin_dataset(std::string_view dataset);

// Whether the dataset is part of the installation.
bool is_bundled_dataset(std::string_view dataset);

// Whether the job trains on allenai/c4 from a hub: c4 by name, without a path or sources. c4_validation then comes from
// there, too.
bool streams_c4(const JobConfig& config);

// Fills in defaults from assets_folder(): model.hf_assets_path (also when a file repeats torchtitan's default, unless
// that folder exists) and the dataset_path of c4_test and c4_validation; c4 is read from a hub. The rank calls this, so
// every node uses its local installation.
void resolve_assets(JobConfig& config);

}  // namespace titan::config
