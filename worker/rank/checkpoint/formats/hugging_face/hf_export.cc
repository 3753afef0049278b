#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_quantization.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_quantize.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::checkpoint {
namespace {

constexpr char kModelPrefix[] = "model.";

// Parameters that share an exported tensor. Groups are in the order of the manifest.
struct Shared {
  std::vector<const TensorRecord*> records;
  int64_t bytes = 0;
};

absl::StatusOr<std::vector<Shared>> exported(const Manifest& manifest, const HfMapper& mapper,
                                             const HfExport& options) {
  std::vector<Shared> groups;
  std::map<std::string, size_t> group_of;  // Keyed by the first key of the layout.
  for (const TensorRecord& tensor : manifest.tensors) {
    if (!absl::StartsWith(tensor.key, kModelPrefix)) continue;
    TITAN_ASSIGN_OR_RETURN(const std::vector<HfLayout> layouts,
                           mapper.layouts(tensor.key.substr(sizeof kModelPrefix - 1)));
    const HfLayout* layout = layout_to_write(layouts);
    if (layout == nullptr) continue;
    const auto [place, fresh] = group_of.try_emplace(layout->keys.at(0), groups.size());
    if (fresh) groups.emplace_back();
    Shared& group = groups[place->second];
    group.records.push_back(&tensor);
    const bool float8 = options.float8 && takes_float8(tensor.key.substr(sizeof kModelPrefix - 1), tensor.shape);
    const at::ScalarType type = float8 ? at::kFloat8_e4m3fn : stored_type(*layout, options.dtype);
    const auto item = static_cast<int64_t>(c10::elementSize(type));
    group.bytes += whole(tensor.shape).elements() * item;
  }
  return groups;
}

}  // namespace

absl::StatusOr<std::vector<HfFile>> plan_export(const Manifest& manifest, const HfMapper& mapper,
                                                const HfExport& options) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<Shared> groups, exported(manifest, mapper, options));
  std::vector<HfFile> plan;
  int64_t bytes = 0;
  for (const Shared& group : groups) {
    if (plan.empty() || bytes + group.bytes > options.max_file_bytes) {
      plan.emplace_back();
      bytes = 0;
    }
    for (const TensorRecord* record : group.records) {
      plan.back().fqns.push_back(record->key.substr(sizeof kModelPrefix - 1));
    }
    bytes += group.bytes;
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, plan.size());
    plan[i].name = name;
  }
  return plan;
}

absl::StatusOr<std::vector<std::string>> unexported_buffers(StepReader& step, const HfMapper& mapper) {
  std::vector<std::string> lines;
  for (const TensorRecord& tensor : step.manifest().tensors) {
    if (!absl::StartsWith(tensor.key, kModelPrefix)) continue;
    TITAN_ASSIGN_OR_RETURN(const std::vector<HfLayout> layouts,
                           mapper.layouts(tensor.key.substr(sizeof kModelPrefix - 1)));
    if (layout_to_write(layouts) != nullptr) continue;
    at::Tensor value = at::empty(tensor.shape, at::TensorOptions().dtype(tensor.dtype));
    TITAN_RETURN_IF_ERROR(step.read(tensor, whole(tensor.shape), value));
    if (!value.any().item<bool>()) continue;
    lines.push_back(absl::StrCat(tensor.key, " is not zero and is left out: Hugging Face weights of this family ",
                                 "have no place for it"));
  }
  return lines;
}

namespace {

// Whether all parameters of a shared tensor are there.
bool is_complete(const HfLayout& layout, const std::map<int64_t, at::Tensor>& parts) {
  if (layout.total_rows == 0) return static_cast<int64_t>(parts.size()) == layout.parts;
  int64_t rows = 0;
  for (const auto& [first, part] : parts) rows += part.size(0);
  return rows == layout.total_rows;
}

}  // namespace

absl::StatusOr<HfWritten> write_export_file(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                            const HfFile& file, const HfExport& options, const std::string& folder,
                                            const std::string& name, const std::atomic<bool>* stop) {
  std::vector<Staged> parts;
  HfWritten written;
  const auto add = [&](const std::string& key, const at::Tensor& value) {
    const std::vector<int64_t> shape = value.sizes().vec();
    written.keys.push_back(key);
    written.bytes += static_cast<int64_t>(value.nbytes());
    parts.push_back({key, shape, whole(shape).offset, value.contiguous()});
  };
  std::map<std::string, std::map<int64_t, at::Tensor>> shared;  // Tensors that several parameters form, by their place.
  for (const std::string& fqn : file.fqns) {
    const TensorRecord* record = step.manifest().find(kModelPrefix + fqn);
    if (record == nullptr) return absl::InternalError(absl::StrCat("export: ", fqn, " is not in the step"));
    at::Tensor full = at::empty(record->shape, at::TensorOptions().dtype(record->dtype));
    TITAN_RETURN_IF_ERROR(step.read(*record, whole(record->shape), full));
    TITAN_ASSIGN_OR_RETURN(const std::vector<HfLayout> layouts, mapper.layouts(fqn));
    const HfLayout* written_as = layout_to_write(layouts);
    if (written_as == nullptr) return absl::InternalError(absl::StrCat("export: ", fqn, " has no tensor there"));
    const HfLayout& layout = *written_as;
    const bool float8 = options.float8 && takes_float8(fqn, record->shape);
    if (!float8) {
      TITAN_RETURN_IF_ERROR(
          narrow(record->key, stored_type(layout, options.dtype), options.overflow, full, written.warnings));
    }
    const std::vector<at::Tensor> tensors = to_hf(layout, full);
    if (tensors.size() != layout.keys.size()) {
      return absl::InternalError(
          absl::StrCat("export: ", fqn, " has ", layout.keys.size(), " names and ", tensors.size(), " tensors"));
    }
    if (float8) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        const absl::StatusOr<Float8Matrix> matrix = quantize_float8(tensors[i]);
        if (!matrix.ok()) return annotate(matrix.status(), record->key);
        add(layout.keys[i], matrix->numbers);
        add(scales_of(layout.keys[i]), matrix->scales);
      }
      continue;
    }
    if (!is_shared(layout)) {
      for (size_t i = 0; i < tensors.size(); ++i) add(layout.keys[i], tensors[i]);
      continue;
    }
    std::map<int64_t, at::Tensor>& parts_of = shared[layout.keys[0]];
    parts_of[layout.total_rows > 0 ? layout.first_row : layout.part] = tensors[0];
    if (!is_complete(layout, parts_of)) continue;
    std::vector<at::Tensor> in_order;
    for (const auto& [place, part] : parts_of) in_order.push_back(part);
    // The result has the wider type if one of them kept it.
    add(layout.keys[0], at::cat(in_order, layout.total_rows > 0 ? 0 : -1));
    shared.erase(layout.keys[0]);
  }
  if (!shared.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("export: the step lacks a parameter that is part of ", shared.begin()->first));
  }
  TITAN_RETURN_IF_ERROR(write_tensors(files, folder, name, parts, stop));
  return written;
}

