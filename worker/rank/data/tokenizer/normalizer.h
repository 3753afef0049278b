#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::data {

// The "normalizer" of a tokenizer.json: changes a text step by step before it is split.
class Normalizer {
 public:
  // Changes `text`, which is not empty. Clears `from_start` when the text's first character no longer comes from the
  // first one of the original.
  using Step = std::function<absl::Status(std::string& text, bool& from_start)>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // Returns `text` after all steps. Clears `from_start` if a step does, sets it otherwise. InvalidArgument for a text
  // that becomes a thousand times as long.
  absl::StatusOr<std::string> apply(std::string_view text, bool* from_start = nullptr) const;

 private:
  std::vector<Step> steps_;
};

// Reads a "normalizer" object. Errors: InvalidArgument, names what is not reproduced exactly.
absl::StatusOr<Normalizer> read_normalizer(const nlohmann::json& normalizer);

}  // namespace titan::data
