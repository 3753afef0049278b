#pragma once

// What a Hugging Face folder has beside its weights, so that other programs can serve it: tokenizer, chat templates and
// the defaults of generation.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"

namespace titan::checkpoint {

// Where an export has them from.
struct HfAssets {
  std::string folder;     // Of the model's tokenizer; empty: none is known.
  bool required = false;  // Somebody named the folder: what cannot be read there is an error and no warning.
};

// Whether an export takes the file `name` along: the tokenizer's files, templates, generation_config.json and licences;
// no weights, and nothing that describes how other weights are stored.
bool is_asset(const std::string& name);

// Copies them into the folder `to`, which may have some already. Returns warnings. Errors: NotFound and those of
// reading when `assets.required`; those of writing.
absl::StatusOr<std::vector<std::string>> copy_assets(storage::Files& files, const HfAssets& assets,
                                                     const std::string& to);

}  // namespace titan::checkpoint