std::string hf_index(const std::vector<HfFile>& files, const std::vector<HfWritten>& written) {
  nlohmann::json map = nlohmann::json::object();
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    bytes += written[i].bytes;
    for (const std::string& key : written[i].keys) map[key] = files[i].name;
  }
  return nlohmann::json{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
}

absl::Status write_second_index(storage::Files& files, const std::string& folder, const HfMapper& mapper,
                                const std::string& text) {
  const std::string name = mapper.second_index_name();
  if (name.empty()) return absl::OkStatus();
  return storage::atomic_write(files, storage::join_path(folder, name), text);
}

absl::StatusOr<std::vector<std::string>> export_folder(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                                       const HfExport& wanted, const std::string& folder,
                                                       const std::function<void(const std::string& file)>& progress) {
  HfExport options = wanted;
  if (options.float8) {
    TITAN_ASSIGN_OR_RETURN(options.quantization, float8_config(step.manifest(), mapper));
  }
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  TITAN_ASSIGN_OR_RETURN(const std::vector<HfFile> plan, plan_export(step.manifest(), mapper, options));
  TITAN_ASSIGN_OR_RETURN(std::vector<std::string> warnings, unexported_buffers(step, mapper));
  std::vector<HfWritten> written;
  for (const HfFile& file : plan) {
    if (progress) progress(file.name);
    TITAN_ASSIGN_OR_RETURN(HfWritten one, write_export_file(files, step, mapper, file, options, folder, file.name));
    warnings.insert(warnings.end(), one.warnings.begin(), one.warnings.end());
    written.push_back(std::move(one));
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> missing,
                         write_config_and_assets(files, folder, mapper, options));
  warnings.insert(warnings.end(), missing.begin(), missing.end());
  const std::string index = hf_index(plan, written);
  TITAN_RETURN_IF_ERROR(write_second_index(files, folder, mapper, index));
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(folder, kHfIndexName), index));
  return warnings;
}

namespace {

// The version with the format of these files. Without it, transformers 4.57.3 warns that any large tokenizer next to a
// config.json may be Mistral's broken one.
constexpr char kWrittenAs[] = "4.57.1";

constexpr char kGenerationConfig[] = "generation_config.json";

nlohmann::json id_or_null(const std::optional<int32_t>& id) { return id ? nlohmann::json(*id) : nlohmann::json(); }

const char* torch_name(at::ScalarType dtype) {
  return dtype == at::kHalf ? "float16" : dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

// Returns the content of generation_config.json: the ids that are not null.
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
  // transformers 4.56 renamed it to "dtype" but still reads this; other programs read only this.
  config["torch_dtype"] = torch_name(dtype);
  config["transformers_version"] = kWrittenAs;
  return config;
}

absl::StatusOr<std::vector<std::string>> write_config_and_assets(storage::Files& files, const std::string& folder,
                                                                 const HfMapper& mapper, const HfExport& options) {
  const nlohmann::json model = mapper.config();
  const bool of_diffusers = model.contains("_class_name");  // Such a model reads no tokens.
  std::vector<std::string> warnings;
  if (!of_diffusers || options.assets.required) {
    TITAN_ASSIGN_OR_RETURN(warnings, copy_assets(files, options.assets, folder));
  }
  if (model.is_null()) return warnings;
  const std::string path = storage::join_path(folder, "config.json");
  if (of_diffusers) {
    TITAN_RETURN_IF_ERROR(storage::atomic_write(files, path, model.dump(2) + "\n"));
    return warnings;
  }
  nlohmann::json ids = {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}};
  // A tokenizer that cannot be read fails a training job much earlier; weights can be exported without one.
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
  nlohmann::json config = hf_config(model, options.dtype, ids);
  if (!options.quantization.is_null()) config["quantization_config"] = options.quantization;
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, path, config.dump(2) + "\n"));
  return warnings;
}

}  // namespace titan::checkpoint
