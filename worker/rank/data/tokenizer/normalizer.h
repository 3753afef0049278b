#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::data {

// What a tokenizer.json's "normalizer" makes of a text before it is cut, step by step.
class Normalizer {
 public:
  // Changes `text`, which is not empty. `from_start` stays true while the text's first character comes from the first
  // one of the original.
  using Step = std::function<absl::Status(std::string& text, bool& from_start)>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // InvalidArgument for a text that becomes a thousand times as long.
  absl::StatusOr<std::string> apply(std::string_view text, bool* from_start = nullptr) const;

 private:
  std::vector<Step> steps_;
};

// Errors: InvalidArgument, names what is not reproduced exactly.
absl::StatusOr<Normalizer> read_normalizer(const nlohmann::json& normalizer);

}  // namespace titan::data
