#include "worker/rank/checkpoint/formats/hugging_face/hf_config.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::checkpoint {
namespace {

// The version whose form these files have. Without it, transformers 4.57.3 warns that any large tokenizer beside a
// config.json may be Mistral's broken one.
constexpr char kWrittenAs[] = "4.57.1";

constexpr char kGenerationConfig[] = "generation_config.json";

nlohmann::json id_or_null(const std::optional<int32_t>& id) { return id ? nlohmann::json(*id) : nlohmann::json(); }

const char* torch_name(at::ScalarType dtype) {
  return dtype == at::kHalf ? "float16" : dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

// What every generation starts from; null ids have no place in it.
nlohmann::json generation_config(const nlohmann::json& ids) {
  nlohmann::json config = {{"transformers_version", kWrittenAs}};
  for (const auto& [name, id] : ids.items()) {
    if (!id.is_null()) config[name] = id;
  }
  return config;
}

}  // namespace

absl::StatusOr<nlohmann::json> token_ids(const std::string& folder) {
  std::optional<int32_t> bos, eos;
  if (!folder.empty()) {
    TITAN_ASSIGN_OR_RETURN(const auto tokenizer, data::Tokenizer::load(folder));
    bos = tokenizer->bos_id();
    eos = tokenizer->eos_id();
  }
  return nlohmann::json{{"bos_token_id", id_or_null(bos)}, {"eos_token_id", id_or_null(eos)}};
}

nlohmann::json hf_config(nlohmann::json config, at::ScalarType dtype, const nlohmann::json& ids) {
  config.update(ids);
  config["torch_dtype"] = torch_name(dtype);  // "dtype" from 4.56 on, where this is still read; others read this alone.
  config["transformers_version"] = kWrittenAs;
  return config;
}

absl::StatusOr<std::vector<std::string>> write_beside_weights(storage::Files& files, const std::string& folder,
                                                              const HfMapper& mapper, const HfExport& options) {
  TITAN_ASSIGN_OR_RETURN(std::vector<std::string> warnings, copy_assets(files, options.assets, folder));
  const nlohmann::json model = mapper.config();
  if (model.is_null()) return warnings;
  nlohmann::json ids = {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}};
  // A tokenizer that cannot be read fails a training job long before; weights can be exported without.
  if (absl::StatusOr<nlohmann::json> read = token_ids(options.assets.folder); read.ok()) {
    ids = *std::move(read);
  } else if (options.assets.required) {
    return annotate(read.status(), "the tokenizer");
  } else if (warnings.empty()) {
    warnings.push_back(
        absl::StrCat("config.json names no token that begins or ends a text: ", std::string(read.status().message())));
  }
  const bool knows_ids = !ids["bos_token_id"].is_null() || !ids["eos_token_id"].is_null();
  if (knows_ids && !files.exists(storage::join_path(options.assets.folder, kGenerationConfig))) {
    TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(folder, kGenerationConfig),
                                                generation_config(ids).dump(2) + "\n"));
  }
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(folder, "config.json"),
                                              hf_config(model, options.dtype, ids).dump(2) + "\n"));
  return warnings;
}

}  // namespace titan::checkpoint
