#include "worker/rank/tools/offline.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <set>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/config_flavor.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/spec_checks.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/gguf/gguf_export.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/formats/meta/meta_folder.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_export.h"
#include "worker/rank/checkpoint/loading/model_check.h"
#include "worker/rank/checkpoint/shards/narrowing.h"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/shards/written_step.h"
#include "worker/rank/checkpoint/steps/step_folders.h"
#include "worker/rank/model/decoder/options.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/tools/adapter_export.h"
#include "worker/rank/tools/dcp_export.h"
#include "worker/rank/tools/meta_source.h"
#include "worker/rank/tools/model_choice.h"
#include "worker/rank/tools/torch_export.h"
#include "worker/rank/tools/weights_source.h"
#include "worker/rank/tools/whole_folder.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;  // Most names here are from checkpoint.

// Returns the step folders at `path`. Folders with weights in another form are reported on `others`, because they have
// no checksums and nothing to inspect.
absl::StatusOr<std::vector<std::string>> steps_of(storage::Files& files, const std::string& path,
                                                  std::ostream& others) {
  if (files.exists(storage::join_path(path, kManifestName))) return std::vector<std::string>{path};
  TITAN_ASSIGN_OR_RETURN(const std::vector<StepFolder> steps, list_steps(files, path));
  std::vector<std::string> found;
  for (const StepFolder& step : steps) {
    if (step.has_manifest) {
      found.push_back(step.path);
    } else if (step.has_hf_index || step.has_dcp) {
      others << step.path << ": skipped, holds " << (step.has_hf_index ? "Hugging Face weights" : "a DCP checkpoint")
             << "\n";
    }
  }
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, ": neither a step-N folder with a manifest.json nor a folder of such folders"));
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

