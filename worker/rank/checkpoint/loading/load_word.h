#pragma once

// What a rank, or several, say of a load: whether they could read their part, and what they have no place for.

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace titan::checkpoint {

struct LoadWord {
  absl::Status status;
  std::vector<size_t> unclaimed;  // Numbers of the candidate's tensors (StagedLoad::held), ascending.
};
std::string to_text(const LoadWord& word);
LoadWord load_word_in(const std::string& text);

// Of several: a tensor that does not fit outweighs what may be a bad disk, since no older step would fit either; and
// what none of them has a place for.
std::string join_load_words(const std::vector<std::string>& words);

}  // namespace titan::checkpoint
