#include "worker/tools/offline.h"

#include <unistd.h>

#include <filesystem>
#include <set>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/models/identity.h"
#include "common/status/status.h"
#include "common/text/counted.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/hf_folder.h"
#include "worker/checkpoint/model_check.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/shard.h"
#include "worker/checkpoint/step_folders.h"
#include "worker/model/hf_mapper.h"
#include "worker/model/model.h"
#include "worker/model/registry.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;  // This file is the folder's offline face.

// The step folders that `path` means.
absl::StatusOr<std::vector<std::string>> steps_of(storage::Files& files, const std::string& path) {
  if (files.exists(storage::join_path(path, kManifestName))) return std::vector<std::string>{path};
  TITAN_ASSIGN_OR_RETURN(const std::vector<StepFolder> steps, list_steps(files, path));
  std::vector<std::string> found;
  for (const StepFolder& step : steps) {
    if (step.has_manifest) found.push_back(step.path);
  }
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, ": neither a step-N folder with a manifest.json nor a folder of such"));
  }
  return found;
}

int64_t bytes_of(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const FileRecord& file : manifest.files) bytes += file.bytes;
  return bytes;
}

std::string mebibytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

nlohmann::json describe(const std::string& path, const Manifest& manifest) {
  return {{"path", path},
          {"step", manifest.step},
          {"kind", manifest.full ? "full" : "model"},
          {"attempt", manifest.attempt},
          {"job_uid", manifest.job_uid},
          {"world", manifest.world},
          {"titan_version", manifest.titan_version},
          {"model", manifest.model},
          {"files", manifest.files.size()},
          {"tensors", manifest.tensors.size()},
          {"bytes", bytes_of(manifest)},
          {"train_state", manifest.train_state}};
}

std::string type_name(c10::ScalarType type) { return safetensors_dtype(type).value_or("?"); }

absl::StatusOr<at::ScalarType> export_type(const std::string& dtype) {
  if (dtype == "float32") return at::kFloat;
  if (dtype == "float16") return at::kHalf;
  if (dtype == "bfloat16") return at::kBFloat16;
  return absl::InvalidArgumentError(absl::StrCat("--dtype ", dtype, ": use float32, float16 or bfloat16"));
}

// The model that a step holds, by its own word or, where it has none, by the command line's.
absl::StatusOr<models::ModelSpec> model_of(const std::string& path, const Manifest& manifest,
                                           const ModelChoice& choice) {
  std::string name = choice.name, flavor = choice.flavor;
  if (manifest.model.is_null()) {
    if (name.empty() || flavor.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": was written before steps said which model they hold: give --model and --flavor of its job"));
    }
  } else {
    if (name.empty()) name = manifest.model.value("name", "");
    if (flavor.empty()) flavor = manifest.model.value("flavor", "");
  }
  auto spec = model::find_spec(name, flavor, choice.library);
  if (!spec.ok() && !manifest.model.is_null()) {
    return annotate(spec.status(), absl::StrCat(path, " holds ", models::label(manifest.model)));
  }
  TITAN_RETURN_IF_ERROR(spec.status());
  TITAN_RETURN_IF_ERROR(
      check_model(manifest, *spec, Use::kResume, path, "leave --model and --flavor out, or name the step's").status());
  return spec;
}

// Every tensor of the model, in its shape, and no other.
absl::Status check_tensors(const std::string& path, const Manifest& manifest, const models::ModelSpec& spec) {
  TITAN_ASSIGN_OR_RETURN(const model::Model model, model::build(spec, {}));
  const auto misfit = [&](const std::string& what) {
    return absl::FailedPreconditionError(absl::StrCat(path, " does not fit ", spec.name, " ", spec.flavor, ": ", what));
  };
  std::set<std::string> known;
  for (const auto& block : model.blocks) {
    for (const nn::Buffer& buffer : block->buffers()) known.insert("model." + buffer.fqn);
    for (const nn::Parameter& parameter : block->parameters()) {
      const std::string key = "model." + parameter.fqn;
      const TensorRecord* record = manifest.find(key);
      if (record == nullptr) return misfit(absl::StrCat("it has no ", key));
      if (record->shape != parameter.shape) {
        return misfit(absl::StrCat(key, " is [", absl::StrJoin(record->shape, ", "), "] there, the model's is [",
                                   absl::StrJoin(parameter.shape, ", "), "]"));
      }
      known.insert(key);
    }
  }
  for (const TensorRecord& tensor : manifest.tensors) {
    if (absl::StartsWith(tensor.key, "model.") && !known.contains(tensor.key))
      return misfit(absl::StrCat("it has ", tensor.key, ", which the model lacks"));
  }
  return absl::OkStatus();
}

