#pragma once

// Declares the groups of verbs that the command line offers, what it chose, and the check that a flag is an integer.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "controller/cli/globals.h"

namespace titan::cli {

// Checks that a flag is an integer of at least `least`. CLI11's own check would report a number outside a range that
// ends with the largest double.
inline CLI::Validator integer_range(int least) {
  const auto check = [least](const std::string& text) -> std::string {
    int64_t number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= least) return "";
    return absl::StrCat("'", text, "' is not an integer of at least ", least);
  };
  return CLI::Validator(check, absl::StrCat(">=", least));
}

// The same from `least` to `most`.
inline CLI::Validator integer_range(int least, int most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    int64_t number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) return "";
    return absl::StrCat("'", text, "' is not an integer from ", least, " to ", most);
  };
  return CLI::Validator(check, absl::StrCat(least, "..", most));
}

// Choices of the command line; filled while CLI11 parses, run afterwards.
struct ParsedCommand {
  Globals globals;
  std::vector<std::string> overrides;  // Configuration keys, in order.
  bool takes_overrides = false;        // The chosen verb reads a configuration.
  const CLI::App* verb = nullptr;
  std::function<int()> action;
};

// Adds the verbs of jobs to `titanctl job` and, as flat aliases, to `titanctl` itself.
void add_job_verbs(CLI::App& parent, ParsedCommand& choice, const std::string& group);
void add_node_verbs(CLI::App& parent, ParsedCommand& choice);
void add_cluster_verbs(CLI::App& parent, ParsedCommand& choice);
// Adds the verbs for the cluster's authority.
void add_certificate_verbs(CLI::App& parent, ParsedCommand& choice);
// Adds the verbs of `titanctl auth token`.
void add_token_verbs(CLI::App& parent, ParsedCommand& choice);
// Adds the verbs of `titanctl assets`.
void add_asset_verbs(CLI::App& root, ParsedCommand& choice);
// Adds version, completion, schema, config, schedule and assets.
void add_other_verbs(CLI::App& root, ParsedCommand& choice);

// Adds a subcommand with its examples, which help shows first. `act` becomes the choice's action when it is chosen.
CLI::App& add_verb(CLI::App& parent, ParsedCommand& choice, const std::string& name, const std::string& what,
                   const std::string& examples, std::function<int()> act);

// How the help of a verb writes a configuration key.
inline constexpr char kAnyKey[] = "--section.key";

// Adds to the verb's help that it accepts any configuration key after its argument; the keys themselves reach
// `ParsedCommand::overrides`.
void add_configuration_keys(CLI::App& verb, const std::string& argument = "file");
// Returns whether add_configuration_keys was called on it.
bool takes_configuration_keys(const CLI::App& verb);

}  // namespace titan::cli