// Prints the progress of reading at most every ten seconds.
std::function<void(int64_t, int64_t)> progress_to(std::ostream& out, const std::string& path) {
  return [&out, path, last = absl::Now()](int64_t done, int64_t all) mutable {
    if (absl::Now() - last < absl::Seconds(10)) return;
    last = absl::Now();
    out << path << ": " << mebibytes(done) << " of " << mebibytes(all) << " read" << std::endl;
  };
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

constexpr char kQ8[] = "q8_0";              // Only GGUF has this type. Its other tensors are float32.
constexpr char kFloat8[] = "float8_block";  // Only Hugging Face folders have this type. Other tensors are bfloat16.

absl::StatusOr<at::ScalarType> export_type(const std::string& dtype, const std::string& format) {
  const bool gguf = format == "gguf";
  if (dtype.empty() || dtype == "float32" || (gguf && dtype == kQ8)) return at::kFloat;
  if (dtype == "float16") return at::kHalf;
  if (dtype == "bfloat16" || (format == "hf" && dtype == kFloat8)) return at::kBFloat16;
  return absl::InvalidArgumentError(absl::StrCat("--dtype ", dtype, ": use float32, float16 or bfloat16",
                                                 gguf               ? ", or q8_0"
                                                 : dtype == kQ8     ? "; q8_0 is for --format gguf"
                                                 : dtype == kFloat8 ? "; float8_block is for --format hf"
                                                 : format == "hf"   ? ", or float8_block"
                                                                    : ""));
}

gguf::Type gguf_type(const std::string& dtype, at::ScalarType type) {
  if (dtype == kQ8) return gguf::Type::kQ8_0;
  return type == at::kHalf ? gguf::Type::kF16 : type == at::kBFloat16 ? gguf::Type::kBF16 : gguf::Type::kF32;
}

// Checks that a step has every tensor of the model in its shape, and no others.
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
        return misfit(absl::StrCat(key, " is [", absl::StrJoin(record->shape, ", "), "] in the checkpoint, but [",
                                   absl::StrJoin(parameter.shape, ", "), "] in the model"));
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

constexpr int64_t kFloatBytes = 4;

// Reads a box of a parameter or buffer of the model. Undefined: the source does not store it.
using ReadValue = absl::FunctionRef<absl::StatusOr<at::Tensor>(const std::string& fqn,
                                                               const std::vector<int64_t>& shape, const Box& box)>;

// Writes files of a step with pieces of tensors up to a size, so that a large model is never in memory as a whole.
class StepFiles {
 public:
  StepFiles(storage::Files& files, const std::string& folder, int64_t file_bytes)
      : files_(files), folder_(folder), file_bytes_(file_bytes) {}

  absl::Status add(const std::string& fqn, const std::vector<int64_t>& shape, const Box& box, const at::Tensor& value) {
    parts_.push_back({"model." + fqn, shape, box.offset, value.to(at::kFloat).contiguous()});
    held_ += static_cast<int64_t>(parts_.back().data.nbytes());
    return held_ < file_bytes_ ? absl::OkStatus() : flush();
  }
  absl::Status flush() {
    if (parts_.empty()) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(WrittenShard shard,
                           write_shard(files_, folder_, {1, static_cast<int>(shards_.size())}, parts_));
    shards_.push_back(std::move(shard));
    parts_.clear();
    held_ = 0;
    return absl::OkStatus();
  }
  const std::vector<WrittenShard>& shards() const { return shards_; }

 private:
  storage::Files& files_;
  const std::string& folder_;
  int64_t file_bytes_;
  std::vector<Staged> parts_;
  int64_t held_ = 0;
  std::vector<WrittenShard> shards_;
};

// Writes all of the model's values as files of the step `folder`, the manifest last, and returns the number of
// parameters. `file_bytes`: largest amount read at once, and size at which a file is closed.
absl::StatusOr<int64_t> write_step(storage::Files& files, ReadValue read, const models::ModelSpec& spec,
                                   const std::string& job_uid, const std::string& folder, int64_t file_bytes,
                                   absl::FunctionRef<void(const std::string& block)> progress) {
  TITAN_ASSIGN_OR_RETURN(model::Model model, model::build(spec, {}));
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  StepFiles step(files, folder, file_bytes);
  int64_t parameters = 0;
  models::ModelSpec held = spec;
  for (const auto& block : model.blocks) {
    progress(block->name());
    for (const nn::Parameter& parameter : block->parameters()) {
      const std::vector<Box> pieces = cut_along(whole(parameter.shape), 0, file_bytes / kFloatBytes);
      for (const Box& box : pieces) {
        TITAN_ASSIGN_OR_RETURN(const at::Tensor value, read(parameter.fqn, parameter.shape, box));
        parameters += value.numel();
        TITAN_RETURN_IF_ERROR(step.add(parameter.fqn, parameter.shape, box, value));
        if (pieces.size() > 1) TITAN_RETURN_IF_ERROR(step.flush());  // A file holds one piece of a tensor.
      }
    }
    block->init_buffers(at::kCPU, at::kFloat);
    for (const nn::Buffer& buffer : block->buffers()) {
      const std::vector<int64_t> shape = buffer.value.sizes().vec();
      TITAN_ASSIGN_OR_RETURN(const at::Tensor value, read(buffer.fqn, shape, whole(shape)));
      // If the source does not store the buffer, it starts as in training, and a job that begins with it does not move
      // it by default.
      if (!value.defined() && held.moe) held.moe->load_balance_coeff = 0;
      TITAN_RETURN_IF_ERROR(step.add(buffer.fqn, shape, whole(shape), value.defined() ? value : buffer.value));
    }
    TITAN_RETURN_IF_ERROR(step.flush());
  }
  Manifest manifest{.step = 0, .full = false, .attempt = 1, .job_uid = job_uid, .world = 1};
  manifest.titan_version = TITAN_VERSION;
  manifest.model = models::to_json(held);
  TITAN_RETURN_IF_ERROR(complete(step.shards(), manifest));
  manifest.per_rank = {nullptr};
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(folder, kManifestName), to_text(manifest)));
  return parameters;
}

