#pragma once

#include <string>

namespace titan::models {

// Where the hub has a model's tokenizer and weights: "meta-llama/Llama-3.1-8B". "" for flavors that nobody released.
std::string repository(const std::string& name, const std::string& flavor);

// What a user whose tokenizer is missing can do, as a part of a sentence.
std::string tokenizer_advice(const std::string& name, const std::string& flavor);

}  // namespace titan::models