// Makes the new folder `path` with what `fill` writes into the folder that it is given: whole or not at all.
absl::Status make_whole(storage::Files& files, const std::string& path,
                        absl::FunctionRef<absl::Status(const std::string&)> fill) {
  if (const auto entries = files.list(path); files.exists(path) && (!entries.ok() || !entries->empty())) {
    return absl::AlreadyExistsError(absl::StrCat(path, ": exists already; name a new folder"));
  }
  const std::string whole = path.substr(0, path.find_last_not_of('/') + 1);
  const std::string partial = absl::StrCat(whole, ".partial-", getpid());
  absl::Status status = fill(partial);
  if (status.ok()) status = files.rename(partial, whole);
  if (!status.ok()) {
    files.remove_folder(partial).IgnoreError();
    return status;
  }
  return files.sync_folder(std::filesystem::absolute(whole).parent_path().string());
}

}  // namespace

absl::Status inspect(storage::Files& files, const std::string& path, bool tensors, bool json, std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> steps, steps_of(files, path));
  absl::Status worst;
  for (const std::string& step : steps) {
    const auto reader = StepReader::open(files, step);
    if (!reader.ok()) {
      out << step << "  unreadable: " << std::string(reader.status().message()) << "\n";
      worst = reader.status();
      continue;
    }
    const Manifest& manifest = (*reader)->manifest();
    nlohmann::json about = describe(step, manifest);
    if (json) {
      for (const TensorRecord& tensor : manifest.tensors) {
        if (!tensors) break;
        about["shapes"][tensor.key] = {
            {"dtype", type_name(tensor.dtype)}, {"shape", tensor.shape}, {"pieces", tensor.pieces.size()}};
      }
      out << about.dump() << "\n";
      continue;
    }
    out << step << "  step " << manifest.step << "  " << (manifest.full ? "full" : "model only") << "  "
        << (manifest.model.is_null() ? "model not recorded" : models::label(manifest.model)) << "  attempt "
        << manifest.attempt << "  " << counted(manifest.world, "rank") << "  "
        << counted(manifest.tensors.size(), "tensor") << "  " << mebibytes(bytes_of(manifest)) << "\n";
    if (!tensors) continue;
    for (const TensorRecord& tensor : manifest.tensors) {
      out << "  " << tensor.key << "  " << type_name(tensor.dtype) << " [" << absl::StrJoin(tensor.shape, ", ") << "]  "
          << counted(tensor.pieces.size(), "piece") << "\n";
    }
  }
  return worst;
}

absl::Status verify(storage::Files& files, const std::string& path, std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> steps, steps_of(files, path));
  int damaged = 0;
  for (const std::string& step : steps) {
    const auto reader = StepReader::open(files, step);
    std::vector<absl::Status> problems;
    if (reader.ok()) {
      problems = (*reader)->verify();
    } else {
      problems.push_back(reader.status());
    }
    out << step << ": " << (problems.empty() ? "ok" : "damaged") << "\n";
    for (const absl::Status& problem : problems) out << "  " << std::string(problem.message()) << "\n";
    damaged += problems.empty() ? 0 : 1;
  }
  if (damaged == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(damaged, " of ", steps.size(), steps.size() == 1 ? " step is damaged" : " steps are damaged"));
}

