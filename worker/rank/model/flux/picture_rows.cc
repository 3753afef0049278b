#include "worker/rank/model/flux/picture_rows.h"

#include <algorithm>
#include <utility>

#include "common/base/status/status.h"
#include "worker/rank/data/images/decode.h"
#include "worker/rank/data/images/square_crop.h"
#include "worker/rank/data/samples/sample_rows.h"

namespace titan::model::flux {
absl::StatusOr<at::Tensor> square_picture(const std::string& bytes, int size, double crop) {
  const absl::StatusOr<images::Image> image = images::decode_image(bytes);
  if (!image.ok()) return data::unusable(image.status());
  at::Tensor pixels = at::empty({3, size, size}, at::kFloat);
  const auto draw = [crop](int64_t n) { return std::min(n - 1, static_cast<int64_t>(crop * static_cast<double>(n))); };
  if (absl::Status cut = images::write_square_crop(*image, size, draw, pixels.mutable_data_ptr<float>()); !cut.ok()) {
    return data::unusable(cut);
  }
  return pixels;
}

PictureRows::PictureRows(std::shared_ptr<CaptionTokenizers> tokenizers, int image_size)
    : tokenizers_(std::move(tokenizers)),
      image_size_(image_size),
      members_{{kImage, at::kFloat, {3, image_size, image_size}},
               {kT5Ids, at::kLong, {tokenizers_->t5_length()}},
               {kClipIds, at::kLong, {tokenizers_->clip_length()}}} {}

absl::StatusOr<std::vector<at::Tensor>> PictureRows::make(const data::Sample& sample,
                                                          const random::SampleDraws& draws) const {
  TITAN_ASSIGN_OR_RETURN(at::Tensor image, square_picture(*sample.image(), image_size_, draws.crop));
  at::Tensor t5 = at::empty({tokenizers_->t5_length()}, at::kLong);
  at::Tensor clip = at::empty({tokenizers_->clip_length()}, at::kLong);
  const std::string& caption = *sample.caption();
  const absl::Status encoded = tokenizers_->encode(draws.drop_t5 ? "" : caption, draws.drop_clip ? "" : caption,
                                                   t5.mutable_data_ptr<int64_t>(), clip.mutable_data_ptr<int64_t>());
  if (!encoded.ok()) return data::unusable(encoded);
  return std::vector<at::Tensor>{std::move(image), std::move(t5), std::move(clip)};
}

}  // namespace titan::model::flux
