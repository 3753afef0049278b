#include "worker/rank/tools/tensor_folder.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_torchtitan.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/formats/hugging_face/tied_head.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/registry.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;  // Most names here are from checkpoint.

constexpr char kOfModel[] = "model.";
std::string fqn_of(const std::string& key) { return key.substr(sizeof kOfModel - 1); }

// Removes a tied head if it equals the embedding. A different head is a separate tensor.
absl::Status leave_out_tied(TensorFolder& folder, const std::string& head) {
  const auto find = [&](const std::string& key) {
    return std::find_if(folder.tensors().begin(), folder.tensors().end(),
                        [&](const NamedTensor& one) { return one.key == key; });
  };
  const auto own = find(head), embedding = find(absl::StrCat(kOfModel, kEmbeddingName));
  if (own == folder.tensors().end() || embedding == folder.tensors().end()) return absl::OkStatus();
  if (own->shape != embedding->shape) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const bool same,
                         same_numbers(
                             whole(own->shape), [&](const Box& part) { return folder.read(*own, part); },
                             [&](const Box& part) { return folder.read(*embedding, part); }));
  if (same) folder.remove_tensors([&](const NamedTensor& one) { return one.key == head; });
  return absl::OkStatus();
}

class Step : public TensorFolder {
 public:
  explicit Step(std::unique_ptr<StepReader> reader) : reader_(std::move(reader)) {
    for (const TensorRecord& one : reader_->manifest().tensors)
      tensors_.push_back({one.key, one.dtype, one.shape, absl::StartsWith(one.key, kOfModel)});
  }
  const StepReader& reader() const { return *reader_; }

  absl::StatusOr<at::Tensor> read(const NamedTensor& tensor, const Box& box) override {
    at::Tensor out = at::empty(box.shape, at::TensorOptions().dtype(tensor.dtype));
    TITAN_RETURN_IF_ERROR(reader_->read(*reader_->manifest().find(tensor.key), box, out));
    return out;
  }

 private:
  std::unique_ptr<StepReader> reader_;
};

// A torch.distributed.checkpoint folder under its own names.
class Dcp : public TensorFolder {
 public:
  explicit Dcp(std::unique_ptr<DcpFolder> folder) : folder_(std::move(folder)), names_(folder_->metadata()) {
    for (const auto& [key, one] : folder_->metadata().tensors)
      tensors_.push_back({key, one.dtype, one.shape, !names_.model_key(key).empty()});
  }

  absl::StatusOr<at::Tensor> read(const NamedTensor& tensor, const Box& box) override {
    return folder_->read(tensor.key, box);
  }

 protected:
  std::unique_ptr<DcpFolder> folder_;
  DcpNames names_;
};

// The same folder under a step's names.
class RenamedDcp : public Dcp {
 public:
  explicit RenamedDcp(std::unique_ptr<DcpFolder> folder) : Dcp(std::move(folder)) {
    std::vector<NamedTensor> renamed;
    for (NamedTensor& one : tensors_) {
      const std::string key = one.of_model ? names_.model_key(one.key) : names_.optimizer_key(one.key);
      if (one.of_model && is_derived(key)) continue;
      std::vector<std::string>& there = there_[key.empty() ? one.key : key];
      there.push_back(one.key);
      if (!key.empty()) one.key = key;
      if (there.size() == 1) renamed.push_back(std::move(one));
    }
    tensors_ = std::move(renamed);
    std::sort(tensors_.begin(), tensors_.end(),
              [](const NamedTensor& a, const NamedTensor& b) { return a.key < b.key; });
  }

  absl::StatusOr<at::Tensor> read(const NamedTensor& tensor, const Box& box) override {
    const std::vector<std::string>& there = there_.at(tensor.key);
    TITAN_ASSIGN_OR_RETURN(const at::Tensor first, folder_->read(there[0], box));
    for (size_t i = 1; i < there.size(); ++i) {  // Step counts, of which a step has only one.
      TITAN_ASSIGN_OR_RETURN(const at::Tensor other, folder_->read(there[i], box));
      if (!at::equal(first, other))
        return absl::FailedPreconditionError(absl::StrCat(folder_->folder(), ": ", there[0], " and ", there[i],
                                                          " differ: its parameters were not trained together"));
    }
    return first;
  }

 private:
  std::map<std::string, std::vector<std::string>> there_;  // The folder's names by a step's names.
};

