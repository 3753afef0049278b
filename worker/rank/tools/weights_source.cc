#include "worker/rank/tools/weights_source.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_torchtitan.h"
#include "worker/rank/checkpoint/formats/dcp/torch_file.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/formats/hugging_face/tied_head.h"
#include "worker/rank/checkpoint/formats/meta/meta_folder.h"
#include "worker/rank/checkpoint/loading/model_check.h"
#include "worker/rank/checkpoint/shards/tensor_view.h"
#include "worker/rank/tools/meta_source.h"
#include "worker/rank/tools/torch_export.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;

class HuggingFaceSource : public WeightsSource {
 public:
  static absl::StatusOr<std::unique_ptr<WeightsSource>> open(storage::Files& files, const std::string& path,
                                                             const HfMapper& mapper, const models::ModelSpec& spec) {
    auto source = std::make_unique<HuggingFaceSource>(mapper);
    TITAN_ASSIGN_OR_RETURN(source->weights_, HfFolder::open(files, path));
    TITAN_ASSIGN_OR_RETURN(source->warnings_, check_hf_config(files, path, mapper));
    TITAN_RETURN_IF_ERROR(check_keys(*source->weights_, mapper));
    const std::vector<int64_t> head = {spec.vocab_size, spec.dim};
    if (spec.tied_embeddings) TITAN_RETURN_IF_ERROR(check_hf_head(*source->weights_, mapper, head, whole(head)));
    for (const std::string& note : quantization_notes(*source->weights_, false)) source->warnings_.push_back(note);
    if (const int64_t quantized = source->weights_->quantized(); quantized > 0)
      source->notes_.push_back(absl::StrCat(counted(quantized, "quantized tensor"), " to float32"));
    source->note_layer_beyond(spec.n_layers);
    return source;
  }
  explicit HuggingFaceSource(const HfMapper& mapper) : mapper_(mapper) {}

  absl::StatusOr<at::Tensor> read(const std::string& fqn, const std::vector<int64_t>& shape, const Box& box) override {
    return read_parameter(*weights_, mapper_, fqn, shape, box);
  }

 private:
  // DeepSeek's releases have one more layer, which predicts further tokens. check_keys() accepts only that family's.
  void note_layer_beyond(int64_t layers) {
    const std::string prefix = absl::StrCat("model.layers.", layers, ".");
    const auto count = std::count_if(weights_->keys().begin(), weights_->keys().end(),
                                     [&](const std::string& key) { return absl::StartsWith(key, prefix); });
    if (count == 0) return;
    notes_.push_back(absl::StrCat(counted(count, "tensor"), " of layer ", layers,
                                  ", which predicts further tokens, not read: training has no such layer"));
  }

  const HfMapper& mapper_;
  std::unique_ptr<HfFolder> weights_;
};

// Sources with the names that torchtitan and Titan share, or with torchtune's.
class NamedSource : public WeightsSource {
 public:
  NamedSource(std::string path, std::string prefix) : path_(std::move(path)), prefix_(std::move(prefix)) {}

