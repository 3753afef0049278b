#include "worker/rank/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "worker/rank/nn/random.h"

namespace titan::generate {
namespace {

// The possible tokens of one row and their weights in float64; sorted by weight if some are left out.
struct Choices {
  std::vector<int64_t> tokens;
  std::vector<double> weights;
};

Choices choices_of(const double* logits, int64_t vocabulary, const SamplingOptions& options) {
  Choices choices;
  choices.tokens.resize(static_cast<size_t>(vocabulary));
  std::iota(choices.tokens.begin(), choices.tokens.end(), int64_t{0});
  const auto likelier = [logits](int64_t a, int64_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const bool all = options.top_k == 0 || options.top_k >= vocabulary;
  const auto end = all ? choices.tokens.end() : choices.tokens.begin() + options.top_k;
  if (!all || options.top_p < 1) std::partial_sort(choices.tokens.begin(), end, choices.tokens.end(), likelier);
  choices.tokens.erase(end, choices.tokens.end());
  const double top = *std::max_element(logits, logits + vocabulary);
  for (const int64_t token : choices.tokens)
    choices.weights.push_back(std::exp((logits[token] - top) / options.temperature));
  return choices;
}

// Keeps the most likely tokens, up to and including the one that reaches `top_p`.
void keep_nucleus(Choices& choices, double top_p) {
  const double wanted = top_p * std::accumulate(choices.weights.begin(), choices.weights.end(), 0.0);
  double sum = 0;
  size_t kept = 0;
  while (kept < choices.weights.size() && sum < wanted) sum += choices.weights[kept++];
  kept = std::max<size_t>(kept, 1);
  choices.tokens.resize(kept);
  choices.weights.resize(kept);
}

int64_t pick(const Choices& choices, double draw) {
  double left = draw * std::accumulate(choices.weights.begin(), choices.weights.end(), 0.0);
  for (size_t i = 0; i < choices.tokens.size(); ++i) {
    left -= choices.weights[i];
    if (left < 0) return choices.tokens[i];
  }
  return choices.tokens.back();  // Rounding may leave a rest.
}

}  // namespace

absl::Status check(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature))
    return absl::InvalidArgumentError(
        absl::StrCat("temperature (", options.temperature, ") must be 0 (greedy) or more"));
  if (options.top_k < 0)
    return absl::InvalidArgumentError(absl::StrCat("top-k (", options.top_k, ") must be 0 (all) or more"));
  if (!(options.top_p > 0 && options.top_p <= 1))
    return absl::InvalidArgumentError(absl::StrCat("top-p (", options.top_p, ") must be above 0 and at most 1 (all)"));
  return absl::OkStatus();
}

double draw(uint64_t seed, int64_t prompt, int64_t token) {
  nn::PhiloxWords words;
  nn::philox(nn::stream_key(seed, absl::StrCat("prompt ", prompt)), static_cast<uint64_t>(token), words);
  const uint64_t bits = uint64_t{words[0][0]} << 32 | words[1][0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::vector<int64_t> sample(const at::Tensor& logits, const SamplingOptions& options,
                            const std::vector<double>& draws) {
  const int64_t rows = logits.size(0);
  std::vector<int64_t> tokens;
  const at::Tensor finite = at::isfinite(logits).all(1);
  if (options.temperature == 0) {
    const at::Tensor best = at::where(finite, logits.argmax(1), kNoToken).to(at::kCPU).contiguous();
    return {best.const_data_ptr<int64_t>(), best.const_data_ptr<int64_t>() + rows};
  }
  const at::Tensor usable = finite.to(at::kCPU).contiguous();
  const at::Tensor wide = logits.to(at::kCPU, at::kDouble).contiguous();
  for (int64_t row = 0; row < rows; ++row) {
    if (!usable.const_data_ptr<bool>()[row]) {
      tokens.push_back(kNoToken);
      continue;
    }
    Choices choices = choices_of(wide.const_data_ptr<double>() + row * wide.size(1), wide.size(1), options);
    if (options.top_p < 1) keep_nucleus(choices, options.top_p);
    tokens.push_back(pick(choices, draws.at(static_cast<size_t>(row))));
  }
  return tokens;
}

}  // namespace titan::generate
