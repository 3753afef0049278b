#include "common/plan/hf_config/generation.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace titan::hf_config {
namespace {

using nlohmann::json;

// Skipped keys: special tokens, length limits, sampling, and how the computation is done.
constexpr std::string_view kIgnoredSettings[] = {"eos_token_id",
                                                 "bos_token_id",
                                                 "pad_token_id",
                                                 "decoder_start_token_id",
                                                 "do_sample",
                                                 "temperature",
                                                 "top_k",
                                                 "top_p",
                                                 "min_p",
                                                 "typical_p",
                                                 "epsilon_cutoff",
                                                 "eta_cutoff",
                                                 "max_length",
                                                 "max_new_tokens",
                                                 "max_time",
                                                 "transformers_version",
                                                 "use_cache",
                                                 "cache_implementation",
                                                 "cache_config",
                                                 "return_legacy_cache",
                                                 "prefill_chunk_size",
                                                 "compile_config",
                                                 "disable_compile",
                                                 "num_return_sequences",
                                                 "output_attentions",
                                                 "output_hidden_states",
                                                 "output_scores",
                                                 "output_logits",
                                                 "return_dict_in_generate",
                                                 "early_stopping",
                                                 "length_penalty",
                                                 "low_memory",
                                                 "is_assistant",
                                                 "assistant_confidence_threshold",
                                                 "assistant_early_exit",
                                                 "assistant_lookbehind",
                                                 "target_lookbehind",
                                                 "num_assistant_tokens",
                                                 "num_assistant_tokens_schedule",
                                                 "max_matching_ngram_size",
                                                 "prompt_lookup_num_tokens",
                                                 "language",
                                                 "trust_remote_code"};

// Settings whose off value is 1. All others are off when null, false, 0 or empty.
constexpr std::string_view kOffAtOne[] = {"repetition_penalty", "encoder_repetition_penalty", "num_beams",
                                          "num_beam_groups", "guidance_scale"};

template <typename Names>
bool is_in(const Names& names, const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_off(const std::string& name, const json& value) {
  if (value.is_null() || value.empty()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_number() && value.get<double>() == (is_in(kOffAtOne, name) ? 1 : 0);
}

}  // namespace

std::vector<int64_t> stop_tokens_of(const json& file) {
  std::vector<int64_t> tokens;
  if (!file.is_object()) return tokens;
  const json said = file.value("eos_token_id", json());
  for (const json& token : said.is_array() ? said : json::array({said})) {
    if (token.is_number_integer()) tokens.push_back(token.get<int64_t>());
  }
  return tokens;
}

GenerationConfig read_generation_config(const json& file) {
  GenerationConfig generation{.stop_tokens = stop_tokens_of(file), .not_applied = {}};
  if (!file.is_object()) return generation;
  for (const auto& [name, value] : file.items()) {
    if (name.starts_with("_") || is_in(kIgnoredSettings, name) || is_off(name, value)) continue;
    generation.not_applied.push_back(absl::StrCat(name, " = ", value.dump()));
  }
  return generation;
}

}  // namespace titan::hf_config
