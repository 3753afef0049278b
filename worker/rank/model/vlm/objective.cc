#include "worker/rank/model/vlm/objective.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/model/open_samples.h"
#include "worker/rank/model/vision/image_tokens.h"
#include "worker/rank/model/vlm/image_deal.h"
#include "worker/rank/model/vlm/image_text_batches.h"
#include "worker/rank/model/vlm/inputs.h"
#include "worker/rank/nn/attention_fused.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/parallel/context.h"

namespace titan::model::vlm {
namespace {

constexpr char kAssets[] = "model.hf_assets_path";

// The keys of one section that say how its rows are made.
struct RowKeys {
  const config::DataLoaderSection& loader;
  int64_t seq_len, local_batch;
  bool loop;
};

RowKeys keys_of(const config::JobConfig& config, bool training) {
  if (training) {
    return {config.training.dataloader, config.training.seq_len, config.training.local_batch_size, /*loop=*/true};
  }
  const config::ValidationSection& validation = config.validation;
  return {validation.dataloader, validation.seq_len, validation.local_batch_size, /*loop=*/validation.steps > 0};
}

// Returns the largest number of rows that divides a step's and is not above the local batch. It limits the images of
// that many rows together, and the number of ranks does not change it.
int64_t rows_with_limit(int64_t global_batch, int64_t local_batch) {
  int64_t rows = std::min(global_batch, local_batch);
  while (global_batch % rows != 0) --rows;
  return rows;
}

data::MultimodalOptions limits_of(const config::JobConfig& config, const RowKeys& keys, int64_t global_batch,
                                  const PatchNumbers& patches, const data::ImageTokens& special) {
  const config::DataSection& data = config.data;
  return {.rows = rows_with_limit(global_batch, keys.local_batch),
          .seq_len = keys.seq_len,
          .max_images = data.max_images_per_batch,
          .max_patches_per_image = data.max_patches_per_image,
          .packing_window = data.packing_buffer_size,
          .spatial_merge_size = patches.merge,
          .patch_values = patches.values,
          .image_token = special.image,
          .pad_token = special.pad};
}

at::Tensor on(const at::Tensor& tensor, at::Device device) { return device::copy_async(tensor, device); }

}  // namespace

absl::Status VlmObjective::prepare_shapes(const config::JobConfig& config, const RankPlace& /*place*/) {
  const PatchNumbers patches = images_->numbers();
  const auto differ = [&](const char* key, int64_t value, int64_t needed) {
    return absl::InvalidArgumentError(absl::StrCat("data.", key, ": is ", value, ", but the vision tower of ",
                                                   spec_.name, " ", spec_.flavor, " has ", needed));
  };
  if (config.data.patch_size != patches.patch_size)
    return differ("patch_size", config.data.patch_size, patches.patch_size);
  if (config.data.spatial_merge_size != patches.merge)
    return differ("spatial_merge_size", config.data.spatial_merge_size, patches.merge);
  return images_->use_keys(config);
}

absl::Status VlmObjective::prepare(const config::JobConfig& config, const RankPlace& place) {
  TITAN_RETURN_IF_ERROR(prepare_shapes(config, place));
  const std::string& folder = config.model.hf_assets_path;
  TITAN_ASSIGN_OR_RETURN(tokenizer_, ImageTextTokenizer::load(kAssets, folder, images_->token_texts()));
  if (absl::Status bad = images_->use_tokens(tokenizer_->special()); !bad.ok())
    return annotate(bad, absl::StrCat(kAssets, ": ", folder));
  if (absl::Status bad = images_->use_assets(folder); !bad.ok()) return annotate(bad, kAssets);
  if (tokenizer_->max_id() < spec_.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(kAssets, ": the tokenizer in ", folder, " has tokens up to ",
                                                 tokenizer_->max_id(), ", but ", spec_.name, " ", spec_.flavor,
                                                 " has a vocabulary of ", spec_.vocab_size));
}

int64_t VlmObjective::longest_row(const config::JobConfig& config) const {
  return config.validation.enable ? std::max(config.training.seq_len, config.validation.seq_len)
                                  : config.training.seq_len;
}

absl::StatusOr<std::unique_ptr<data::BatchSource>> VlmObjective::open(const config::JobConfig& config,
                                                                      const DataShare& share, bool training) {
  const RowKeys keys = keys_of(config, training);
  TITAN_ASSIGN_OR_RETURN(const data::SampleFiles found, find_samples(config, training));
  if (!found.warning.empty() && std::find(notes_.begin(), notes_.end(), found.warning) == notes_.end())
    notes_.push_back(found.warning);
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<data::SampleSet> samples,
                         open_samples(config, found, share.dp_rank, share.dp_size));
  const data::SampleOrder order = sample_order(*samples, keys.loader);
  const RowDealerOptions options{
      .rows = reading_options(keys.loader, share, keys.loop),
      .limits = limits_of(config, keys, share.global_batch, images_->numbers(), tokenizer_->special()),
      .one_image_a_sample = found.kind.layout == data::SampleLayout::kCaption};
  const auto decode = [images = images_, limits = options.limits, tokenizer = tokenizer_](
                          const data::Sample& sample, int64_t) -> absl::StatusOr<std::any> {
    TITAN_ASSIGN_OR_RETURN(data::MultimodalSample decoded, decode_sample(sample, *images, limits, *tokenizer));
    return std::any(std::move(decoded));
  };
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<RowDealer> rows, open_rows(std::move(samples), order, decode, options));
  return std::make_unique<ImageTextBatches>(std::move(rows), images_->numbers().values);
}

