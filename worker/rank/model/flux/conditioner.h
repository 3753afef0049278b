#pragma once

// Flux's frozen encoders on one rank: captions to text tokens and a vector, pictures to latents.

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/comm/group.h"
#include "worker/rank/model/encoders/autoencoder.h"
#include "worker/rank/model/encoders/sharded_weights.h"
#include "worker/rank/model/encoders/t5.h"
#include "worker/rank/model/encoders/text_encoder.h"

namespace titan::model::flux {

struct ConditionerOptions {
  std::string t5, clip;     // Folders of transformers.
  std::string autoencoder;  // A safetensors file, or a folder of diffusers.
  encoders::WeightForm t5_form = encoders::WeightForm::kPlain;
  // Draws random weights instead of reading them, from this seed (training.test_mode). Folders then need only their
  // config.json, and an autoencoder without one has Flux's sizes.
  std::optional<uint64_t> random_seed;
  // Ranks that share T5's weights: then txt() is collective. Null or one rank: every rank holds all of them.
  const comm::Group* t5_group = nullptr;
  bool with_decoder = false;  // Also loads the autoencoder's decoder, for pictures().
  bool shapes_only = false;   // Weights have no values, for a dry run. Reads no file.
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

using EncoderOptions = encoders::EncoderOptions;

// Reads the encoders' configurations, and of an autoencoder without one the shapes of its tensors. Errors: those of the
// configurations, with the key of [encoder].
absl::StatusOr<EncoderOptions> read_encoder_options(const ConditionerOptions& options);

class Conditioner {
 public:
  // Loads or draws all weights of these encoders. Errors: those of the weights' files, with the key of [encoder].
  static absl::StatusOr<std::unique_ptr<Conditioner>> load(const ConditionerOptions& options,
                                                           const EncoderOptions& sizes);

  // All record no graph and return tensors of the options' type on their device.
  at::Tensor txt(const at::Tensor& ids) const;                                  // int64 [B, T] -> [B, T, txt_width]
  at::Tensor vector(const at::Tensor& ids) const { return clip_.encode(ids); }  // int64 [B, T] -> [B, vec_width]
  // Returns mean and logarithm of the variance of the latents of images [B, 3, S, S] of any floating type, each
  // [B, C, S / f, S / f]. latents() draws from them.
  encoders::Moments moments(const at::Tensor& images) const { return images_->moments(images.to(dtype_)); }
  // [B, 3, S, S] and noise [B, C, S / f, S / f], both of any floating type -> [B, C, S / f, S / f]
  at::Tensor latents(const at::Tensor& images, const at::Tensor& noise) const;
  // Returns pictures [B, 3, S, S], not clamped, of latents [B, C, S / f, S / f]. Needs
  // ConditionerOptions::with_decoder.
  at::Tensor pictures(const at::Tensor& latents) const;

 private:
  Conditioner(encoders::TextEncoder t5, std::unique_ptr<encoders::ShardedWeights> t5_weights,
              encoders::TextEncoder clip, std::unique_ptr<encoders::ImageEncoder> images,
              std::unique_ptr<encoders::ImageDecoder> decoder, at::ScalarType dtype)
      : t5_(std::move(t5)),
        t5_weights_(std::move(t5_weights)),
        clip_(std::move(clip)),
        images_(std::move(images)),
        decoder_(std::move(decoder)),
        dtype_(dtype) {}

  encoders::TextEncoder t5_;
  std::unique_ptr<encoders::ShardedWeights> t5_weights_;  // Null: this rank holds T5's weights whole.
  encoders::TextEncoder clip_;
  std::unique_ptr<encoders::ImageEncoder> images_;
  std::unique_ptr<encoders::ImageDecoder> decoder_;  // Null unless it was requested.
  at::ScalarType dtype_;
};

}  // namespace titan::model::flux
