#include "worker/rank/model/language/objective.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/model/language/text_batches.h"
#include "worker/rank/nn/attention_fused.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/loss.h"

namespace titan::model {
namespace {

int64_t valid_on_host(const at::Tensor& labels) { return *nn::count_valid(labels).const_data_ptr<int64_t>(); }

std::optional<int64_t> document_end_of(const models::ModelSpec& spec) {
  return spec.mask == models::Mask::kBlockCausal ? std::optional(spec.eos_id) : std::nullopt;
}

}  // namespace

LanguageObjective::LanguageObjective(const models::ModelSpec& spec)
    : document_end_(document_end_of(spec)), vocabulary_(spec.vocab_size) {}

absl::Status LanguageObjective::prepare(const config::JobConfig& config, const RankPlace& /*place*/) {
  TITAN_ASSIGN_OR_RETURN(samples_, TextSamples::create(config));
  return absl::OkStatus();
}

int64_t LanguageObjective::longest_row(const config::JobConfig& config) const {
  int64_t longest = config.training.seq_len;
  if (config.validation.enable) longest = std::max(longest, config.validation.seq_len);
  return samples_ != nullptr ? std::max(longest, samples_->longest()) : longest;
}

absl::StatusOr<std::unique_ptr<data::BatchSource>> LanguageObjective::open_training(const config::JobConfig& config,
                                                                                    const DataShare& share) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<data::DataLoader> loader, open_training_loader(config, share));
  if (document_end_ && loader->end_of_document()) document_end_ = *loader->end_of_document();
  return loader;
}

absl::StatusOr<std::unique_ptr<data::BatchSource>> LanguageObjective::open_validation(const config::JobConfig& config,
                                                                                      const DataShare& share) {
  return open_validation_loader(config, share);
}

data::Batch LanguageObjective::example(const config::JobConfig& config, int64_t rows) const {
  const at::Tensor tokens = at::full({rows, config.training.seq_len}, document_end_ == 0 ? 1 : 0, at::kLong);
  return {{data::kTokens, tokens}, {data::kLabels, tokens}};
}

Microbatch LanguageObjective::microbatch(const data::Batch& batch, const MicrobatchOptions& options) const {
  nn::MicrobatchContext one;
  one.tokens = batch.at(data::kTokens);
  one.labels = batch.at(data::kLabels);
  if (document_end_) {  // Documents stay on the CPU, where attention reads them to find its blocks.
    one.documents =
        batch.has(data::kDocuments) ? batch.at(data::kDocuments) : nn::number_documents(one.tokens, *document_end_);
    one.flash_calls = std::make_shared<nn::FlashCalls>();
  }
  if (options.context.group != nullptr) one = parallel::shard_microbatch(one, options.context);
  const int64_t labels = valid_on_host(one.labels);
  one.tokens = device::copy_async(one.tokens, options.device);
  one.labels = device::copy_async(one.labels, options.device);
  one.positions = device::copy_async(one.positions, options.device);
  return {std::move(one), labels};
}

int64_t LanguageObjective::units_of_training_row(const config::JobConfig& config) const {
  return config.training.seq_len;
}

int64_t LanguageObjective::units_of_validation_row(const config::JobConfig& config) const {
  return config.validation.seq_len;
}

std::vector<std::string> LanguageObjective::notes(const config::JobConfig& config) const {
  return tokenizer_files::not_applied(config.model.hf_assets_path);
}

std::string LanguageObjective::why_nothing_validated(const config::JobConfig& config, int64_t batches) const {
  const std::string row = counted(config.validation.seq_len, "token");
  if (batches == 0) {
    return absl::StrCat("the validation dataset does not fill one row of ", row,
                        "; lower validation.seq_len or add data");
  }
  return absl::StrCat("no token of the validation dataset is a label, in rows of ", row,
                      "; see validation.dataloader.train_on and validation.seq_len");
}

Samples LanguageObjective::sample(const WholeModel& model, const comm::DeviceMesh& mesh) {
  return samples_->run(model, mesh, vocabulary_);
}

}  // namespace titan::model