absl::StatusOr<std::unique_ptr<data::BatchSource>> VlmObjective::open_training(const config::JobConfig& config,
                                                                               const DataShare& share) {
  return open(config, share, /*training=*/true);
}

absl::StatusOr<std::unique_ptr<data::BatchSource>> VlmObjective::open_validation(const config::JobConfig& config,
                                                                                 const DataShare& share) {
  return open(config, share, /*training=*/false);
}

data::Batch VlmObjective::example(const config::JobConfig& config, int64_t rows) const {
  const int64_t seq_len = config.training.seq_len,
                images = std::max<int64_t>(config.data.max_images_per_batch / rows, 1);
  const PatchNumbers numbers = images_->numbers();
  const int64_t square = numbers.merge * numbers.merge;
  const int64_t most = std::max<int64_t>(std::min(config.data.max_patches_per_image / square, seq_len / images), 1);
  const auto height = static_cast<int64_t>(std::sqrt(static_cast<double>(most))), width = most / height;  // In tokens.
  const int64_t placed = std::min(images, seq_len / (height * width)), image_tokens = placed * height * width;
  const at::Tensor tokens = at::full({rows, seq_len}, images_->image_token() == 0 ? 1 : 0, at::kLong);
  tokens.narrow(1, 0, image_tokens).fill_(images_->image_token());
  const at::Tensor grid = at::tensor({height * numbers.merge, width * numbers.merge}, at::kLong);
  return {{data::kTokens, tokens},
          {data::kLabels, at::zeros_like(tokens)},
          {data::kDocuments, at::zeros_like(tokens)},
          {kPatches, at::zeros({rows, image_tokens * square, numbers.values}, at::kFloat)},
          {kGrids, grid.repeat({rows, placed, 1})}};
}

Microbatch VlmObjective::microbatch(const data::Batch& batch, const MicrobatchOptions& options) const {
  const comm::Group* const context = options.context.group;
  const ImageDeal deal =
      deal_images(batch.at(kGrids), batch.at(kPatches), *images_, context != nullptr ? context->rank() : 0,
                  context != nullptr ? context->size() : 1);
  nn::MicrobatchContext one;
  one.tokens = batch.at(data::kTokens);
  one.labels = batch.at(data::kLabels);
  if (spec_.mask == models::Mask::kBlockCausal) {
    one.documents = batch.at(data::kDocuments);
    one.flash_calls = std::make_shared<nn::FlashCalls>();
  }
  const at::Tensor whole_rows = one.tokens;
  at::Tensor rows = image_rows(whole_rows, images_->image_token(), deal.rows);
  if (context != nullptr) {
    one = parallel::shard_microbatch(one, options.context);
    if (one.positions.defined()) rows = rows.index_select(1, one.positions);
  }
  const int64_t labels = *nn::count_valid(one.labels).const_data_ptr<int64_t>();
  one.tokens = on(one.tokens, options.device);
  one.labels = on(one.labels, options.device);
  one.positions = on(one.positions, options.device);
  one.tensors = {{kPatches, on(deal.patches, options.device)}, {kImageRows, on(rows, options.device)}};
  const std::shared_ptr<Images> images = images_->pack(deal.grids, options.device);
  images->padded_patches = deal.padded_rows;
  one.extension = images;
  images_->add_inputs(whole_rows, batch.at(kGrids), one);
  return {std::move(one), labels};
}

int64_t VlmObjective::units_of_training_row(const config::JobConfig& config) const { return config.training.seq_len; }

int64_t VlmObjective::units_of_validation_row(const config::JobConfig& config) const {
  return config.validation.seq_len;
}

std::vector<std::string> VlmObjective::notes(const config::JobConfig& config) const {
  std::vector<std::string> all = tokenizer_files::not_applied(config.model.hf_assets_path);
  all.insert(all.end(), notes_.begin(), notes_.end());
  return all;
}

}  // namespace titan::model::vlm
