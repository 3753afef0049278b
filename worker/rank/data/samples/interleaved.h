#pragma once

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/samples/sample.h"

namespace titan::data {

// Returns the bytes of the image that a value of the list "images" stands for, or nothing after it set `problem`.
using FindImage =
    absl::FunctionRef<std::optional<std::string>(const nlohmann::ordered_json& value, std::string& problem)>;

// Fills the parts of a sample from the lists "images" and "texts" of `row`, which are of one length: at each place one
// of them has a value and the other null. Sets the sample's problem, and leaves no parts, for anything else, for an
// address of the web (nothing is downloaded in training) and for a text that is not UTF-8.
void add_interleaved(const nlohmann::ordered_json& row, FindImage find, Sample& sample);

}  // namespace titan::data
