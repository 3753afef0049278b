#include "common/config/assets.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace titan::config {
namespace {

namespace fs = std::filesystem;

void resolve_dataset(const fs::path& assets, const std::string& dataset, std::optional<std::string>& path) {
  if (comes_with_titan(dataset) && !path.has_value()) path = (assets / dataset).string();
}

}  // namespace

bool comes_with_titan(std::string_view dataset) { return dataset == "c4_test" || dataset == "c4_validation"; }

std::string assets_folder() {
  if (const char* named = std::getenv("TITAN_ASSETS"); named != nullptr && *named != '\0') return named;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = (program.parent_path() / "../share/titan/assets").lexically_normal();
  if (fs::is_directory(installed, error)) return installed.string();
  for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    const fs::path assets = folder / ".deps/assets";
    if (fs::is_directory(assets, error)) return assets.string();
  }
  return "";
}

void resolve_assets(JobConfig& config) {
  const fs::path assets = assets_folder();
  if (assets.empty()) return;
  std::error_code error;
  const bool is_default = config.model.hf_assets_path == Model{}.hf_assets_path;
  if (is_default && !fs::exists(config.model.hf_assets_path, error)) {
    config.model.hf_assets_path = (assets / "tokenizer").string();
  }
  resolve_dataset(assets, config.training.dataset, config.training.dataset_path);
  resolve_dataset(assets, config.validation.dataset, config.validation.dataset_path);
}

}  // namespace titan::config