// Hugging Face weights under their own names.
class HuggingFace : public TensorFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TensorFolder>> open(std::unique_ptr<HfFolder> weights) {
    auto made = std::make_unique<HuggingFace>(std::move(weights));
    for (const std::string& key : made->weights_->keys()) TITAN_RETURN_IF_ERROR(made->add(key));
    return made;
  }
  explicit HuggingFace(std::unique_ptr<HfFolder> weights) : weights_(std::move(weights)) {}

  absl::StatusOr<at::Tensor> read(const NamedTensor& tensor, const Box& box) override {
    return weights_->read(tensor.key, box);
  }

 protected:
  // Lists a tensor. Scales are part of the tensor to which they belong.
  absl::Status add(const std::string& key) {
    if (const std::string scaled = scaled_by(key); !scaled.empty() && weights_->has(scaled)) return absl::OkStatus();
    TITAN_ASSIGN_OR_RETURN(const Coded coded, weights_->coded(key));
    TITAN_ASSIGN_OR_RETURN(const at::ScalarType dtype, weights_->dtype(key));
    tensors_.push_back({key, dtype, coded.shape});
    return absl::OkStatus();
  }

  std::unique_ptr<HfFolder> weights_;
};

// Hugging Face weights under the names of their model. Tensors that the model does not use keep their names.
class RenamedHuggingFace : public HuggingFace {
 public:
  static absl::StatusOr<std::unique_ptr<TensorFolder>> open(std::unique_ptr<HfFolder> weights,
                                                            const models::ModelSpec& spec,
                                                            std::shared_ptr<const HfMapper> mapper) {
    auto made = std::make_unique<RenamedHuggingFace>(std::move(weights), std::move(mapper));
    for (const models::ParameterSpec& one : models::parameters(spec))
      TITAN_RETURN_IF_ERROR(made->add_ours(one.fqn, one.shape));
    for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
      if (!spec.layer_has_experts(layer)) continue;
      TITAN_RETURN_IF_ERROR(
          made->add_ours(absl::StrCat("layers.", layer, ".moe.expert_bias"), {spec.moe->num_experts}));
    }
    for (const std::string& key : made->weights_->keys()) {
      if (!made->mapper_->knows(key)) TITAN_RETURN_IF_ERROR(made->add(key));
    }
    if (!spec.tied_embeddings || !made->weights_->has(kHfHeadName)) return made;
    TITAN_RETURN_IF_ERROR(made->add(kHfHeadName));
    TITAN_RETURN_IF_ERROR(leave_out_tied(*made, kHfHeadName));
    return made;
  }
  RenamedHuggingFace(std::unique_ptr<HfFolder> weights, std::shared_ptr<const HfMapper> mapper)
      : HuggingFace(std::move(weights)), mapper_(std::move(mapper)) {}

  absl::StatusOr<at::Tensor> read(const NamedTensor& tensor, const Box& box) override {
    if (!ours_.contains(tensor.key)) return HuggingFace::read(tensor, box);
    TITAN_ASSIGN_OR_RETURN(const at::Tensor read,
                           read_parameter(*weights_, *mapper_, fqn_of(tensor.key), tensor.shape, box));
    return read.to(tensor.dtype);
  }

 private:
  absl::Status add_ours(const std::string& fqn, const std::vector<int64_t>& shape) {
    TITAN_ASSIGN_OR_RETURN(const std::optional<HfLayout> layout, layout_in(*weights_, *mapper_, fqn));
    if (!layout) return absl::OkStatus();
    NamedTensor one{kOfModel + fqn, at::kFloat, shape};
    for (size_t i = 0; i < layout->keys.size(); ++i) {
      if (!weights_->has(layout->keys[i])) continue;  // Reported when it is read.
      TITAN_ASSIGN_OR_RETURN(const at::ScalarType dtype, weights_->dtype(layout->keys[i]));
      one.dtype = i == 0 ? dtype : at::promote_types(one.dtype, dtype);
    }
    ours_.insert(one.key);
    tensors_.push_back(std::move(one));
    return absl::OkStatus();
  }

  std::shared_ptr<const HfMapper> mapper_;
  std::set<std::string> ours_;
};

// A folder of which only the kind is known.
struct Opened {
  std::string path;
  std::unique_ptr<Step> step;
  std::unique_ptr<DcpFolder> dcp;
  std::unique_ptr<HfFolder> weights;

  bool is_like(const Opened& other) const {
    return (step != nullptr) == (other.step != nullptr) && (dcp != nullptr) == (other.dcp != nullptr);
  }
};

absl::StatusOr<Opened> open(storage::Files& files, const std::string& path) {
  Opened opened{.path = path};
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(path));
  const auto has = [&](const char* name) { return std::binary_search(names.begin(), names.end(), name); };
  if (has(kManifestName)) {
    TITAN_ASSIGN_OR_RETURN(std::unique_ptr<StepReader> reader, StepReader::open(files, path));
    opened.step = std::make_unique<Step>(std::move(reader));
  } else if (has(kDcpMetadataName)) {
    TITAN_ASSIGN_OR_RETURN(opened.dcp, DcpFolder::open(files, path));
  } else {
    absl::StatusOr<std::unique_ptr<HfFolder>> weights = HfFolder::open(files, path);
    if (absl::IsNotFound(weights.status()) && !has(kHfIndexName)) {
      return absl::NotFoundError(absl::StrCat(path, ": no ", kManifestName, ", ", kDcpMetadataName,
                                              " or *.safetensors: neither a step, nor a folder of "
                                              "torch.distributed.checkpoint, nor Hugging Face weights"));
    }
    TITAN_ASSIGN_OR_RETURN(opened.weights, std::move(weights));
  }
  return opened;
}

