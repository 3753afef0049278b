#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::data {

// Spaces as a visible mark that belongs to the word after it.
struct Metaspace {
  enum class Prepend {
    kAlways,  // Every piece starts with a mark.
    kFirst,   // The one at the start of the text.
    kNever,
  };
  std::string mark;
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // A word begins at each mark.

  // Calls `word` with the words of `piece`; `at_start`: that it begins the text.
  absl::Status cut(std::string_view piece, bool at_start,
                   const std::function<absl::Status(std::string_view)>& word) const;
};

// Of `where`, "pre_tokenizer" or "decoder". Errors: InvalidArgument.
absl::StatusOr<Metaspace> read_metaspace(const nlohmann::json& object, const std::string& where);

}  // namespace titan::data
