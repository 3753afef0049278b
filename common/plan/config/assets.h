#pragma once

// Default data of a job: c4 and datasets of images from a hub; of an installation, the tokenizer and texts,
// {assets}/tokenizer and {assets}/{c4_test,c4_validation}, for flux the pictures and small encoders of examples,
// {assets}/{shapes,shapes_validation,t5-tiny,clip-tiny,autoencoder-tiny}, and what its administrator has added: the
// autoencoder, {assets}/autoencoder/ae.safetensors, and encoders, {assets}/NAME.

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

// Place of flux's autoencoder in the assets.
inline constexpr char kAutoencoderAsset[] = "autoencoder/ae.safetensors";

// Returns whether the value of a key of [encoder] names one of an installation's small encoders, "titan/NAME".
bool is_bundled_encoder(const std::string& name);

// Returns the place of an autoencoder in the assets, whose path means_assets().
std::string autoencoder_asset(const std::string& path);

// Whether the path is torchtitan's default for model.hf_assets_path or encoder.autoencoder_path, in any spelling, or
// names the installation's small autoencoder. It means the file of each node's own installation, unless it exists.
bool means_assets(std::string_view key, const std::string& path);

// Where titanctl assets get puts a repository: {kDownloads}/NAME in the working folder.
inline constexpr char kDownloads[] = "assets/hf";

// Replaces names of repositories in [encoder] by what the working folder has of them: a folder of the whole name
// "ORG/NAME", or else {kDownloads}/NAME. Of an autoencoder's repository it is the file ae.safetensors, or else the
// folder "vae" of a pipeline of diffusers. Names without either stay.
void find_downloads(EncoderSection& encoder);

// Fills in defaults from assets_folder(): model.hf_assets_path and encoder.autoencoder_path when they mean the assets,
// encoders and an autoencoder that are names, and the dataset_path of bundled datasets; c4 and other datasets of images
// are read from a hub. The rank calls this, so every node uses its local installation.
void resolve_assets(JobConfig& config);

}  // namespace titan::config