absl::StatusOr<std::unique_ptr<TensorFolder>> as_it_is(Opened folder) {
  if (folder.step) return std::move(folder.step);
  if (folder.dcp) return std::make_unique<Dcp>(std::move(folder.dcp));
  return HuggingFace::open(std::move(folder.weights));
}

absl::StatusOr<models::ModelSpec> model_of_either(const Opened& a, const Opened& b, const ModelChoice& choice) {
  for (const Opened* one : {&a, &b}) {
    if (one->step) return model_of(one->path, one->step->reader().manifest(), choice);
  }
  if (!choice.name.empty() && !choice.flavor.empty())
    return model::find_spec(choice.name, choice.flavor, choice.library);
  return absl::InvalidArgumentError(absl::StrCat(
      a.path, " and ", b.path, ": neither records its model, which determines the names: give --model and --flavor"));
}

// Returns the folder under the names that a step and a torch.distributed.checkpoint folder share.
absl::StatusOr<std::unique_ptr<TensorFolder>> as_step(Opened folder, bool tied_head) {
  if (folder.step) return std::move(folder.step);
  auto named = std::make_unique<RenamedDcp>(std::move(folder.dcp));
  if (tied_head) TITAN_RETURN_IF_ERROR(leave_out_tied(*named, absl::StrCat(kOfModel, kHeadName)));
  return named;
}

// Returns the folder under the model's names. `weights`: the Hugging Face weights with which it is compared; null if
// `folder` is those weights.
absl::StatusOr<std::unique_ptr<TensorFolder>> as_model(Opened folder, const models::ModelSpec& spec,
                                                       const std::shared_ptr<const HfMapper>& mapper,
                                                       const HfFolder* weights) {
  if (folder.weights) return RenamedHuggingFace::open(std::move(folder.weights), spec, mapper);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<TensorFolder> named, as_step(std::move(folder), spec.tied_embeddings));
  std::set<std::string> nowhere;  // Keys without a place in Hugging Face weights. Zeros are ignored.
  for (const NamedTensor& one : named->tensors()) {
    if (one.of_model) {
      const auto layouts = mapper->layouts(fqn_of(one.key));
      if (!layouts.ok() || layout_to_write(*layouts) != nullptr) continue;
      TITAN_ASSIGN_OR_RETURN(const auto there, layout_in(*weights, *mapper, fqn_of(one.key)));
      if (there) continue;
      TITAN_ASSIGN_OR_RETURN(const at::Tensor value, named->read(one, whole(one.shape)));
      if (value.any().item<bool>()) continue;
    }
    nowhere.insert(one.key);
  }
  named->remove_tensors([&](const NamedTensor& one) { return nowhere.contains(one.key); });
  return named;
}

}  // namespace

absl::StatusOr<FolderPair> open_both(storage::Files& files, const std::string& a, const std::string& b,
                                     const ModelChoice& choice) {
  TITAN_ASSIGN_OR_RETURN(Opened first, open(files, a));
  TITAN_ASSIGN_OR_RETURN(Opened second, open(files, b));
  FolderPair both;
  if (first.is_like(second)) {
    TITAN_ASSIGN_OR_RETURN(both.first, as_it_is(std::move(first)));
    TITAN_ASSIGN_OR_RETURN(both.second, as_it_is(std::move(second)));
  } else if (!first.weights && !second.weights) {
    const nlohmann::json& model = (first.step ? first : second).step->reader().manifest().model;
    const bool tied = model.is_object() && model.value("tied_embeddings", false);
    TITAN_ASSIGN_OR_RETURN(both.first, as_step(std::move(first), tied));
    TITAN_ASSIGN_OR_RETURN(both.second, as_step(std::move(second), tied));
  } else {
    TITAN_ASSIGN_OR_RETURN(const models::ModelSpec spec, model_of_either(first, second, choice));
    TITAN_ASSIGN_OR_RETURN(std::shared_ptr<const HfMapper> mapper, model::make_hf_mapper(spec));
    const HfFolder* weights = (first.weights ? first : second).weights.get();
    // The other folder first, because opening the Hugging Face folder moves the weights.
    Opened& named = first.weights ? second : first;
    Opened& theirs = first.weights ? first : second;
    const bool swapped = first.weights != nullptr;
    TITAN_ASSIGN_OR_RETURN(both.first, as_model(std::move(named), spec, mapper, weights));
    TITAN_ASSIGN_OR_RETURN(both.second, as_model(std::move(theirs), spec, mapper, nullptr));
    if (swapped) std::swap(both.first, both.second);
  }
  return both;
}

}  // namespace titan::tools
