#include "worker/rank/tools/meta_source.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/meta_config/params.h"
#include "common/plan/models/spec_checks.h"
#include "worker/rank/checkpoint/formats/hugging_face/tied_head.h"
#include "worker/rank/checkpoint/formats/meta/meta_folder.h"
#include "worker/rank/checkpoint/loading/model_check.h"

namespace titan::tools {
namespace {

using namespace titan::checkpoint;
using models::ModelSpec;

class MetaSource : public WeightsSource {
 public:
  MetaSource(std::unique_ptr<MetaFolder> folder, ModelSpec spec) : folder_(std::move(folder)), spec_(std::move(spec)) {
    notes_.push_back(absl::StrCat("weights in ", counted(folder_->files(), "file"), " of a series"));
  }

  absl::Status check() {
    TITAN_RETURN_IF_ERROR(folder_->check(spec_));
    if (!spec_.tied_embeddings || !folder_->has(kHeadName)) return absl::OkStatus();
    const std::vector<int64_t> shape = {spec_.vocab_size, spec_.dim};
    const auto part_of = [&](const char* fqn) { return [=, this](const Box& part) { return read(fqn, shape, part); }; };
    TITAN_ASSIGN_OR_RETURN(const bool same, same_numbers(whole(shape), part_of(kHeadName), part_of(kEmbeddingName)));
    return same ? absl::OkStatus() : untied_head_error(folder_->folder(), kHeadName, kEmbeddingName);
  }

  absl::StatusOr<at::Tensor> read(const std::string& fqn, const std::vector<int64_t>& shape, const Box& box) override {
    return folder_->read(spec_, fqn, shape, box);
  }

 private:
  std::unique_ptr<MetaFolder> folder_;
  ModelSpec spec_;
};

absl::StatusOr<meta_config::MetaModel> read_model(const MetaFolder& folder) {
  const nlohmann::json& params = folder.params();
  const nlohmann::json& inner = params.contains("model") && params["model"].is_object() ? params["model"] : params;
  const nlohmann::json dim = inner.value("dim", nlohmann::json());
  auto model = meta_config::read_params(params, folder.vocab_size(dim.is_number_integer() ? dim.get<int64_t>() : 0));
  if (!model.ok()) return annotate(model.status(), folder.folder());
  return model;
}

// Adapts the numbers that the release leaves open, or stores in another way, to those of the model.
void adapt(const ModelSpec& to, size_t files, meta_config::MetaModel& model) {
  ModelSpec& spec = model.spec;
  if (!model.states_scaling && to.rope_scaling) spec.rope_scaling = to.rope_scaling;
  if (!model.states_temperature) {
    spec.query_temperature_floor = to.query_temperature_floor;
    spec.query_temperature_scale = to.query_temperature_scale;
  }
  spec.tied_embeddings = to.tied_embeddings;  // The weights show it.
  // A series of more files than heads counts every copy of a head.
  const bool copies =
      to.n_kv_heads > 0 && spec.n_kv_heads == static_cast<int64_t>(files) && spec.n_kv_heads % to.n_kv_heads == 0;
  if (copies) spec.n_kv_heads = to.n_kv_heads;
}

bool is_takeable(const models::SpecDifference& one) { return one.positions || one.name == "norm_eps"; }

}  // namespace

absl::StatusOr<std::unique_ptr<WeightsSource>> open_meta(storage::Files& files, const std::string& folder,
                                                         const ModelSpec& spec) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<MetaFolder> opened, MetaFolder::open(files, folder));
  auto source = std::make_unique<MetaSource>(std::move(opened), spec);
  TITAN_RETURN_IF_ERROR(source->check());
  return source;
}

absl::StatusOr<ModelSpec> model_of_meta(storage::Files& files, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<MetaFolder> opened, MetaFolder::open(files, folder));
  TITAN_ASSIGN_OR_RETURN(const meta_config::MetaModel model, read_model(*opened));
  return model.spec;
}

absl::StatusOr<ModelSpec> with_numbers_of_meta(storage::Files& files, const std::string& folder, const ModelSpec& spec,
                                               std::string& taken) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<MetaFolder> opened, MetaFolder::open(files, folder));
  TITAN_ASSIGN_OR_RETURN(meta_config::MetaModel model, read_model(*opened));
  adapt(spec, opened->files(), model);
  const std::string path = storage::join_path(folder, meta_config::kParamsName);
  std::vector<std::string> same, other;
  for (const models::SpecDifference& one : models::differences(models::to_json(model.spec), spec)) {
    (is_takeable(one) ? same : other).push_back(absl::StrCat(one.name, " ", one.there, ", this model has ", one.here));
  }
  if (!other.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " says ", absl::StrJoin(other, "; "), ": give the model of these weights with --model and --flavor, or ",
        "take its numbers with --flavor config.json"));
  }
  if (same.empty() || !takes_numbers_from_weights(spec)) return spec;
  taken = absl::StrCat("taken from ", path, ": ", absl::StrJoin(same, "; "));
  return models::with_weights_numbers(models::to_json(model.spec), spec);
}

}  // namespace titan::tools
