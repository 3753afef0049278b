#pragma once

// Pictures of prompts: captions are encoded, latents are sampled, decoded and written as PNG files.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/models/flux.h"
#include "worker/rank/model/flux/job_encoders.h"
#include "worker/rank/model/flux/sampler.h"
#include "worker/rank/model/objective.h"

namespace titan::model::flux {

// The flavor whose sampler's times are evenly spaced.
inline constexpr char kEvenlySpaced[] = "flux-schnell";

struct PictureOptions {
  int64_t rows = 1;                   // Pictures that are sampled at a time.
  int steps = 50;                     // Number of steps of Euler's method.
  bool shift = true;                  // See sampling_times(). FLUX.1-schnell was distilled for evenly spaced times.
  bool guides = false;                // Classifier-free guidance, which doubles the work.
  double scale = 5;                   // Strength of the guidance, which is classifier-free or an input of the model.
  int64_t width = 256, height = 256;  // In pixels: multiples of two places of the latents.
  uint64_t seed = 0;
  int64_t first_number = 0;  // Number of the first prompt. A picture depends on the seed, its prompt and its number.
};

// Returns the encodings of captions, one row for each. Throws c10::Error for a caption that is not UTF-8.
Captions encode_captions(const JobEncoders& encoders, const std::vector<std::string>& captions, at::Device device);

class PictureSampler {
 public:
  // The encoders must outlive it. On rank 0 they need the decoder (ConditionerOptions::with_decoder).
  PictureSampler(const models::FluxSpec& spec, const JobEncoders& encoders) : spec_(spec), encoders_(encoders) {}

  // Samples a picture of each prompt, named "000", "001" and so on. Collective: every rank of the mesh makes the same
  // calls. Throws c10::Error for a prompt that is not UTF-8.
  Samples sample(const WholeModel& model, const comm::DeviceMesh& mesh, const std::vector<std::string>& prompts,
                 const PictureOptions& options) const;

 private:
  // Returns standard normal noise [B, C, h, w] for consecutive pictures. fp32.
  at::Tensor noise(int64_t first, int64_t count, const PictureOptions& options) const;

  const models::FluxSpec spec_;
  const JobEncoders& encoders_;
};

}  // namespace titan::model::flux