absl::Status export_step(storage::Files& files, const std::string& step, const std::string& target,
                         const ModelChoice& choice, const ExportOptions& options, std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const at::ScalarType dtype, export_type(options.dtype));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> reader, StepReader::open(files, step));
  const Manifest& manifest = reader->manifest();
  TITAN_ASSIGN_OR_RETURN(const models::ModelSpec spec, model_of(step, manifest, choice));
  TITAN_RETURN_IF_ERROR(check_tensors(step, manifest, spec));
  const nlohmann::json training =
      manifest.config.is_object() ? manifest.config.value("training", nlohmann::json()) : nlohmann::json();
  const int64_t seq_len = training.is_object() ? training.value("seq_len", int64_t{0}) : 0;
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfMapper> mapper, model::make_hf_mapper(spec, seq_len));
  const HfExport plan{.dtype = dtype, .max_file_bytes = options.max_file_bytes, .tokenizer_folder = options.tokenizer};
  TITAN_RETURN_IF_ERROR(make_whole(files, target, [&](const std::string& folder) {
    return export_folder(files, *reader, *mapper, plan, folder,
                         [&](const std::string& file) { out << "writing " << file << std::endl; });
  }));
  out << target << ": step " << manifest.step << " of " << spec.name << " " << spec.flavor << " as " << options.dtype
      << "\n";
  return absl::OkStatus();
}

namespace {

// All of the model's values as files of the step `folder`, its manifest last; their number.
absl::StatusOr<int64_t> write_step(storage::Files& files, const HfFolder& weights, const HfMapper& mapper,
                                   const models::ModelSpec& spec, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(model::Model model, model::build(spec, {}));
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  // One shard a block, so that a large model never stands in memory whole.
  std::vector<ShardReport> reports;
  int64_t parameters = 0;
  for (const auto& block : model.blocks) {
    std::vector<Staged> parts;
    const auto add = [&](const std::string& fqn, const at::Tensor& value) {
      parts.push_back(
          {"model." + fqn, value.sizes().vec(), whole(value.sizes().vec()).offset, value.to(at::kFloat).contiguous()});
    };
    for (const nn::Parameter& parameter : block->parameters()) {
      TITAN_ASSIGN_OR_RETURN(at::Tensor value,
                             read_parameter(weights, mapper, parameter.fqn, parameter.shape, whole(parameter.shape)));
      parameters += value.numel();
      add(parameter.fqn, value);
    }
    block->init_buffers(at::kCPU, at::kFloat);
    for (const nn::Buffer& buffer : block->buffers()) {
      const std::vector<int64_t> shape = buffer.value.sizes().vec();
      TITAN_ASSIGN_OR_RETURN(at::Tensor value, read_parameter(weights, mapper, buffer.fqn, shape, whole(shape)));
      add(buffer.fqn, value.defined() ? value : buffer.value);  // Without a place there: as training starts.
    }
    TITAN_ASSIGN_OR_RETURN(ShardReport report,
                           write_shard(files, folder, {1, static_cast<int>(reports.size())}, parts));
    reports.push_back(std::move(report));
  }
  Manifest manifest{.step = 0, .full = false, .attempt = 1, .job_uid = "import", .world = 1};
  manifest.titan_version = TITAN_VERSION;
  manifest.model = models::to_json(spec);
  TITAN_RETURN_IF_ERROR(merge(reports, manifest));
  manifest.per_rank = {nullptr};
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(folder, kManifestName), to_text(manifest)));
  return parameters;
}

}  // namespace

absl::Status import_weights(storage::Files& files, const std::string& source, const std::string& step,
                            const ModelChoice& choice, std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const models::ModelSpec spec, model::find_spec(choice.name, choice.flavor, choice.library));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfMapper> mapper, model::make_hf_mapper(spec));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfFolder> weights, HfFolder::open(files, source));
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> warnings, check_hf_config(files, source, *mapper));
  for (const std::string& warning : warnings) out << "warning: " << warning << "\n";
  TITAN_RETURN_IF_ERROR(check_keys(*weights, *mapper));
  int64_t parameters = 0;
  TITAN_RETURN_IF_ERROR(make_whole(files, step, [&](const std::string& folder) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(parameters, write_step(files, *weights, *mapper, spec, folder));
    return absl::OkStatus();
  }));
  out << step << ": " << parameters << " parameters of " << spec.name << " " << spec.flavor << " from " << source
      << "\n";
  return absl::OkStatus();
}

}  // namespace titan::tools
