#pragma once

#include <functional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "controller/cli/globals.h"

namespace titan::cli {

// What the command line chose; filled while CLI11 parses, run afterwards.
struct Choice {
  Globals globals;
  std::vector<std::string> overrides;  // Configuration keys, in order.
  bool takes_overrides = false;        // The chosen verb reads a configuration.
  const CLI::App* verb = nullptr;
  std::function<int()> action;
};

// Verbs of jobs, on `titanctl job` and, as flat aliases, on `titanctl` itself.
void add_job_verbs(CLI::App& parent, Choice& choice, const std::string& group);
void add_node_verbs(CLI::App& parent, Choice& choice);
void add_cluster_verbs(CLI::App& parent, Choice& choice);
// Of the cluster: its authority.
void add_certificate_verbs(CLI::App& parent, Choice& choice);
// Of `titanctl auth token`.
void add_token_verbs(CLI::App& parent, Choice& choice);
// Of `titanctl assets`.
void add_asset_verbs(CLI::App& root, Choice& choice);
// version, completion, schema, config, schedule, assets.
void add_other_verbs(CLI::App& root, Choice& choice);

// A subcommand with its examples, which help shows first. `act` becomes the choice's action when it is chosen.
CLI::App& add_verb(CLI::App& parent, Choice& choice, const std::string& name, const std::string& what,
                   const std::string& examples, std::function<int()> act);

}  // namespace titan::cli
