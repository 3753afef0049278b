#include "worker/rank/model/language/samples.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "worker/rank/generate/generator.h"

namespace titan::model {
namespace {

// Records in `broken` [prompts] which logits are not finite, and replaces them by zeros, so that every rank makes the
// same number of passes.
generate::Forward watch_logits(generate::Forward forward, std::vector<bool>& broken) {
  return [forward = std::move(forward), &broken](const nn::MicrobatchContext& context, const at::Tensor& chosen) {
    const at::Tensor logits = forward(context, chosen);
    const at::Tensor finite = at::isfinite(logits).all(1), here = finite.to(at::kCPU);
    for (size_t row = 0; row < broken.size(); ++row) broken[row] = broken[row] || !here.const_data_ptr<bool>()[row];
    return at::where(finite.unsqueeze(1), logits, at::zeros_like(logits));
  };
}

// Returns a single line, whatever the text contains.
std::string in_quotes(const std::string& text) { return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\""); }

}  // namespace

absl::StatusOr<std::unique_ptr<TextSamples>> TextSamples::create(const config::JobConfig& config) {
  const config::ValidationSection& validation = config.validation;
  if (!validation.enable || validation.sample_prompts.empty()) return nullptr;
  std::unique_ptr<TextSamples> samples(new TextSamples);
  TITAN_ASSIGN_OR_RETURN(samples->tokenizer_, data::Tokenizer::load(config.model.hf_assets_path));
  samples->prompts_ = validation.sample_prompts;
  samples->new_tokens_ = validation.sample_max_new_tokens;
  samples->temperature_ = validation.sample_temperature;
  samples->sequence_parallel_ = config.parallelism.enable_sequence_parallel;
  for (const std::string& prompt : samples->prompts_) {
    std::vector<int32_t> ids;
    const absl::Status status = samples->tokenizer_->encode(prompt, ids);
    if (!status.ok()) return annotate(status, absl::StrCat("validation.sample_prompts: ", in_quotes(prompt)));
    // Like the beginning of each training document.
    if (const auto bos = samples->tokenizer_->bos_id()) ids.insert(ids.begin(), *bos);
    if (ids.empty())
      return absl::InvalidArgumentError(
          "validation.sample_prompts: a prompt is empty, and the tokenizer has no BOS token");
    samples->tokens_.emplace_back(ids.begin(), ids.end());
    samples->longest_ = std::max(samples->longest_, static_cast<int64_t>(ids.size()) + samples->new_tokens_);
  }
  return samples;
}

Samples TextSamples::run(const WholeModel& model, const comm::DeviceMesh& mesh, int64_t vocabulary) const {
  generate::GeneratorOptions options;
  options.max_new_tokens = new_tokens_;
  options.sampling.temperature = temperature_;
  options.device = model.device;
  if (const auto eos = tokenizer_->eos_id()) options.stop_tokens.push_back(*eos);
  if (sequence_parallel_) options.token_multiple = mesh.mesh().size(mesh::Axis::kTensor);
  const comm::Group& world = mesh.group(mesh::Axis::kWorld);
  if (world.size() > 1) {
    // Sums that differ in the last bit must not choose another token and thus another number of passes.
    options.agree = [&](std::vector<int64_t>& chosen) {
      at::Tensor tokens = at::tensor(chosen, at::kLong).to(options.device);
      world.broadcast(tokens, 0).wait();
      const at::Tensor agreed = tokens.to(at::kCPU);
      std::copy_n(agreed.const_data_ptr<int64_t>(), chosen.size(), chosen.begin());
    };
  }
  std::vector<bool> broken(prompts_.size());
  const generate::Forward forward = watch_logits(
      generate::forward_through(model.visit, model.blocks.back(), vocabulary, mesh.group(mesh::Axis::kTensor)), broken);
  const std::vector<generate::Generation> made = generate::generate(forward, model.blocks, tokens_, options);
  Samples samples;
  std::vector<std::string> not_finite;
  for (size_t i = 0; i < made.size(); ++i) {
    if (broken[i]) not_finite.push_back(in_quotes(prompts_[i]));
    if (broken[i] || mesh.rank() != 0) continue;
    const std::string text = tokenizer_->decode({made[i].tokens.begin(), made[i].tokens.end()});
    samples.lines.push_back(absl::StrCat(in_quotes(prompts_[i]), " continues as ", in_quotes(text::valid_utf8(text))));
  }
  if (!not_finite.empty()) {
    samples.not_finite =
        absl::StrCat("validation.sample_prompts: logits after ", absl::StrJoin(not_finite, ", "), " are not finite");
  }
  return samples;
}

}  // namespace titan::model