// Writes the adapters of `step` and the model `base` as one model-only step in `folder`.
absl::Status write_merged(storage::Files& files, StepReader& step, const HfMapper& mapper,
                          const models::ModelSpec& spec, const std::string& base, const std::string& folder) {
  std::unique_ptr<StepReader> model;
  std::unique_ptr<HfFolder> weights;
  if (files.exists(storage::join_path(base, kManifestName))) {
    TITAN_ASSIGN_OR_RETURN(model, StepReader::open(files, base));
    TITAN_RETURN_IF_ERROR(
        check_model(model->manifest(), spec, Use::kInitial, base, "name the model of the adapters with --base")
            .status());
    TITAN_RETURN_IF_ERROR(check_tensors(base, model->manifest(), spec));
  } else {
    TITAN_ASSIGN_OR_RETURN(weights, HfFolder::open(files, base));
    TITAN_RETURN_IF_ERROR(check_hf_config(files, base, mapper).status());
    TITAN_RETURN_IF_ERROR(check_keys(*weights, mapper));
  }
  const auto read = [&](const std::string& fqn, const std::vector<int64_t>& shape,
                        const Box& box) -> absl::StatusOr<at::Tensor> {
    at::Tensor value;
    if (weights != nullptr) {
      TITAN_ASSIGN_OR_RETURN(value, read_parameter(*weights, mapper, fqn, shape, box));
    } else if (const TensorRecord* record = model->manifest().find("model." + fqn)) {
      value = at::empty(record->shape, at::TensorOptions().dtype(record->dtype));
      TITAN_RETURN_IF_ERROR(model->read(*record, whole(record->shape), value));
    }
    return value.defined() ? with_adapter(step, fqn, value) : value;
  };
  // Reads whole tensors, because adapters are added to those.
  return write_step(files, read, spec, "merge", folder, INT64_MAX, [](const std::string&) {}).status();
}

constexpr size_t kShownWarnings = 16;

void print_warnings(const std::vector<std::string>& warnings, std::ostream& out) {
  for (size_t i = 0; i < std::min(warnings.size(), kShownWarnings); ++i) out << "warning: " << warnings[i] << "\n";
  if (warnings.size() > kShownWarnings)
    out << "warning: and " << counted(warnings.size() - kShownWarnings, "warning") << " like these\n";
}

// Returns the files next to the weights, from the folder that the command line names or the step's job used.
HfAssets assets_of(const Manifest& manifest, const std::string& tokenizer) {
  if (!tokenizer.empty()) return {.folder = tokenizer, .required = true};
  const nlohmann::json model =
      manifest.config.is_object() ? manifest.config.value("model", nlohmann::json()) : nlohmann::json();
  return {.folder = model.is_object() ? model.value("hf_assets_path", "") : ""};
}

// Returns the positions of a model as it was trained on rows of `seq_len` tokens; 0: of its maximum.
onnx::Positions positions_of(const models::ModelSpec& spec, int64_t seq_len) {
  const int64_t trained = seq_len > 0 ? seq_len : spec.max_seq_len;
  onnx::Positions positions{.rope = model::rope_options(spec, trained)};
  constexpr int64_t kMostRows = 1 << 18;  // Llama 4's tables for ten million positions would take gigabytes.
  positions.rope.max_seq_len = std::max(trained, std::min(spec.max_seq_len, kMostRows));
  if (spec.attention == models::Attention::kLatent)
    positions.latent_scale = model::latent_options(spec, 0, {}, trained).softmax_scale;
  return positions;
}

// Checks the name of the new folder. Weights begin a job, so they are step 0, and loading rejects a folder named like
// another step.
absl::Status check_seed(const std::string& step) {
  const std::string path = step.substr(0, step.find_last_not_of('/') + 1);
  const std::string name = path.substr(path.rfind('/') + 1);
  if (step_of(name) <= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(step, ": weights are imported as step 0, and jobs do not load them under the name ", name,
                   ": name the folder step-0"));
}

