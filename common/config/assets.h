#pragma once

// The tokenizer and text that come with an installation: {assets}/tokenizer and {assets}/{c4_test,c4_validation}.

#include <string>

#include "common/config/job_config.h"

namespace titan::config {

// TITAN_ASSETS; else .deps/assets in the first folder above the running program that has one; else "".
std::string assets_folder();

// Points what the user left at its default into assets_folder(): model.hf_assets_path (also when a file repeats
// torchtitan's default, unless that folder exists) and the dataset_path of c4_test and c4_validation. Called by the
// rank, so that every node uses its own installation; without assets nothing changes.
void resolve_assets(JobConfig& config);

}  // namespace titan::config
