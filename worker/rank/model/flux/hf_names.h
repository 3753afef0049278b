#pragma once

// Names and layouts of Flux's weights in other programs' files.

#include <memory>

#include "common/plan/models/flux.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"

namespace titan::model::flux {

enum class WeightNames {
  // diffusers' FluxTransformer2DModel: q, k and v are separate tensors, and the halves of the last modulation are
  // swapped.
  kDiffusers,
  // Black Forest Labs' own file: Titan's names, except that the norms' weights are called "scale".
  kReleased,
};

// Makes the mapper, which reads folders with either names, and torchtitan's. Exports have those of `written`, and with
// diffusers' names the files that FluxTransformer2DModel.from_pretrained() opens.
std::unique_ptr<checkpoint::HfMapper> make_mapper(const models::FluxSpec& spec,
                                                  WeightNames written = WeightNames::kDiffusers);

}  // namespace titan::model::flux
