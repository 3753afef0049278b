#include "worker/tools/weights_source.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/models/sizes.h"
#include "common/status/status.h"
#include "worker/checkpoint/dcp_folder.h"
#include "worker/checkpoint/dcp_loading.h"
#include "worker/checkpoint/hf_folder.h"
#include "worker/checkpoint/model_check.h"
#include "worker/checkpoint/torch_file.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;

class HuggingFaceSource : public WeightsSource {
 public:
  static absl::StatusOr<std::unique_ptr<WeightsSource>> open(storage::Files& files, const std::string& path,
                                                             const HfMapper& mapper) {
    auto source = std::make_unique<HuggingFaceSource>(mapper);
    TITAN_ASSIGN_OR_RETURN(source->weights_, HfFolder::open(files, path));
    TITAN_ASSIGN_OR_RETURN(source->warnings_, check_hf_config(files, path, mapper));
    TITAN_RETURN_IF_ERROR(check_keys(*source->weights_, mapper));
    return source;
  }
  explicit HuggingFaceSource(const HfMapper& mapper) : mapper_(mapper) {}

  absl::StatusOr<at::Tensor> read(const std::string& fqn, const std::vector<int64_t>& shape) override {
    return read_parameter(*weights_, mapper_, fqn, shape, whole(shape));
  }

 private:
  const HfMapper& mapper_;
  std::unique_ptr<HfFolder> weights_;
};

// Names that torchtitan and we share.
class NamedSource : public WeightsSource {
 public:
  NamedSource(std::string path, std::string prefix) : path_(std::move(path)), prefix_(std::move(prefix)) {}

  absl::StatusOr<at::Tensor> read(const std::string& fqn, const std::vector<int64_t>& shape) override {
    absl::StatusOr<at::Tensor> value = read_named(prefix_ + fqn);
    if (absl::IsNotFound(value.status()) && !absl::EndsWith(fqn, "expert_bias")) {
      return absl::FailedPreconditionError(absl::StrCat(path_, " does not fit this model: it has no ", prefix_, fqn));
    }
    if (absl::IsNotFound(value.status())) return at::Tensor();
    TITAN_RETURN_IF_ERROR(value.status());
    if (value->sizes().vec() == shape) return value;
    return absl::FailedPreconditionError(absl::StrCat(path_, " does not fit this model: ", prefix_, fqn, " is ",
                                                      shape_text(value->sizes().vec()), " there and ",
                                                      shape_text(shape), " here"));
  }

  // Of all names there: none of a parameter that the model lacks.
  absl::Status check(const std::vector<std::string>& names, const models::ModelSpec& spec) const {
    std::set<std::string> known;
    for (const models::Tensor& one : models::parameters(spec)) known.insert(one.fqn);
    if (spec.tied_embeddings) known.insert("output.weight");
    for (const std::string& name : names) {
      if (!absl::StartsWith(name, prefix_)) continue;
      const std::string fqn = name.substr(prefix_.size());
      const bool derived = is_derived(fqn) || absl::EndsWith(fqn, "expert_bias");
      const bool other =
          prefix_.empty() && (absl::StartsWith(fqn, "optimizer.") || absl::StartsWith(fqn, "train_state."));
      if (!known.contains(fqn) && !derived && !other) {
        return absl::FailedPreconditionError(
            absl::StrCat(path_, " does not fit this model, which has no use for ", name,
                         "; name the model that these weights belong to with --model and --flavor"));
      }
    }
    return absl::OkStatus();
  }

 protected:
  virtual absl::StatusOr<at::Tensor> read_named(const std::string& name) = 0;

 private:
  std::string path_, prefix_;
};

class DcpSource : public NamedSource {
 public:
  DcpSource(std::unique_ptr<DcpFolder> folder, const std::string& prefix)
      : NamedSource(folder->folder(), prefix), folder_(std::move(folder)) {}

 protected:
  absl::StatusOr<at::Tensor> read_named(const std::string& name) override {
    const auto found = folder_->metadata().tensors.find(name);
    if (found == folder_->metadata().tensors.end()) return absl::NotFoundError(name);
    return folder_->read(name, whole(found->second.shape));
  }

 private:
  std::unique_ptr<DcpFolder> folder_;
};

class TorchFileSource : public NamedSource {
 public:
  explicit TorchFileSource(std::unique_ptr<TorchFile> file) : NamedSource(file->path(), ""), file_(std::move(file)) {}

 protected:
  absl::StatusOr<at::Tensor> read_named(const std::string& name) override { return file_->read(name); }

 private:
  std::unique_ptr<TorchFile> file_;
};

template <typename Map>
std::vector<std::string> names_of(const Map& map) {
  std::vector<std::string> names;
  for (const auto& [name, value] : map) names.push_back(name);
  return names;
}

absl::StatusOr<std::unique_ptr<WeightsSource>> open_dcp(storage::Files& files, const std::string& path,
                                                        const models::ModelSpec& spec) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<DcpFolder> folder, DcpFolder::open(files, path));
  const std::vector<std::string> names = names_of(folder->metadata().tensors);
  const bool nested = folder->metadata().tensors.contains("model.tok_embeddings.weight");
  auto source = std::make_unique<DcpSource>(std::move(folder), nested ? "model." : "");
  TITAN_RETURN_IF_ERROR(source->check(names, spec));
  return source;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightsSource>> open_weights(storage::Files& files, const std::string& path,
                                                            const models::ModelSpec& spec, const HfMapper& mapper) {
  if (files.exists(storage::join_path(path, kDcpMetadataName))) return open_dcp(files, path, spec);
  if (files.is_folder(path) || !files.exists(path)) return HuggingFaceSource::open(files, path, mapper);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> file, TorchFile::open(files, path));
  const std::vector<std::string> names = names_of(file->tensors());
  auto source = std::make_unique<TorchFileSource>(std::move(file));
  TITAN_RETURN_IF_ERROR(source->check(names, spec));
  return source;
}

}  // namespace titan::tools
