#pragma once

#include <string>

namespace titan::models {

// Returns the hub repository with a model's tokenizer and weights: "meta-llama/Llama-3.1-8B". "" for unreleased
// flavors.
std::string repository(const std::string& name, const std::string& flavor);

// Returns advice for a user without a tokenizer, as part of a sentence.
std::string tokenizer_advice(const std::string& name, const std::string& flavor);

}  // namespace titan::models
