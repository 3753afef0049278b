#pragma once

// What a job reads where it names no path: c4 from a hub, and the tokenizer and text that come with an installation:
// {assets}/tokenizer and {assets}/{c4_test,c4_validation}.

#include <string>
#include <string_view>

#include "common/plan/config/job_config.h"

namespace titan::config {

// TITAN_ASSETS; else share/titan/assets beside the running program's bin folder (an installation); else .deps/assets in
// the first folder above the program that has one (a build tree); else "".
std::string assets_folder();

// What jobs may train on by its name alone; a library may bring others (experimental.custom_import).
inline constexpr std::string_view kTitansDatasets[] = {"c4_test", "c4", "c4_validation"};
bool is_titans_dataset(std::string_view dataset);

// A dataset of the installation's own.
bool comes_with_titan(std::string_view dataset);

// Whether the job trains on allenai/c4 as a hub has it: by its name, without a path. c4_validation is of there, then.
bool streams_c4(const JobConfig& config);

// Points what the user left at its default into assets_folder(): model.hf_assets_path (also when a file repeats
// torchtitan's default, unless that folder exists) and the dataset_path of c4_test and c4_validation; that of
// c4 to a hub. Called by the rank, so that every node uses its own installation.
void resolve_assets(JobConfig& config);

}  // namespace titan::config
