#pragma once

// Says what a model learns from, by its family's name. It decides which keys, datasets and file formats apply.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/config/job_config.h"

namespace titan::config {

enum class ModelKind {
  kLanguage,        // Texts. Also the models of libraries.
  kTextToImage,     // Images, generated from their captions: flux.
  kVisionLanguage,  // Texts with images in them: vlm, qwen3_vl.
};
ModelKind kind_of(const ModelSection& model);

// Returns whether the model's samples are images with texts.
inline bool learns_from_images(const ModelSection& model) { return kind_of(model) != ModelKind::kLanguage; }

// Returns whether the tokenizer in model.hf_assets_path is used. Flux's encoders have their own, except in its test
// mode.
inline bool uses_assets_tokenizer(const JobConfig& config) {
  return kind_of(config.model) != ModelKind::kTextToImage || config.training.test_mode;
}

// Returns "a language model", ...
std::string_view name(ModelKind kind);

// A key that only some kinds of models read. With the others it has no effect, which is a warning: torchtitan's recipes
// share sections among models.
struct KeyOfKinds {
  std::string_view key;  // A whole section when it ends with a dot.
  std::vector<ModelKind> kinds;
};
const std::vector<KeyOfKinds>& keys_of_kinds();

// Returns why a key has no effect with this model; empty when it has one.
std::string idle_with_model(const std::string& key, const ModelSection& model);

// A width and height of 16 pixels makes one token of Flux: the autoencoder divides both by 8, and a token covers two by
// two of its latents.
inline constexpr std::int64_t kPixelsPerToken = 16;

// Returns Flux's tokens of an image of training.img_size.
inline std::int64_t image_tokens(const JobConfig& config) {
  const std::int64_t side = config.training.img_size / kPixelsPerToken;
  return side * side;
}

}  // namespace titan::config
