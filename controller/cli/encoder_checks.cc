#include "controller/cli/encoder_checks.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/image_models.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Encoder {
  std::string key;
  std::string path;
  std::vector<std::string> model_types;  // Values of model_type in config.json that are of its kind.
};

std::string get_command(const std::string& repository) {
  if (config::is_bundled_encoder(repository)) return "deploy/make_image_assets.sh makes it";
  return absl::StrCat("`titanctl assets get ", repository, "` downloads it");
}

bool has_weights(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator entries(folder, error);
  return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".safetensors" || entry.path().extension() == ".bin";
  });
}

// Returns what is wrong in a folder; empty when nothing is.
std::string wrong_in(const Encoder& encoder) {
  std::ifstream in(encoder.path + "/config.json");
  if (!in) return "the folder holds no config.json";
  const json config = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return "its config.json is not a JSON object";
  const json type = config.value("model_type", json());
  const std::vector<std::string>& types = encoder.model_types;
  if (!type.is_string() || std::find(types.begin(), types.end(), type) == types.end()) {
    return absl::StrCat("its config.json has model_type ", type.dump(-1, ' ', false, json::error_handler_t::replace),
                        ", and a ", types.front(), " is needed");
  }
  return has_weights(encoder.path) ? "" : "the folder holds no weights (*.safetensors)";
}

std::optional<EncoderProblem> check_folder(const Encoder& encoder) {
  std::error_code error;
  if (fs::is_directory(encoder.path, error)) {
    const std::string wrong = wrong_in(encoder);
    if (wrong.empty()) return std::nullopt;
    return EncoderProblem{encoder.key, encoder.path, wrong, "name the folder of a text encoder"};
  }
  if (!config::is_repository_name(encoder.path))
    return EncoderProblem{encoder.key, encoder.path, "no such folder", "", /*is_missing=*/true};
  if (const fs::path own = fs::path(config::assets_folder()) / fs::path(encoder.path).filename();
      !config::assets_folder().empty() && fs::is_directory(own, error)) {
    return std::nullopt;
  }
  return EncoderProblem{
      encoder.key, encoder.path,
      absl::StrCat("no such folder, nor ", config::kDownloads, "/", fs::path(encoder.path).filename().string()),
      absl::StrCat(get_command(encoder.path), "; if only the nodes have it, --no-file-checks skips this check")};
}

// Returns whether the path is a file, or a folder with weights.
bool holds_autoencoder(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) || (fs::is_directory(path, error) && has_weights(path));
}

std::optional<EncoderProblem> check_autoencoder_name(const std::string& name) {
  std::error_code error;
  const std::string assets = config::assets_folder(), folder = fs::path(name).filename().string();
  if (!assets.empty() && fs::is_directory(fs::path(assets) / folder, error)) return std::nullopt;
  return EncoderProblem{"encoder.autoencoder_path", name,
                        absl::StrCat("no such folder, nor ", config::kDownloads, "/", folder),
                        absl::StrCat(get_command(name + " --include ae.safetensors"),
                                     "; if only the nodes have it, --no-file-checks skips this check")};
}

std::optional<EncoderProblem> check_autoencoder(const std::string& path) {
  const std::string key = "encoder.autoencoder_path";
  std::error_code error;
  if (holds_autoencoder(path)) return std::nullopt;
  if (fs::is_directory(path, error)) {
    return EncoderProblem{key, path, "the folder holds no weights (*.safetensors)",
                          "name the file or folder of an autoencoder"};
  }
  const bool bundled = config::is_bundled_encoder(path);
  if (!bundled && config::names_autoencoder_repository(path)) return check_autoencoder_name(path);
  const std::string remedy =
      bundled ? get_command(path)
              : absl::StrCat("it is ae.safetensors of FLUX.1: ",
                             get_command("black-forest-labs/FLUX.1-schnell --include ae.safetensors"));
  if (!config::means_assets(key, path)) return EncoderProblem{key, path, "no such file", remedy, /*is_missing=*/true};
  const std::string assets = config::assets_folder();
  const std::string asset = config::autoencoder_asset(path);
  if (!assets.empty() && holds_autoencoder(fs::path(assets) / asset)) return std::nullopt;
  return EncoderProblem{key, path, absl::StrCat("no such file, nor ", asset, " in the assets"), remedy};
}

}  // namespace

std::vector<EncoderProblem> check_encoders(const config::JobConfig& config) {
  std::vector<EncoderProblem> problems;
  if (config.training.test_mode || !config::uses_encoders(config)) return problems;
  for (const Encoder& encoder :
       {Encoder{"encoder.t5_encoder", config.encoder.t5_encoder, {"t5"}},
        Encoder{"encoder.clip_encoder", config.encoder.clip_encoder, {"clip_text_model", "clip"}}}) {
    if (auto problem = check_folder(encoder)) problems.push_back(*std::move(problem));
  }
  if (auto problem = check_autoencoder(config.encoder.autoencoder_path)) problems.push_back(*std::move(problem));
  return problems;
}

}  // namespace titan::cli
