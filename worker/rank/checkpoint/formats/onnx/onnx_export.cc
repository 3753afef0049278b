#include "worker/rank/checkpoint/formats/onnx/onnx_export.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/generation.h"
#include "worker/rank/checkpoint/formats/onnx/genai_config.h"

namespace titan::checkpoint::onnx {
namespace {

constexpr int64_t kManyExperts = 16;

Target target_of(const Export& options) {
  Target target{.microsoft = options.microsoft, .opset = options.opset};
  if (target.opset == 0) target.opset = options.microsoft ? 21 : 23;
  if (options.hugging_face.dtype == at::kHalf) target.type = Type::kFloat16;
  if (options.hugging_face.dtype == at::kBFloat16) target.type = Type::kBFloat16;
  return target;
}

std::vector<std::string> warnings_of(const models::ModelSpec& spec, const Target& target) {
  std::vector<std::string> warnings;
  if (target.type == Type::kBFloat16) {
    warnings.push_back(
        "ONNX Runtime's CPU provider does not compute in bfloat16: use --dtype float32 or float16 to run the model "
        "there");
  }
  if (spec.moe && !target.microsoft && spec.moe->num_experts > kManyExperts) {
    warnings.push_back(absl::StrCat("standard operators compute all ", spec.moe->num_experts,
                                    " experts for every token, of which the model needs ", spec.moe->top_k,
                                    ": --onnx-operators microsoft computes only those"));
  }
  return warnings;
}

// Returns the tokens that end a text: those of the tokenizer's generation_config.json, else the tokenizer's own.
std::vector<int64_t> stop_tokens(storage::Files& files, const std::string& folder, const nlohmann::json& ids) {
  const std::string path = storage::join_path(folder, "generation_config.json");
  if (files.exists(path)) {
    if (const absl::StatusOr<std::string> text = storage::read_file(files, path); text.ok()) {
      const nlohmann::json file = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
      const std::vector<int64_t> tokens = hf_config::stop_tokens_of(file);
      if (!tokens.empty()) return tokens;
    }
  }
  const nlohmann::json eos = ids.value("eos_token_id", nlohmann::json());
  return eos.is_number() ? std::vector<int64_t>{eos.get<int64_t>()} : std::vector<int64_t>{};
}

absl::Status write_genai_config(storage::Files& files, const models::ModelSpec& spec, const Export& options,
                                const std::string& folder) {
  nlohmann::json ids = nlohmann::json::object();
  if (absl::StatusOr<nlohmann::json> read = token_ids(options.hugging_face.assets.folder); read.ok())
    ids = *std::move(read);
  const GenaiModel model{.file = kModelFile,
                         .context = options.positions.rope.max_seq_len,
                         .bos = ids.value("bos_token_id", nlohmann::json()),
                         .stop_tokens = stop_tokens(files, folder, ids)};
  return storage::atomic_write(files, storage::join_path(folder, "genai_config.json"),
                               genai_config(spec, model).dump(2) + "\n");
}

About about(const models::ModelSpec& spec, const StepReader& step, const Target& target) {
  return {.opset = target.opset,
          .producer = "Titan",
          .producer_version = TITAN_VERSION,
          .model_version = step.manifest().step,
          .graph_name = absl::StrCat(spec.name, " ", spec.flavor),
          .data_file = kDataFile,
          .metadata = {{"titan.manifest_crc32c", absl::StrFormat("%08x", step.manifest_crc())}}};
}

}  // namespace

absl::StatusOr<std::vector<std::string>> write_onnx(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                                    const models::ModelSpec& spec, const Export& options,
                                                    const std::string& folder,
                                                    const std::function<void(const std::string& tensor)>& progress) {
  const Target target = target_of(options);
  Graph graph;
  Weights weights(step.manifest());
  TITAN_RETURN_IF_ERROR(build_graph(Builder(spec, target, graph, weights), options.positions));
  std::vector<std::string> warnings = warnings_of(spec, target);
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  TITAN_RETURN_IF_ERROR(write_data(
      files, step, weights.all(), {.overflow = options.hugging_face.overflow}, storage::join_path(folder, kDataFile),
      [&](const std::string& tensor) { progress(absl::StrCat(kDataFile, ": ", tensor)); }, warnings));
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> missing,
                         write_config_and_assets(files, folder, mapper, options.hugging_face));
  warnings.insert(warnings.end(), missing.begin(), missing.end());
  TITAN_RETURN_IF_ERROR(write_genai_config(files, spec, options, folder));
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(folder, kModelFile),
                                              serialized(graph, places(weights.all()), about(spec, step, target))));
  return warnings;
}

}  // namespace titan::checkpoint::onnx
