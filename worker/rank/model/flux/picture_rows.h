#pragma once

// Rows of pictures and captions, which the frozen encoders encode in each step.

#include <memory>
#include <string>
#include <vector>

#include "worker/rank/model/flux/image_batches.h"

namespace titan::model::flux {

// Decodes a picture, resizes its shorter side to `size` and cuts the longer one. `crop` in [0, 1) is where: 0 at the
// left or top, 0.5 in the middle. Returns fp32 [3, size, size] in [-1, 1]. Errors: InvalidArgument with the reason,
// whatever is wrong.
absl::StatusOr<at::Tensor> square_picture(const std::string& bytes, int size, double crop);

class PictureRows final : public RowMaker {
 public:
  PictureRows(std::shared_ptr<CaptionTokenizers> tokenizers, int image_size);

  // kImage, kT5Ids and kClipIds.
  const std::vector<Member>& members() const override { return members_; }
  absl::StatusOr<std::vector<at::Tensor>> make(const data::Sample& sample,
                                               const random::SampleDraws& draws) const override;

 private:
  const std::shared_ptr<CaptionTokenizers> tokenizers_;
  const int image_size_;
  const std::vector<Member> members_;
};

}  // namespace titan::model::flux
