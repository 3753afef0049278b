#include "worker/rank/tools/generate/source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/plan/hf_config/generation.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/hf_config/read.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/loading/model_check.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"
#include "worker/rank/checkpoint/steps/step_folders.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/tools/adapter_export.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;  // Most names here are from checkpoint.
using nlohmann::json;

// Reads a small JSON file's object. Null: the file does not exist.
absl::StatusOr<json> read_object(storage::Files& files, const std::string& path) {
  if (!files.exists(path)) return json();
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, 1 << 24));
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::FailedPreconditionError(absl::StrCat(path, ": not a JSON object"));
  return object;
}

// Returns whether the folder has a tokenizer, even an unreadable one: loading it reports the reason.
bool has_tokenizer(const std::string& folder) {
  return !absl::IsNotFound(tokenizer_files::find_tokenizer(folder).status());
}

// Returns a value such as "training.seq_len" from the configuration with which a step was trained.
json of_config(const Manifest& manifest, const char* section, const char* key) {
  if (!manifest.config.is_object()) return {};
  const json part = manifest.config.value(section, json());
  return part.is_object() ? part.value(key, json()) : json();
}

// Finds the weights below a step's adapters: in a step of the same model, or in its Hugging Face weights.
absl::Status open_base(storage::Files& files, const std::string& step, const Manifest& manifest,
                       const std::string& choice, ModelSource& source) {
  TITAN_ASSIGN_OR_RETURN(const std::string base, base_model_path(step, manifest, choice));
  source.adapters.emplace(AdapterStep{files, step});
  source.candidate = {.source = Source::kInitial, .path = base, .model_only = true, .required = true};
  if (files.exists(storage::join_path(base, kManifestName))) {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> reader, StepReader::open(files, base));
    source.candidate.from = Candidate::From::kStep;
    source.candidate.manifest_crc = reader->manifest_crc();
    TITAN_ASSIGN_OR_RETURN(source.warnings, check_model(reader->manifest(), source.spec, Use::kInitial, base,
                                                        "name the model of the adapters with --base"));
    return absl::OkStatus();
  }
  auto weights = HfFolder::open(files, base);
  if (!weights.ok()) return annotate(weights.status(), absl::StrCat(step, ": the model of its adapters (--base)"));
  source.candidate.from = Candidate::From::kHuggingFace;
  TITAN_ASSIGN_OR_RETURN(source.mapper, model::make_hf_mapper(source.spec, source.seq_len));
  TITAN_ASSIGN_OR_RETURN(source.warnings, check_hf_config(files, base, *source.mapper));
  return check_keys(**weights, *source.mapper);
}

absl::StatusOr<ModelSource> open_step(storage::Files& files, const std::string& path, const ModelChoice& choice,
                                      const std::string& base) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> step, StepReader::open(files, path));
  const Manifest& manifest = step->manifest();
  ModelSource source;
  TITAN_ASSIGN_OR_RETURN(source.spec, model_of(path, manifest, choice));
  source.candidate = {.from = Candidate::From::kStep,
                      .source = Source::kInitial,
                      .path = path,
                      .model_only = true,
                      .required = true,
                      .manifest_crc = step->manifest_crc()};
  const json seq_len = of_config(manifest, "training", "seq_len"),
             assets = of_config(manifest, "model", "hf_assets_path");
  source.job = manifest.config;
  if (seq_len.is_number_integer()) source.seq_len = seq_len.get<int64_t>();
  if (assets.is_string() && has_tokenizer(assets.get<std::string>())) source.tokenizer = assets.get<std::string>();
  if (holds_adapters(manifest)) TITAN_RETURN_IF_ERROR(open_base(files, path, manifest, base, source));
  return source;
}

absl::StatusOr<ModelSource> open_hugging_face(storage::Files& files, const std::string& path,
                                              const ModelChoice& choice) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfFolder> weights, HfFolder::open(files, path));
  TITAN_ASSIGN_OR_RETURN(const json config, read_object(files, storage::join_path(path, "config.json")));
  ModelSource source;
  const bool chosen = !choice.name.empty() || !choice.flavor.empty();
  if (chosen) {
    std::string taken;
    TITAN_ASSIGN_OR_RETURN(source.spec, model::find_spec(choice.name, choice.flavor, choice.library));
    TITAN_ASSIGN_OR_RETURN(source.spec, with_numbers_of_hf(files, path, source.spec, taken));
  } else if (config.is_null()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has no config.json that identifies the model: give --model and --flavor"));
  } else {
    auto read = hf_config::read_model(config);
    if (!read.ok()) return annotate(read.status(), path);
    source.spec = std::move(read->spec);
  }
  source.seq_len = source.spec.max_seq_len;  // Positions are stretched whenever config.json says so.
  TITAN_ASSIGN_OR_RETURN(source.mapper, model::make_hf_mapper(source.spec, source.seq_len));
  TITAN_ASSIGN_OR_RETURN(source.warnings, check_hf_config(files, path, *source.mapper));
  TITAN_RETURN_IF_ERROR(check_keys(*weights, *source.mapper));
  source.candidate = {.from = Candidate::From::kHuggingFace,
                      .source = Source::kInitial,
                      .path = path,
                      .model_only = true,
                      .required = true};
  if (has_tokenizer(path)) source.tokenizer = path;
  TITAN_RETURN_IF_ERROR(take_generation_config(files, path, source));
  if (source.stop_tokens.empty()) source.stop_tokens = hf_config::stop_tokens_of(config);
  return source;
}

