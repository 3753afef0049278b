#include "common/plan/config/model_kind.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace titan::config {

ModelKind kind_of(const ModelSection& model) {
  if (model.name == "flux") return ModelKind::kTextToImage;
  if (model.name == "vlm" || model.name == "qwen3_vl") return ModelKind::kVisionLanguage;
  return ModelKind::kLanguage;
}

std::string_view name(ModelKind kind) {
  switch (kind) {
    case ModelKind::kLanguage:
      return "a language model";
    case ModelKind::kTextToImage:
      return "a text-to-image model";
    case ModelKind::kVisionLanguage:
      return "a vision-language model";
  }
  return "";
}

namespace {

using Kinds = std::vector<ModelKind>;

// How a message names the models of a kind.
std::string models_of(ModelKind kind) {
  switch (kind) {
    case ModelKind::kLanguage:
      return "language models";
    case ModelKind::kTextToImage:
      return "flux";
    case ModelKind::kVisionLanguage:
      return "vlm and qwen3_vl";
  }
  return "";
}

std::vector<KeyOfKinds> make_keys() {
  const Kinds flux = {ModelKind::kTextToImage}, vlm = {ModelKind::kVisionLanguage}, texts = {ModelKind::kLanguage};
  const Kinds images = {ModelKind::kTextToImage, ModelKind::kVisionLanguage};
  const Kinds tokens = {ModelKind::kLanguage, ModelKind::kVisionLanguage};
  return {
      {"training.classifier_free_guidance_prob", flux},
      {"training.guidance_scale", flux},
      {"training.img_size", flux},
      {"training.test_mode", flux},
      {"encoder.", flux},
      {"validation.enable_classifier_free_guidance", flux},
      {"validation.classifier_free_guidance_scale", flux},
      {"validation.denoising_steps", flux},
      {"validation.save_img_count", flux},
      {"validation.save_img_folder", flux},
      {"validation.all_timesteps", flux},
      {"inference.", flux},
      {"data.", vlm},
      {"training.dataloader.max_bad_samples", images},
      {"training.dataloader.image_key", images},
      {"training.dataloader.caption_key", images},
      {"training.dataloader.decode_threads", images},
      {"validation.dataloader.max_bad_samples", images},
      {"validation.dataloader.image_key", images},
      {"validation.dataloader.caption_key", images},
      {"validation.dataloader.decode_threads", images},
      {"training.dataloader.max_bad_lines", texts},
      {"training.dataloader.text_key", texts},
      {"training.dataloader.train_on", texts},
      {"training.dataloader.text_documents", texts},
      {"training.dataloader.packing_window", texts},
      {"validation.dataloader.max_bad_lines", texts},
      {"validation.dataloader.text_key", texts},
      {"validation.dataloader.train_on", texts},
      {"validation.dataloader.text_documents", texts},
      {"validation.dataloader.packing_window", texts},
      {"training.seq_len", tokens},
      {"training.max_logits_mib", tokens},
      {"validation.seq_len", tokens},
      {"validation.sample_max_new_tokens", tokens},
      {"validation.sample_temperature", tokens},
      {"parallelism.disable_loss_parallel", tokens},
      {"parallelism.context_parallel_load_balancer", tokens},
  };
}

}  // namespace

const std::vector<KeyOfKinds>& keys_of_kinds() {
  static const auto& table = *new std::vector<KeyOfKinds>(make_keys());
  return table;
}

std::string idle_with_model(const std::string& key, const ModelSection& model) {
  const ModelKind kind = kind_of(model);
  for (const KeyOfKinds& row : keys_of_kinds()) {
    const bool matches = row.key == key || (row.key.back() == '.' && key.rfind(row.key, 0) == 0);
    if (!matches || std::find(row.kinds.begin(), row.kinds.end(), kind) != row.kinds.end()) continue;
    const std::string others =
        absl::StrJoin(row.kinds, ", ", [](std::string* out, ModelKind reads) { out->append(models_of(reads)); });
    return absl::StrCat(key, " has no effect while model.name is ", model.name, ": it applies to ", others);
  }
  return "";
}

}  // namespace titan::config
