#include "worker/tools/offline.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/hf_folder.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/shard.h"
#include "worker/checkpoint/step_folders.h"
#include "worker/model/hf_mapper.h"
#include "worker/model/model.h"

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

absl::Status must_not_exist(storage::Files& files, const std::string& path) {
  if (!files.exists(path)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, ": exists already; name a new folder"));
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
    out << step << "  step " << manifest.step << "  " << (manifest.full ? "full" : "model only") << "  attempt "
        << manifest.attempt << "  " << manifest.world << (manifest.world == 1 ? " rank  " : " ranks  ")
        << manifest.tensors.size() << " tensors  " << mebibytes(bytes_of(manifest)) << "\n";
    if (!tensors) continue;
    for (const TensorRecord& tensor : manifest.tensors) {
      out << "  " << tensor.key << "  " << type_name(tensor.dtype) << " [" << absl::StrJoin(tensor.shape, ", ") << "]  "
          << tensor.pieces.size() << (tensor.pieces.size() == 1 ? " piece\n" : " pieces\n");
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
                         const models::ModelSpec& spec, const ExportOptions& options, std::ostream& out) {
  TITAN_RETURN_IF_ERROR(must_not_exist(files, target));
  TITAN_ASSIGN_OR_RETURN(const at::ScalarType dtype, export_type(options.dtype));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfMapper> mapper, model::make_hf_mapper(spec));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> reader, StepReader::open(files, step));
  const HfExport plan{.dtype = dtype, .max_file_bytes = options.max_file_bytes, .tokenizer_folder = options.tokenizer};
  TITAN_RETURN_IF_ERROR(export_folder(files, *reader, *mapper, plan, target,
                                      [&](const std::string& file) { out << "writing " << file << std::endl; }));
  out << target << ": step " << reader->manifest().step << " of " << spec.name << " " << spec.flavor << " as "
      << options.dtype << "\n";
  return absl::OkStatus();
}

absl::Status import_weights(storage::Files& files, const std::string& source, const std::string& step,
                            const models::ModelSpec& spec, std::ostream& out) {
  TITAN_RETURN_IF_ERROR(must_not_exist(files, storage::join_path(step, kManifestName)));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfMapper> mapper, model::make_hf_mapper(spec));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfFolder> weights, HfFolder::open(files, source));
  TITAN_RETURN_IF_ERROR(check_keys(*weights, *mapper));
  TITAN_ASSIGN_OR_RETURN(model::Model model, model::build(spec, {}));
  TITAN_RETURN_IF_ERROR(files.make_folders(step));
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
                             read_parameter(*weights, *mapper, parameter.fqn, parameter.shape, whole(parameter.shape)));
      parameters += value.numel();
      add(parameter.fqn, value);
    }
    block->init_buffers(at::kCPU, at::kFloat);
    for (const nn::Buffer& buffer : block->buffers()) {
      const std::vector<int64_t> shape = buffer.value.sizes().vec();
      TITAN_ASSIGN_OR_RETURN(at::Tensor value, read_parameter(*weights, *mapper, buffer.fqn, shape, whole(shape)));
      add(buffer.fqn, value.defined() ? value : buffer.value);  // Without a place there: as training starts.
    }
    TITAN_ASSIGN_OR_RETURN(ShardReport report, write_shard(files, step, {1, static_cast<int>(reports.size())}, parts));
    reports.push_back(std::move(report));
  }
  Manifest manifest{.step = 0, .full = false, .attempt = 1, .job_uid = "import", .world = 1};
  TITAN_RETURN_IF_ERROR(merge(reports, manifest));
  manifest.per_rank = {nullptr};
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(step, kManifestName), to_text(manifest)));
  out << step << ": " << parameters << " parameters of " << spec.name << " " << spec.flavor << " from " << source
      << "\n";
  return absl::OkStatus();
}

}  // namespace titan::tools