// Returns the model of the folder's own config.json or params.json.
absl::StatusOr<models::ModelSpec> model_of_folder(storage::Files& files, const std::string& folder) {
  if (MetaFolder::is_one(files, folder)) return model_of_meta(files, folder);
  const std::string path = storage::join_path(folder, "config.json");
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, 1 << 24));
  auto read = hf_config::read_model(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false));
  if (!read.ok()) return annotate(read.status(), folder);
  return read->spec;
}

// Returns the model as which weights are imported. `taken` says which numbers of a flavor come from the weights.
absl::StatusOr<models::ModelSpec> model_to_import(storage::Files& files, const std::string& source,
                                                  const ModelChoice& choice, std::string& taken) {
  const std::string folder = hf_config::weights_folder(files, source);
  if (choice.flavor == config::kConfigFlavor) {
    TITAN_ASSIGN_OR_RETURN(models::ModelSpec spec, model_of_folder(files, folder));
    if (choice.name.empty() || spec.name == choice.name) return spec;
    return absl::FailedPreconditionError(
        absl::StrCat(source, ": its model is of family ", spec.name, ", not ", choice.name, ": set --model"));
  }
  if (choice.name.empty()) {
    return absl::InvalidArgumentError("--model is required, unless --flavor config.json takes the folder's own model");
  }
  TITAN_ASSIGN_OR_RETURN(models::ModelSpec spec, model::find_spec(choice.name, choice.flavor, choice.library));
  if (!files.is_folder(source)) return spec;
  if (MetaFolder::is_one(files, source)) return with_numbers_of_meta(files, source, spec, taken);
  return with_numbers_of_hf(files, folder, spec, taken);
}

// Checks the options against the contents of the step.
absl::Status check_form(const std::string& step, bool full, bool adapters, const ExportOptions& options) {
  const bool wants_adapters = options.format == "peft" || options.merge;
  if (options.format == "peft" && options.merge)
    return absl::InvalidArgumentError("--merge makes a whole model, but --format peft writes adapters");
  if (options.merge && options.format != "hf" && options.format != "gguf" && options.format != "onnx")
    return absl::InvalidArgumentError(
        absl::StrCat("--format ", options.format, " exports steps of whole models: omit --merge"));
  if (!options.gguf_pre.empty() && options.format != "gguf")
    return absl::InvalidArgumentError("--gguf-pre is for --format gguf: other formats copy the tokenizer's files");
  if ((options.onnx_operators != "standard" || options.onnx_opset != 0) && options.format != "onnx")
    return absl::InvalidArgumentError("--onnx-operators and --onnx-opset are for --format onnx");
  if (options.model_only && options.format != "dcp")
    return absl::InvalidArgumentError("--model-only is for --format dcp: the other formats hold only the model");
  if (full && options.format == "dcp" && !options.model_only && !options.dtype.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype ", options.dtype, ": ", step,
                     " is exported with its optimizer and without type conversion: omit --dtype, or add --model-only"));
  }
  if (adapters && !wants_adapters) {
    return absl::FailedPreconditionError(absl::StrCat(
        step, ": holds adapters without their model: --format peft writes them, --merge adds them to its weights"));
  }
  if (adapters || !wants_adapters) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(step, ": holds a whole model and no adapters: omit --format peft and --merge"));
}

}  // namespace