  // Checks that all names belong to parameters of the model.
  absl::Status check(const std::set<std::string>& names, const models::ModelSpec& spec) {
    const std::set<std::string> own = without_prefix(names);
    if (are_torchtune_names(own)) {
      TITAN_RETURN_IF_ERROR(annotate(check_torchtune_has(spec), path_));
      name_of_ = torchtune_name;
    }
    std::set<std::string> known;
    for (const models::ParameterSpec& one : models::parameters(spec)) known.insert(name_of_(one.fqn));
    if (spec.tied_embeddings) known.insert(kHeadName);
    has_tied_head_ = spec.tied_embeddings && own.contains(kHeadName);
    for (const std::string& name : own) {
      const bool derived = is_derived(name) || absl::EndsWith(name, "expert_bias");
      const bool other =
          prefix_.empty() && (absl::StartsWith(name, "optimizer.") || absl::StartsWith(name, "train_state."));
      if (!known.contains(name) && !derived && !other) {
        return absl::FailedPreconditionError(
            absl::StrCat(path_, " does not fit this model, which does not use ", prefix_, name,
                         "; give the model of these weights with --model and --flavor"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<at::Tensor> read(const std::string& fqn, const std::vector<int64_t>& shape, const Box& box) override {
    const std::string name = prefix_ + name_of_(fqn);
    const std::optional<std::vector<int64_t>> there = shape_of(name);
    if (!there && absl::EndsWith(fqn, "expert_bias")) return at::Tensor();
    if (!there) return absl::FailedPreconditionError(absl::StrCat(path_, " does not fit this model: it has no ", name));
    if (*there == shape) {
      TITAN_ASSIGN_OR_RETURN(at::Tensor value, read_named(name, box));
      if (has_tied_head_ && fqn == kEmbeddingName) TITAN_RETURN_IF_ERROR(check_tied(value, shape, box));
      return value;
    }
    return absl::FailedPreconditionError(absl::StrCat(path_, " does not fit this model: ", name, " is ",
                                                      shape_text(*there), " in the weights, but ", shape_text(shape),
                                                      " in the model"));
  }

 protected:
  virtual std::optional<std::vector<int64_t>> shape_of(const std::string& name) const = 0;
  virtual absl::StatusOr<at::Tensor> read_named(const std::string& name, const Box& box) = 0;

 private:
  std::set<std::string> without_prefix(const std::set<std::string>& names) const {
    std::set<std::string> found;
    for (const std::string& name : names) {
      if (absl::StartsWith(name, prefix_)) found.insert(name.substr(prefix_.size()));
    }
    return found;
  }

  // Checks that the head of the weights equals the embedding, because the model has no separate head.
  absl::Status check_tied(const at::Tensor& embedding, const std::vector<int64_t>& shape, const Box& box) {
    const std::string name = absl::StrCat(prefix_, kHeadName);
    if (shape_of(name) == shape) {
      TITAN_ASSIGN_OR_RETURN(const at::Tensor head, read_named(name, box));
      if (at::equal(head, embedding)) return absl::OkStatus();
    }
    return untied_head_error(path_, name, absl::StrCat(prefix_, name_of_(kEmbeddingName)));
  }

  std::string path_, prefix_;
  bool has_tied_head_ = false;
  std::function<std::string(const std::string& fqn)> name_of_ = [](const std::string& fqn) { return fqn; };
};

class DcpSource : public NamedSource {
 public:
  DcpSource(std::unique_ptr<DcpFolder> folder, const std::string& prefix)
      : NamedSource(folder->folder(), prefix), folder_(std::move(folder)) {}

 protected:
  std::optional<std::vector<int64_t>> shape_of(const std::string& name) const override {
    const auto found = folder_->metadata().tensors.find(name);
    if (found == folder_->metadata().tensors.end()) return std::nullopt;
    return found->second.shape;
  }
  absl::StatusOr<at::Tensor> read_named(const std::string& name, const Box& box) override {
    return folder_->read(name, box);
  }

 private:
  std::unique_ptr<DcpFolder> folder_;
};

class TorchFileSource : public NamedSource {
 public:
  explicit TorchFileSource(std::unique_ptr<TorchFile> file) : NamedSource(file->path(), ""), file_(std::move(file)) {}

 protected:
  std::optional<std::vector<int64_t>> shape_of(const std::string& name) const override {
    const auto found = file_->tensors().find(name);
    if (found == file_->tensors().end()) return std::nullopt;
    return found->second.shape;
  }
  // Boxes of one tensor are requested consecutively, so each tensor is read once.
  absl::StatusOr<at::Tensor> read_named(const std::string& name, const Box& box) override {
    if (name != name_) {
      TITAN_ASSIGN_OR_RETURN(tensor_, file_->read(name));
      name_ = name;
    }
    return part_of(tensor_, whole(tensor_.sizes().vec()), box);
  }

 private:
  std::unique_ptr<TorchFile> file_;
  std::string name_;  // Name of the newest tensor.
  at::Tensor tensor_;
};

template <typename Map>
std::set<std::string> names_of(const Map& map) {
  std::set<std::string> names;
  for (const auto& [name, value] : map) names.insert(name);
  return names;
}

absl::StatusOr<std::unique_ptr<WeightsSource>> open_dcp(storage::Files& files, const std::string& path,
                                                        const models::ModelSpec& spec) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<DcpFolder> folder, DcpFolder::open(files, path));
  const std::set<std::string> names = names_of(folder->metadata().tensors);
  const bool nested = folder->metadata().tensors.contains("model.tok_embeddings.weight");
  auto source = std::make_unique<DcpSource>(std::move(folder), nested ? "model." : "");
  TITAN_RETURN_IF_ERROR(source->check(names, spec));
  return source;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightsSource>> open_weights(storage::Files& files, const std::string& path,
                                                            const models::ModelSpec& spec, const HfMapper& mapper) {
  if (files.exists(storage::join_path(path, kDcpMetadataName))) return open_dcp(files, path, spec);
  if (MetaFolder::is_one(files, path)) return open_meta(files, path, spec);
  if (files.is_folder(path) || !files.exists(path))
    return HuggingFaceSource::open(files, hf_config::weights_folder(files, path), mapper, spec);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> file, TorchFile::open(files, path));
  const std::set<std::string> names = names_of(file->tensors());
  auto source = std::make_unique<TorchFileSource>(std::move(file));
  TITAN_RETURN_IF_ERROR(source->check(names, spec));
  return source;
}

}  // namespace titan::tools
