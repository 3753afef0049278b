#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"

namespace titan::cli {

// Prints examples before the flags. After them it prints the flags that every verb accepts, and at the root the exit
// codes.
class Help : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
};

// Finds the verb of these words ("node", "drain"), or the root without words. Returns null for an unknown verb, and
// sets `unknown` to its word.
CLI::App* find_verb(CLI::App& root, const std::vector<std::string>& words, std::string& unknown);

// Returns the names of the verbs and groups directly below `app`.
std::vector<std::string> verbs_of(const CLI::App& app);

}  // namespace titan::cli
