#pragma once

// Copies what a Hugging Face folder has apart from weights, so that other programs can serve it: tokenizer, chat
// templates and defaults of generation.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::checkpoint {

// The source of an export's assets.
struct HfAssets {
  std::string folder;     // Folder of the model's tokenizer; empty: unknown.
  bool required = false;  // The user named the folder: what cannot be read there is an error, not a warning.
};

// Returns whether an export includes the file `name`: the tokenizer's files, templates, generation_config.json and
// licences, but no weights, and nothing that describes how other weights are stored.
bool is_asset(const std::string& name);

// Copies the assets into the folder `to`, which may have some already. Returns warnings. Errors: those of writing; if
// `assets.required`, also NotFound and those of reading.
absl::StatusOr<std::vector<std::string>> copy_assets(storage::Files& files, const HfAssets& assets,
                                                     const std::string& to);

}  // namespace titan::checkpoint
