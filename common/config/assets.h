#pragma once

// The tokenizer and text that come with an installation: {assets}/tokenizer and {assets}/{c4_test,c4_validation}.

#include <string>
#include <string_view>

#include "common/config/job_config.h"

namespace titan::config {

// TITAN_ASSETS; else share/titan/assets beside the running program's bin folder (an installation); else .deps/assets in
// the first folder above the program that has one (a build tree); else "".
std::string assets_folder();

// A dataset of the installation's own.
bool comes_with_titan(std::string_view dataset);

// Points what the user left at its default into assets_folder(): model.hf_assets_path (also when a file repeats
// torchtitan's default, unless that folder exists) and the dataset_path of c4_test and c4_validation. Called by the
// rank, so that every node uses its own installation; without assets nothing changes.
void resolve_assets(JobConfig& config);

}  // namespace titan::config
