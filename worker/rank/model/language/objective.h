#pragma once

// The objective of language models: rows of tokens, of which each predicts the next.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/models/model_spec.h"
#include "worker/rank/model/language/samples.h"
#include "worker/rank/model/objective.h"

namespace titan::model {

class LanguageObjective final : public Objective {
 public:
  explicit LanguageObjective(const models::ModelSpec& spec);
  // `document_end`: the token that ends a document, if attention is limited to documents.
  explicit LanguageObjective(std::optional<int64_t> document_end) : document_end_(document_end) {}

  absl::Status prepare(const config::JobConfig& config, const RankPlace& place) override;
  int64_t longest_row(const config::JobConfig& config) const override;
  // The tokenizer's end of a document replaces the model's, which is only a fallback.
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_training(const config::JobConfig& config,
                                                                   const DataShare& share) override;
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_validation(const config::JobConfig& config,
                                                                     const DataShare& share) override;
  // No token of it ends a document, so attention covers whole rows.
  data::Batch example(const config::JobConfig& config, int64_t rows) const override;
  // Counts the labels. Does not wait for the device.
  Microbatch microbatch(const data::Batch& batch, const MicrobatchOptions& options) const override;
  const char* unit() const override { return "token"; }
  int64_t units_of_training_row(const config::JobConfig& config) const override;
  int64_t units_of_validation_row(const config::JobConfig& config) const override;
  std::vector<std::string> notes(const config::JobConfig& config) const override;
  std::string why_nothing_validated(const config::JobConfig& config, int64_t batches) const override;
  bool has_samples() const override { return samples_ != nullptr; }
  Samples sample(const WholeModel& model, const comm::DeviceMesh& mesh) override;

 private:
  std::optional<int64_t> document_end_;  // Empty: attention covers whole rows.
  int64_t vocabulary_ = 0;
  std::unique_ptr<TextSamples> samples_;  // Null without prompts.
};

}  // namespace titan::model