absl::Status inspect(storage::Files& files, const std::string& path, bool tensors, bool json, std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> steps, steps_of(files, path, json ? std::cerr : out));
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
    const std::vector<int64_t> pieces = tensors ? manifest.piece_counts() : std::vector<int64_t>();
    if (json) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        const TensorRecord& tensor = manifest.tensors[i];
        about["shapes"][tensor.key] = {
            {"dtype", type_name(tensor.dtype)}, {"shape", tensor.shape}, {"pieces", pieces[i]}};
      }
      out << about.dump() << "\n";
      continue;
    }
    out << step << "  step " << manifest.step << "  " << (manifest.full ? "full" : "model only") << "  "
        << (manifest.model.is_null() ? "model not recorded" : models::label(manifest.model)) << "  attempt "
        << manifest.attempt << "  " << counted(manifest.world, "rank") << "  "
        << counted(manifest.tensors.size(), "tensor") << "  " << mebibytes(bytes_of(manifest)) << "\n";
    for (size_t i = 0; i < pieces.size(); ++i) {
      const TensorRecord& tensor = manifest.tensors[i];
      out << "  " << tensor.key << "  " << type_name(tensor.dtype) << " [" << absl::StrJoin(tensor.shape, ", ") << "]  "
          << counted(static_cast<size_t>(pieces[i]), "piece") << "\n";
    }
  }
  return worst;
}

absl::Status verify(storage::Files& files, const std::string& path, std::ostream& out) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> steps, steps_of(files, path, out));
  int damaged = 0;
  for (const std::string& step : steps) {
    const auto reader = StepReader::open(files, step);
    std::vector<absl::Status> problems;
    if (reader.ok()) {
      problems = (*reader)->verify(progress_to(std::cerr, step));
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
  TITAN_ASSIGN_OR_RETURN(const at::ScalarType dtype, export_type(options.dtype, options.format));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> reader, StepReader::open(files, step));
  const Manifest& manifest = reader->manifest();
  const bool adapters = holds_adapters(manifest);
  TITAN_RETURN_IF_ERROR(check_form(step, manifest.full, adapters, options));
  TITAN_ASSIGN_OR_RETURN(const models::ModelSpec spec, model_of(step, manifest, choice));
  if (!adapters) TITAN_RETURN_IF_ERROR(check_tensors(step, manifest, spec));
  const nlohmann::json training =
      manifest.config.is_object() ? manifest.config.value("training", nlohmann::json()) : nlohmann::json();
  const int64_t seq_len = training.is_object() ? training.value("seq_len", int64_t{0}) : 0;
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfMapper> mapper, model::make_hf_mapper(spec, seq_len));
  const Overflow overflow = options.allow_overflow ? Overflow::kWarn : Overflow::kRefuse;
  const HfExport plan{.dtype = dtype,
                      .max_file_bytes = options.max_file_bytes,
                      .assets = assets_of(manifest, options.tokenizer),
                      .overflow = overflow,
                      .float8 = options.dtype == kFloat8};
  const auto progress = [&](const std::string& file) { out << "writing " << file << std::endl; };
  std::vector<std::string> warnings;
  const absl::Status made = write_atomically(files, target, [&](const std::string& folder) -> absl::Status {
    if (options.format == "dcp") {
      const DcpExport dcp{.model_only = options.model_only,
                          .dtype = dtype,
                          .overflow = overflow,
                          .max_file_bytes = options.max_file_bytes,
                          .tokenizer = options.tokenizer};
      TITAN_ASSIGN_OR_RETURN(warnings, write_dcp(files, *reader, spec, dcp, folder, progress));
      return absl::OkStatus();
    }
    if (absl::StartsWith(options.format, "torch")) {
      const TorchExport torch{.torchtune = options.format == "torchtune", .dtype = dtype, .overflow = overflow};
      TITAN_ASSIGN_OR_RETURN(warnings, write_torch(files, *reader, spec, torch, folder, progress));
      return absl::OkStatus();
    }
    if (options.format == "peft") {
      TITAN_ASSIGN_OR_RETURN(warnings, write_peft(files, *reader, *mapper, spec, plan, options.base, folder));
      return absl::OkStatus();
    }
    const auto write_weights = [&](StepReader& whole_model) -> absl::Status {
      if (options.format == "gguf") {
        const gguf::Export to{.type = gguf_type(options.dtype, dtype),
                              .name = absl::StrCat(spec.name, " ", spec.flavor),
                              .assets = plan.assets,
                              .split = options.gguf_pre,
                              .overflow = overflow};
        TITAN_ASSIGN_OR_RETURN(warnings, gguf::write_gguf(files, whole_model, *mapper, to, folder, progress));
        return absl::OkStatus();
      }
      if (options.format == "onnx") {
        const onnx::Export to{.microsoft = options.onnx_operators == "microsoft",
                              .opset = options.onnx_opset,
                              .positions = positions_of(spec, seq_len),
                              .hugging_face = plan};
        TITAN_ASSIGN_OR_RETURN(warnings, onnx::write_onnx(files, whole_model, *mapper, spec, to, folder, progress));
        return absl::OkStatus();
      }
      TITAN_ASSIGN_OR_RETURN(warnings, export_folder(files, whole_model, *mapper, plan, folder, progress));
      return absl::OkStatus();
    };
    if (!adapters) return write_weights(*reader);
    // Some files combine several tensors, so the folder is made from whole tensors.
    const std::string merged = storage::join_path(folder, ".merged");
    TITAN_ASSIGN_OR_RETURN(const std::string base, base_model_path(step, manifest, options.base));
    absl::Status status = write_merged(files, *reader, *mapper, spec, base, merged);
    if (status.ok()) {
      absl::StatusOr<std::unique_ptr<StepReader>> whole_model = StepReader::open(files, merged);
      status = whole_model.ok() ? write_weights(**whole_model) : whole_model.status();
    }
    files.remove_folder(merged).IgnoreError();
    return status;
  });
  if (absl::IsOutOfRange(made)) {
    return absl::OutOfRangeError(absl::StrCat(
        std::string(made.message()), ": nothing was written; export as bfloat16 or float32",
        options.dtype == "float8_block" ? "" : ", or write such numbers as infinite with --allow-overflow"));
  }
  TITAN_RETURN_IF_ERROR(made);
  print_warnings(warnings, out);
  const bool whole_state = options.format == "dcp" && manifest.full && !options.model_only;
  const std::string type = options.dtype.empty() ? "float32" : options.dtype;
  out << target << ": step " << manifest.step << " of " << spec.name << " " << spec.flavor
      << (whole_state ? " to resume from" : " as " + type) << "\n";
  return absl::OkStatus();
}

