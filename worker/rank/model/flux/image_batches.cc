#include "worker/rank/model/flux/image_batches.h"

#include <algorithm>
#include <any>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/model/open_samples.h"

namespace titan::model::flux {
namespace {

// A row on its way from a thread to the batch.
struct Row {
  std::vector<at::Tensor> members;
  at::Tensor noise, eps, times;
};

at::Tensor normal(uint64_t seed, int64_t row, random::SampleStream stream, at::IntArrayRef shape) {
  at::Tensor values = at::empty(shape, at::kFloat);
  random::draw_normal(random::sample_key(seed, row, stream), 0, values.numel(), values.mutable_data_ptr<float>());
  return values;
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

absl::StatusOr<std::any> make_row(const data::Sample& sample, int64_t number, const ImageRowOptions& options,
                                  const RowMaker& maker, uint64_t seed) {
  Row row;
  TITAN_ASSIGN_OR_RETURN(row.members, maker.make(sample, random::draw_sample(seed, number, options.drop_probability)));
  const int64_t side = options.image_size / options.downsampling;
  const std::vector<int64_t> latent = {options.latent_channels, side, side};
  row.noise = normal(seed, number, random::SampleStream::kNoise, latent);
  row.eps = normal(seed, number, random::SampleStream::kAutoencoder, latent);
  row.times = times_of(options.times, seed, number);
  return std::any(std::move(row));
}

int64_t bytes_of(const std::any& value) {
  const auto& row = std::any_cast<const Row&>(value);
  size_t bytes = row.noise.nbytes() + row.eps.nbytes();
  for (const at::Tensor& member : row.members) bytes += member.nbytes();
  return static_cast<int64_t>(bytes);
}

}  // namespace

absl::Status CaptionTokenizers::encode(std::string_view t5_text, std::string_view clip_text, int64_t* t5,
                                       int64_t* clip) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TITAN_RETURN_IF_ERROR(t5_.encode(t5_text, t5));
  return clip_.encode(clip_text, clip);
}

ImageBatches::ImageBatches(std::shared_ptr<data::SampleSet> samples, data::SampleOrder order,
                           std::shared_ptr<const RowMaker> maker, const ImageRowOptions& row,
                           const data::SampleRows::Options& rows, uint64_t seed)
    : samples_(std::move(samples)),
      order_(std::move(order)),
      maker_(std::move(maker)),
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
      [maker = maker_, row = row_, seed = seed_](const data::Sample& sample, int64_t number) {
        return make_row(sample, number, row, *maker, seed);
      },
      options);
}

absl::StatusOr<data::Batch> ImageBatches::next() {
  std::vector<Row> rows;
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < options_.batch; ++i) {
    TITAN_ASSIGN_OR_RETURN(std::optional<data::SampleRow> row, rows_->next());
    numbers.push_back(row ? row->number : -1);
    if (row) rows.push_back(std::any_cast<Row>(std::move(row->value)));
  }
  const auto stacked = [&](const auto& value_of, at::ScalarType type, at::IntArrayRef shape) {
    std::vector<int64_t> whole = {options_.batch};
    whole.insert(whole.end(), shape.begin(), shape.end());
    at::Tensor all = at::zeros(whole, type);
    for (size_t i = 0; i < rows.size(); ++i) all.select(0, static_cast<int64_t>(i)).copy_(value_of(rows[i]));
    return all;
  };
  const int64_t side = row_.image_size / row_.downsampling;
  const std::vector<int64_t> latent = {row_.latent_channels, side, side};
  data::Batch batch{
      {kNoise, stacked([](const Row& row) { return row.noise; }, at::kFloat, latent)},
      {kEps, stacked([](const Row& row) { return row.eps; }, at::kFloat, latent)},
      {kTime, stacked([](const Row& row) { return row.times; }, at::kFloat, {number_of_times(row_.times)})},
      {kRow, at::tensor(numbers, at::kLong)}};
  const std::vector<RowMaker::Member>& members = maker_->members();
  for (size_t i = 0; i < members.size(); ++i) {
    batch[members[i].name] = stacked([i](const Row& row) { return row.members[i]; }, members[i].type, members[i].shape);
  }
  return batch;
}

std::optional<data::ReadingCost> ImageBatches::take_reading_cost() { return reading_cost(rows_->take_progress()); }

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
