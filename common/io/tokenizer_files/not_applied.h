#pragma once

#include <string>
#include <vector>

#include "common/io/tokenizer_files/find.h"

namespace titan::tokenizer_files {

// Parts of a tokenizer.json that are saved after a training and are not applied here: "truncation" and "padding", one
// sentence each, for a warning. Empty for other kinds of files.
std::vector<std::string> not_applied(const Found& found);

// The same of a folder; empty where it holds no tokenizer.
std::vector<std::string> not_applied(const std::string& folder);

}  // namespace titan::tokenizer_files
