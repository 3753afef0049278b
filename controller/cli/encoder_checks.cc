#include "controller/cli/encoder_checks.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/image_models.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/encoders/config.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Encoder {
  std::string key;
  std::string path;
  std::vector<std::string> model_types;  // Values of model_type in config.json that are of its kind.
  int64_t width = 0;                     // That the model reads; 0: unknown.
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

// Returns the width of a text encoder's results; 0 if its configuration cannot be read.
int64_t width_of(const json& config, bool t5) {
  if (t5) {
    const auto options = encoders::t5_options(config);
    return options.ok() ? options->dim : 0;
  }
  const auto options = encoders::clip_text_options(config);
  return options.ok() ? options->dim : 0;
}

// Returns what is wrong in the encoder's folder; empty when nothing is.
std::string wrong_in(const Encoder& encoder, const std::string& folder) {
  std::ifstream in(folder + "/config.json");
  if (!in) return "the folder holds no config.json";
  const json config = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return "its config.json is not a JSON object";
  const json type = config.value("model_type", json());
  const std::vector<std::string>& types = encoder.model_types;
  if (!type.is_string() || std::find(types.begin(), types.end(), type) == types.end()) {
    return absl::StrCat("its config.json has model_type ", type.dump(-1, ' ', false, json::error_handler_t::replace),
                        ", and a ", types.front(), " is needed");
  }
  if (!has_weights(folder)) return "the folder holds no weights (*.safetensors)";
  const int64_t width = width_of(config, types.front() == "t5");
  if (width == 0 || encoder.width == 0 || width == encoder.width) return "";
  return absl::StrCat("its width is ", width, ", but the model reads ", encoder.width);
}

std::optional<EncoderProblem> check_folder(const Encoder& encoder) {
  std::error_code error;
  std::string folder = encoder.path;
  const std::string assets = config::assets_folder();
  if (!fs::is_directory(folder, error) && config::is_repository_name(encoder.path) && !assets.empty())
    folder = (fs::path(assets) / fs::path(encoder.path).filename()).string();
  if (fs::is_directory(folder, error)) {
    const std::string wrong = wrong_in(encoder, folder);
    if (wrong.empty()) return std::nullopt;
    return EncoderProblem{encoder.key, encoder.path, wrong,
                          "name the folder of a text encoder that model.flavor reads"};
  }
  if (!config::is_repository_name(encoder.path))
    return EncoderProblem{encoder.key, encoder.path, "no such folder", "", /*is_missing=*/true};
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

// Returns the problem of a folder that holds a model of transformers, whose config.json has a model_type.
std::optional<EncoderProblem> check_kind(const std::string& path, const std::string& folder) {
  std::ifstream in(folder + "/config.json");
  const json config = in ? json::parse(in, nullptr, /*allow_exceptions=*/false) : json();
  const json type = config.is_object() ? config.value("model_type", json()) : json();
  if (!type.is_string()) return std::nullopt;
  return EncoderProblem{"encoder.autoencoder_path", path,
                        absl::StrCat("its config.json has model_type ", type.dump(), ", and an autoencoder is needed"),
                        "name the file or folder of an autoencoder"};
}

std::optional<EncoderProblem> check_autoencoder(const std::string& path) {
  const std::string key = "encoder.autoencoder_path";
  std::error_code error;
  if (holds_autoencoder(path)) return check_kind(path, path);
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
  if (const fs::path own = fs::path(assets) / asset; !assets.empty() && holds_autoencoder(own))
    return check_kind(path, own.string());
  return EncoderProblem{key, path, absl::StrCat("no such file, nor ", asset, " in the assets"), remedy};
}

}  // namespace

std::vector<EncoderProblem> check_encoders(const config::JobConfig& config) {
  std::vector<EncoderProblem> problems;
  if (config.training.test_mode || !config::uses_encoders(config)) return problems;
  const absl::StatusOr<models::ModelSpec> spec = config::resolve_model(config.model);
  const bool known = spec.ok() && spec->flux.has_value();
  for (const Encoder& encoder :
       {Encoder{"encoder.t5_encoder", config.encoder.t5_encoder, {"t5"}, known ? spec->flux->txt_width : 0},
        Encoder{"encoder.clip_encoder",
                config.encoder.clip_encoder,
                {"clip_text_model", "clip"},
                known ? spec->flux->vec_width : 0}}) {
    if (auto problem = check_folder(encoder)) problems.push_back(*std::move(problem));
  }
  if (auto problem = check_autoencoder(config.encoder.autoencoder_path)) problems.push_back(*std::move(problem));
  return problems;
}

}  // namespace titan::cli