absl::Status import_weights(storage::Files& files, const std::string& source, const std::string& step,
                            const ModelChoice& choice, std::ostream& out, int64_t max_file_bytes) {
  TITAN_RETURN_IF_ERROR(check_seed(step));
  std::string taken;
  TITAN_ASSIGN_OR_RETURN(const models::ModelSpec spec, model_to_import(files, source, choice, taken));
  if (!taken.empty()) out << taken << "\n";
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfMapper> mapper, model::make_hf_mapper(spec));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<WeightsSource> weights, open_weights(files, source, spec, *mapper));
  print_warnings(weights->warnings(), out);
  for (const std::string& note : weights->notes()) out << note << "\n";
  int64_t parameters = 0;
  std::vector<std::string> warnings;
  TITAN_RETURN_IF_ERROR(write_atomically(files, step, [&](const std::string& folder) -> absl::Status {
    const auto read = [&](const std::string& fqn, const std::vector<int64_t>& shape,
                          const Box& box) -> absl::StatusOr<at::Tensor> {
      TITAN_ASSIGN_OR_RETURN(at::Tensor value, weights->read(fqn, shape, box));
      if (value.defined()) TITAN_RETURN_IF_ERROR(narrow("model." + fqn, at::kFloat, Overflow::kWarn, value, warnings));
      return value;
    };
    const auto progress = [&](const std::string& block) { out << "reading " << block << std::endl; };
    TITAN_ASSIGN_OR_RETURN(parameters, write_step(files, read, spec, "import", folder, max_file_bytes, progress));
    return absl::OkStatus();
  }));
  print_warnings(warnings, out);
  out << step << ": " << parameters << " parameters of " << spec.name << " " << spec.flavor << " from " << source
      << "\n";
  return absl::OkStatus();
}

}  // namespace titan::tools
