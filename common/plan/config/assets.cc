#include "common/plan/config/assets.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "common/base/host/host_facts.h"
#include "common/plan/config/image_models.h"
#include "common/plan/config/model_kind.h"

namespace titan::config {
namespace {

namespace fs = std::filesystem;

constexpr char kC4[] = "hf://datasets/allenai/c4";

// Returns the folder of the installation's tokenizer. Qwen3-VL needs its own special tokens.
const char* tokenizer_asset(const ModelSection& model) {
  return model.name == "qwen3_vl" ? "qwen3-vl-tiny" : "tokenizer";
}

void resolve_dataset(const fs::path& assets, const std::string& dataset, std::optional<std::string>& path) {
  if (is_bundled_dataset(dataset) && !path.has_value()) path = (assets / dataset).string();
}

void resolve_sources(const fs::path& assets, std::vector<DataSource>& sources) {
  for (DataSource& source : sources) {
    if (source.dataset == "c4" && !source.dataset_path) source.dataset_path = kC4;
    if (source.dataset && !assets.empty()) resolve_dataset(assets, *source.dataset, source.dataset_path);
  }
}

void resolve_c4(JobConfig& config) {
  std::optional<std::string>& validation = config.validation.dataset_path;
  const std::string& dataset = config.validation.dataset;
  if (!validation.has_value() && (dataset == "c4" || (dataset == "c4_validation" && streams_c4(config))))
    validation = kC4;
  if (streams_c4(config)) config.training.dataset_path = kC4;
}

void resolve_images(JobConfig& config) {
  const auto resolve = [](const std::string& dataset, std::optional<std::string>& path) {
    const std::string place = hub_path_of_images(dataset);
    if (!path.has_value() && !place.empty()) path = place;
  };
  if (!learns_from_images(config.model)) return;
  resolve(config.training.dataset, config.training.dataset_path);
  resolve(config.validation.dataset, config.validation.dataset_path);
}

// Returns what a folder of a repository has of an autoencoder: its file, or its folder of diffusers.
fs::path autoencoder_in(const fs::path& folder) {
  std::error_code error;
  if (fs::is_regular_file(folder / "ae.safetensors", error)) return folder / "ae.safetensors";
  return fs::is_directory(folder / "vae", error) ? folder / "vae" : folder;
}

// A folder that exists comes before the installation's.
void resolve_encoders(const fs::path& assets, EncoderSection& encoder) {
  std::error_code error;
  for (std::string* const path : {&encoder.t5_encoder, &encoder.clip_encoder}) {
    if (!is_repository_name(*path) || fs::exists(*path, error)) continue;
    const fs::path own = assets / fs::path(*path).filename();
    if (fs::is_directory(own, error)) *path = own.string();
  }
  if (std::string& name = encoder.autoencoder_path; names_autoencoder_repository(name) && !fs::exists(name, error)) {
    const fs::path own = assets / fs::path(name).filename();
    if (fs::is_directory(own, error)) name = autoencoder_in(own).string();
  }
  if (means_assets("encoder.autoencoder_path", encoder.autoencoder_path) &&
      !fs::exists(encoder.autoencoder_path, error)) {
    encoder.autoencoder_path = (assets / autoencoder_asset(encoder.autoencoder_path)).string();
  }
}

}  // namespace

bool is_bundled_dataset(std::string_view dataset) {
  return dataset == "c4_test" || dataset == "c4_validation" || dataset == "shapes" || dataset == "shapes_validation";
}

bool is_builtin_dataset(std::string_view dataset) {
  return std::find(std::begin(kBuiltinDatasets), std::end(kBuiltinDatasets), dataset) != std::end(kBuiltinDatasets);
}

bool streams_c4(const JobConfig& config) {
  return config.training.dataset == "c4" && config.training.dataloader.sources.empty() &&
         !config.training.dataset_path.has_value();
}

bool is_bundled_encoder(const std::string& name) { return name.starts_with("titan/") && is_repository_name(name); }

std::string autoencoder_asset(const std::string& path) {
  return is_bundled_encoder(path) ? fs::path(path).filename().string() : kAutoencoderAsset;
}

bool means_assets(std::string_view key, const std::string& path) {
  const auto same = [&](const std::string& standard) {
    return fs::path(path).lexically_normal() == fs::path(standard).lexically_normal();
  };
  if (key == "model.hf_assets_path") return same(ModelSection{}.hf_assets_path);
  if (key != "encoder.autoencoder_path") return false;
  return same(EncoderSection{}.autoencoder_path) || is_bundled_encoder(path);
}

std::string assets_folder() {
  if (const char* named = std::getenv("TITAN_ASSETS"); named != nullptr && *named != '\0') return named;
  const fs::path program_folder = host::folder_of_program();
  std::error_code error;
  const fs::path installed = (program_folder / "../share/titan/assets").lexically_normal();
  if (fs::is_directory(installed, error)) return installed.string();
  for (fs::path folder = program_folder; folder.has_relative_path(); folder = folder.parent_path()) {
    const fs::path assets = folder / ".deps/assets";
    if (fs::is_directory(assets, error)) return assets.string();
  }
  return "";
}

void find_downloads(EncoderSection& encoder) {
  const auto folder_of = [](const std::string& repository) -> fs::path {
    std::error_code error;
    for (const fs::path& place : {fs::path(repository), fs::path(kDownloads) / fs::path(repository).filename()}) {
      if (fs::is_directory(place, error)) return fs::absolute(place).lexically_normal();
    }
    return {};
  };
  for (std::string* const path : {&encoder.t5_encoder, &encoder.clip_encoder}) {
    if (!is_repository_name(*path)) continue;
    if (const fs::path folder = folder_of(*path); !folder.empty()) *path = folder.string();
  }
  if (!names_autoencoder_repository(encoder.autoencoder_path)) return;
  if (const fs::path folder = folder_of(encoder.autoencoder_path); !folder.empty())
    encoder.autoencoder_path = autoencoder_in(folder).string();
}

void resolve_assets(JobConfig& config) {
  resolve_c4(config);
  resolve_images(config);
  const fs::path assets = assets_folder();
  resolve_sources(assets, config.training.dataloader.sources);
  resolve_sources(assets, config.validation.dataloader.sources);
  if (assets.empty()) return;
  std::error_code error;
  const bool is_default = means_assets("model.hf_assets_path", config.model.hf_assets_path);
  if (is_default && !fs::exists(config.model.hf_assets_path, error)) {
    config.model.hf_assets_path = (assets / tokenizer_asset(config.model)).string();
  }
  if (kind_of(config.model) == ModelKind::kTextToImage) resolve_encoders(assets, config.encoder);
  const auto alone = [&](const std::string& dataset, std::optional<std::string>& path,
                         const DataLoaderSection& settings) {
    if (settings.sources.empty()) resolve_dataset(assets, dataset, path);
  };
  alone(config.training.dataset, config.training.dataset_path, config.training.dataloader);
  alone(config.validation.dataset, config.validation.dataset_path, config.validation.dataloader);
}

}  // namespace titan::config
