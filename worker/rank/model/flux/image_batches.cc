#include "worker/rank/model/flux/image_batches.h"

#include <algorithm>
#include <any>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/images/decode.h"
#include "worker/rank/data/images/square_crop.h"
#include "worker/rank/random/sample_draws.h"

namespace titan::model::flux {
namespace {

// A row on its way from a decoding thread to the batch.
struct ImageRow {
  at::Tensor image, t5_ids, clip_ids, noise, eps, times;
};

// A sample that cannot be used is skipped, whatever is wrong with it.
absl::Status unusable(const absl::Status& status) { return absl::InvalidArgumentError(status.message()); }

at::Tensor normal(uint64_t seed, int64_t row, random::SampleStream stream, at::IntArrayRef shape) {
  at::Tensor values = at::empty(shape, at::kFloat);
  random::draw_normal(random::sample_key(seed, row, stream), 0, values.numel(), values.mutable_data_ptr<float>());
  return values;
}

absl::StatusOr<at::Tensor> picture(const std::string& bytes, int size, double crop) {
  const absl::StatusOr<images::Image> image = images::decode_image(bytes);
  if (!image.ok()) return unusable(image.status());
  at::Tensor pixels = at::empty({3, size, size}, at::kFloat);
  const auto draw = [crop](int64_t n) { return std::min(n - 1, static_cast<int64_t>(crop * static_cast<double>(n))); };
  if (absl::Status cut = images::write_square_crop(*image, size, draw, pixels.mutable_data_ptr<float>()); !cut.ok()) {
    return unusable(cut);
  }
  return pixels;
}

constexpr int64_t kFixedTimes = 8;

int64_t number_of_times(ImageRowOptions::Times times) {
  return times == ImageRowOptions::Times::kAllEight ? kFixedTimes : 1;
}

// Returns the times of a row, fp32 [number_of_times()].
at::Tensor times_of(ImageRowOptions::Times times, uint64_t seed, int64_t row) {
  const at::Tensor fixed = (at::arange(kFixedTimes, at::kFloat) * 2 + 1) / (2 * kFixedTimes);
  switch (times) {
    case ImageRowOptions::Times::kDrawn:
      return at::full({1}, random::draw_unit(random::sample_key(seed, row, random::SampleStream::kTimestep), 0),
                      at::kFloat);
    case ImageRowOptions::Times::kOneOfEight:
      return fixed.narrow(0, row % kFixedTimes, 1);
    case ImageRowOptions::Times::kAllEight:
      return fixed;
  }
  return fixed;
}

absl::StatusOr<std::any> decode(const data::Sample& sample, int64_t number, const ImageRowOptions& options,
                                CaptionTokenizers& tokenizers, uint64_t seed) {
  const random::SampleDraws draws = random::draw_sample(seed, number, options.drop_probability);
  ImageRow row;
  TITAN_ASSIGN_OR_RETURN(row.image, picture(*sample.image(), options.image_size, draws.crop));
  row.t5_ids = at::empty({tokenizers.t5_length()}, at::kLong);
  row.clip_ids = at::empty({tokenizers.clip_length()}, at::kLong);
  const std::string& caption = *sample.caption();
  const absl::Status encoded =
      tokenizers.encode(draws.drop_t5 ? "" : caption, draws.drop_clip ? "" : caption,
                        row.t5_ids.mutable_data_ptr<int64_t>(), row.clip_ids.mutable_data_ptr<int64_t>());
  if (!encoded.ok()) return unusable(encoded);
  const int64_t side = options.image_size / options.downsampling;
  const std::vector<int64_t> latent = {options.latent_channels, side, side};
  row.noise = normal(seed, number, random::SampleStream::kNoise, latent);
  row.eps = normal(seed, number, random::SampleStream::kAutoencoder, latent);
  row.times = times_of(options.times, seed, number);
  return std::any(std::move(row));
}

int64_t bytes_of(const std::any& value) {
  const auto& row = std::any_cast<const ImageRow&>(value);
  return static_cast<int64_t>(row.image.nbytes() + row.noise.nbytes() + row.eps.nbytes());
}

}  // namespace

absl::Status CaptionTokenizers::encode(std::string_view t5_text, std::string_view clip_text, int64_t* t5,
                                       int64_t* clip) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TITAN_RETURN_IF_ERROR(t5_.encode(t5_text, t5));
  return clip_.encode(clip_text, clip);
}

ImageBatches::ImageBatches(std::shared_ptr<data::SampleSet> samples, data::SampleOrder order,
                           std::shared_ptr<CaptionTokenizers> tokenizers, const ImageRowOptions& row,
                           const data::SampleRows::Options& rows, uint64_t seed)
    : samples_(std::move(samples)),
      order_(std::move(order)),
      tokenizers_(std::move(tokenizers)),
      row_(row),
      options_(rows),
      seed_(seed) {
  open();
}

void ImageBatches::open() {
  data::SampleRows::Options options = options_;
  options.bytes_of = bytes_of;
  rows_ = std::make_unique<data::SampleRows>(
      samples_, order_,
      [tokenizers = tokenizers_, row = row_, seed = seed_](const data::Sample& sample, int64_t number) {
        return decode(sample, number, row, *tokenizers, seed);
      },
      options);
}

absl::StatusOr<data::Batch> ImageBatches::next() {
  std::vector<ImageRow> rows;
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < options_.batch; ++i) {
    TITAN_ASSIGN_OR_RETURN(std::optional<data::SampleRow> row, rows_->next());
    numbers.push_back(row ? row->number : -1);
    if (row) rows.push_back(std::any_cast<ImageRow>(std::move(row->value)));
  }
  const auto stacked = [&](at::Tensor ImageRow::*member, at::ScalarType type, at::IntArrayRef shape) {
    std::vector<int64_t> whole = {options_.batch};
    whole.insert(whole.end(), shape.begin(), shape.end());
    at::Tensor all = at::zeros(whole, type);
    for (size_t i = 0; i < rows.size(); ++i) all.select(0, static_cast<int64_t>(i)).copy_(rows[i].*member);
    return all;
  };
  const int64_t size = row_.image_size, side = size / row_.downsampling;
  return data::Batch{{kImage, stacked(&ImageRow::image, at::kFloat, {3, size, size})},
                     {kT5Ids, stacked(&ImageRow::t5_ids, at::kLong, {tokenizers_->t5_length()})},
                     {kClipIds, stacked(&ImageRow::clip_ids, at::kLong, {tokenizers_->clip_length()})},
                     {kNoise, stacked(&ImageRow::noise, at::kFloat, {row_.latent_channels, side, side})},
                     {kEps, stacked(&ImageRow::eps, at::kFloat, {row_.latent_channels, side, side})},
                     {kTime, stacked(&ImageRow::times, at::kFloat, {number_of_times(row_.times)})},
                     {kRow, at::tensor(numbers, at::kLong)}};
}

nlohmann::json ImageBatches::state() const {
  nlohmann::json state = rows_->state();
  state["draw_seed"] = seed_;
  return state;
}

absl::Status ImageBatches::restore(const nlohmann::json& state) {
  if (const auto seed = state.find("draw_seed"); seed != state.end() && seed->is_number_unsigned()) {
    seed_ = seed->get<uint64_t>();
    open();
  }
  return rows_->restore(state);
}

}  // namespace titan::model::flux