// Checks only shapes, before the model has memory, because a wrong flavor may be too large for the machine.
absl::Status check_shapes(storage::Files& files, const std::string& path, const models::ModelSpec& spec) {
  TITAN_ASSIGN_OR_RETURN(const model::Model model, model::build(spec, {}));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DcpFolder> folder, DcpFolder::open(files, path));
  const auto& tensors = folder->metadata().tensors;
  for (const auto& block : model.blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      auto found = tensors.find(parameter.fqn);
      if (found == tensors.end()) found = tensors.find("model." + parameter.fqn);
      if (found == tensors.end() || found->second.shape == parameter.shape) continue;  // Missing: reported later.
      return absl::FailedPreconditionError(
          absl::StrCat(path, " does not fit ", spec.name, " ", spec.flavor, ": ", found->first, " is ",
                       shape_text(found->second.shape), " in the checkpoint, but ", shape_text(parameter.shape),
                       " in that model; give the trained model with --model and --flavor"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSource> open_dcp(storage::Files& files, const std::string& path, const ModelChoice& choice) {
  if (choice.name.empty() || choice.flavor.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": torch.distributed.checkpoint does not record the model: give --model and --flavor"));
  }
  ModelSource source;
  TITAN_ASSIGN_OR_RETURN(source.spec, model::find_spec(choice.name, choice.flavor, choice.library));
  TITAN_RETURN_IF_ERROR(check_shapes(files, path, source.spec));
  source.candidate = {
      .from = Candidate::From::kDcp, .source = Source::kInitial, .path = path, .model_only = true, .required = true};
  Setup setup;
  setup.model = source.spec;
  setup.config.initial_load_model_only = true;
  TITAN_RETURN_IF_ERROR(inspect(files, setup, source.candidate).status());
  return source;
}

bool is_hugging_face(storage::Files& files, const std::string& path) {
  const auto entries = files.list(path);
  if (!entries.ok()) return false;
  return std::any_of(entries->begin(), entries->end(),
                     [](const std::string& name) { return name == kHfIndexName || name.ends_with(".safetensors"); });
}

}  // namespace

absl::Status take_generation_config(storage::Files& files, const std::string& folder, ModelSource& source) {
  const std::string path = storage::join_path(folder, "generation_config.json");
  if (source.has_generation_config || !files.exists(path)) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const json file, read_object(files, path));
  hf_config::GenerationConfig said = hf_config::read_generation_config(file);
  source.has_generation_config = true;
  if (!said.stop_tokens.empty()) source.stop_tokens = std::move(said.stop_tokens);
  if (!said.not_applied.empty()) {
    source.warnings.push_back(
        absl::StrCat(path, ": ", absl::StrJoin(said.not_applied, ", "),
                     ": not applied here; transformers' generate() chooses other tokens with it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSource> open_source(storage::Files& files, const std::string& path, const ModelChoice& choice,
                                        const std::string& base) {
  if (s3::is_location(path))
    TITAN_RETURN_IF_ERROR(files.list(path).status());  // A store may report a more specific error.
  if (!files.is_folder(path)) return absl::NotFoundError(absl::StrCat(path, ": not a folder"));
  if (files.exists(storage::join_path(path, kManifestName))) return open_step(files, path, choice, base);
  if (files.exists(storage::join_path(path, kDcpMetadataName))) return open_dcp(files, path, choice);
  if (const std::string transformer = hf_config::weights_folder(files, path); transformer != path) {
    TITAN_ASSIGN_OR_RETURN(ModelSource source, open_hugging_face(files, transformer, choice));
    source.pipeline = path;
    return source;
  }
  if (is_hugging_face(files, path)) return open_hugging_face(files, path, choice);
  TITAN_ASSIGN_OR_RETURN(const std::vector<StepFolder> steps, list_steps(files, path));
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->has_manifest) return open_step(files, step->path, choice, base);
    if (step->has_hf_index) return open_hugging_face(files, step->path, choice);
    if (step->has_dcp) return open_dcp(files, step->path, choice);
  }
  return absl::NotFoundError(
      absl::StrCat(path,
                   ": no checkpoint: give a step-N folder, a folder of step-N folders, a folder of "
                   "Hugging Face weights, or one of torchtitan's"));
}

}  // namespace titan::tools
