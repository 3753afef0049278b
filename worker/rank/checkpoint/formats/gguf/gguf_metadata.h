#pragma once

// Adds to a GGUF file what llama.cpp needs to know about the model: sizes, positions, experts, and the tokenizer.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/gguf/gguf_file.h"

namespace titan::checkpoint::gguf {

// Adds the numbers of a config.json of transformers under "{architecture}.". Errors: FailedPrecondition for a kind of
// scaled positions that llama.cpp does not compute.
absl::Status add_model(const nlohmann::json& config, const std::string& architecture, Metadata& to);

// Returns the factors, at least 1, by which Llama 3.1's scaling divides the frequencies of a head's pairs of channels,
// [head_dim / 2]; empty if the config has no such scaling. llama.cpp reads them from the tensor "rope_freqs.weight".
std::vector<float> frequency_factors(const nlohmann::json& config);

// Adds a folder's tokenizer of byte pairs (tokenizer.json), with its special tokens and chat template. Tokens up to
// `vocab_size` that it lacks become unused ones. An empty folder: the file has no vocabulary, and programs pass ids.
// `split`: llama.cpp's name of the rule that cuts a text into words; empty: found by the rule itself. Returns warnings.
// Errors: those of reading the files; FailedPrecondition for another kind of tokenizer, or a rule without a name there.
absl::StatusOr<std::vector<std::string>> add_tokenizer(const std::string& folder, int64_t vocab_size,
                                                       const std::string& split, Metadata& to);

}  // namespace titan::checkpoint::gguf
