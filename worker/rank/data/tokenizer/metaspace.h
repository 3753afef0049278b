#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace titan::data {

// Replaces spaces by a visible mark that belongs to the word after it.
struct Metaspace {
  enum class Prepend {
    kAlways,  // Every piece starts with a mark.
    kFirst,   // Only the piece at the start of the text does.
    kNever,
  };
  std::string mark;
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // A word begins at each mark.

  // Calls `word` with each word of `piece`. `at_start`: the piece begins the text.
  absl::Status cut(std::string_view piece, bool at_start,
                   const std::function<absl::Status(std::string_view)>& word) const;
};

// Reads a "Metaspace" object; `where` ("pre_tokenizer" or "decoder") names it in errors. Errors: InvalidArgument.
absl::StatusOr<Metaspace> read_metaspace(const nlohmann::json& object, const std::string& where);

}  // namespace titan::data
