#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/text/nearest.h"
#include "common/base/version/version.h"
#include "common/plan/config/json.h"
#include "controller/cli/cluster_commands.h"
#include "controller/cli/completion.h"
#include "controller/cli/job_source.h"
#include "controller/cli/node_commands.h"
#include "controller/cli/schedule_commands.h"
#include "controller/cli/terminal.h"
#include "controller/cli/verbs.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

int show_version(const Globals& globals) {
  if (globals.format == OutputFormat::kTable) {
    print(version_text("titanctl", {globals.wide ? "--verbose" : ""}) + "\n");
  } else {
    nlohmann::ordered_json shown = {
        {"version", version()}, {"revision", revision()}, {"build", nlohmann::ordered_json::object()}};
    for (const auto& [name, value] : build_manifest()) shown["build"][name] = value;
    print(shown, globals.format);
  }
  return kExitOk;
}

int show_completion(const std::string& shell) {
  const auto script = completion_script(shell);
  if (!script.ok()) return report(script.status());
  print(*script);
  return kExitOk;
}

int dump_config(const Globals& globals, const Source& source, bool changed) {
  const auto prepared = prepare(source);
  if (!prepared.ok()) return report(prepared.status());
  if (globals.format == OutputFormat::kTable) {
    print(config::to_toml(prepared->loaded.config, changed));
  } else {
    print(nlohmann::ordered_json::parse(config::to_json(prepared->loaded.config).dump()), globals.format);
  }
  return kExitOk;
}

int config_help(const std::string& section) {
  const std::vector<std::string> sections = config::section_names();
  if (!section.empty() && std::find(sections.begin(), sections.end(), section) == sections.end()) {
    return report(
        absl::InvalidArgumentError(absl::StrCat("no section '", section, "'", did_you_mean(section, sections))));
  }
  print(config::help(section));
  return kExitOk;
}

void add_schedule_verbs(CLI::App& root, ParsedCommand& choice) {
  CLI::App* schedule = root.add_subcommand("schedule", "Pipeline schedules")->group("Other");
  schedule->fallthrough()->allow_extras()->require_subcommand(0, 1)->footer("");

  auto request = std::make_shared<ScheduleRequest>();
  auto nproc = std::make_shared<std::string>();
  request->source.check_files = false;
  request->source.may_be_empty = true;
  CLI::App& show = add_verb(*schedule, choice, "show",
                            "Draw the pipeline schedule of a configuration, a name or a file, with bubble and memory",
                            "titanctl schedule show job.toml --nproc 8 --by-flops --svg job.svg\n"
                            "titanctl schedule show --schedule ZBVZeroBubble --ranks 4 --microbatches 8\n"
                            "titanctl schedule show --csv mine.csv --costs 1,1.2,0.8,0.1",
                            [&choice, request, nproc] {
                              choice.takes_overrides = true;
                              request->source.overrides = choice.overrides;
                              if (!nproc->empty()) {
                                request->source.overrides.insert(request->source.overrides.end(), {"--nproc", *nproc});
                              }
                              return show_schedule(choice.globals, *request);
                            });
  show.add_option("file", request->source.file, "Configuration; none: --csv, or --schedule and sizes");
  show.add_option("--nproc", *nproc, "Ranks of the whole job: --resources.ranks");
  show.add_option("--schedule", request->name, "1F1B, GPipe, Interleaved1F1B, ... (1F1B)");
  show.add_option("--ranks", request->ranks, "Pipeline ranks (4)");
  show.add_option("--microbatches", request->microbatches, "Microbatches of a step (8)");
  show.add_option("--stages-per-rank", request->stages_per_rank,
                  "Stages of each rank (default: the schedule's usual number)");
  show.add_option("--csv", request->csv, "File in torch's form: a row per rank, cells such as 0F3, 2I0, 2W0, 1B2");
  show.add_option("--costs", request->costs, "F,I,W[,transfer]: time of each (1,1,1,0); B takes I + W");
  show.add_flag("--by-flops", request->by_flops, "Stages take as long as their FLOPs, recomputation included");
  show.add_flag("--overlap-pairs", request->pairs_overlap, "The halves of a paired step run at the same time");
  show.add_option("--width", request->width,
                  "Columns of the drawing (the terminal's, else 160); 0: every pass by name");
  show.add_option("--svg", request->svg, "File to draw into");
  show.add_flag("--as-csv", request->write_csv, "Print the schedule in torch's form instead");
  add_configuration_keys(show);
}

void add_config_verbs(CLI::App& root, ParsedCommand& choice) {
  CLI::App* config = root.add_subcommand("config", "Show configurations and their keys")->group("Other");
  config->fallthrough()->allow_extras()->require_subcommand(0, 1)->footer("");

  struct Dump {
    Source source;
    bool changed = false;
  };
  auto dumped = std::make_shared<Dump>();
  dumped->source.check_files = false;
  dumped->source.may_be_empty = true;
  CLI::App& dump = add_verb(
      *config, choice, "dump", "The resolved configuration, as TOML unless -o says otherwise",
      "titanctl config dump job.toml --training.steps 10\ntitanctl config dump --changed job.toml", [&choice, dumped] {
        choice.takes_overrides = true;
        dumped->source.overrides = choice.overrides;
        return dump_config(choice.globals, dumped->source, dumped->changed);
      });
  dump.add_option("file", dumped->source.file, "Configuration; none: the defaults");
  dump.add_option("--format", dumped->source.format, "Format of standard input: toml, yaml or json");
  dump.add_flag("--changed", dumped->changed, "Only what differs from the defaults");
  add_configuration_keys(dump);

  auto section = std::make_shared<std::string>();
  add_verb(*config, choice, "help", "Every key with its meaning, default and allowed values",
           "titanctl config help checkpoint", [section] { return config_help(*section); })
      .add_option("section", *section, "Only this section");
}

}  // namespace

CLI::App& add_verb(CLI::App& parent, ParsedCommand& choice, const std::string& name, const std::string& what,
                   const std::string& examples, std::function<int()> act) {
  CLI::App* verb = parent.add_subcommand(name, what);
  verb->footer(examples);
  verb->fallthrough();
  verb->allow_extras();
  verb->final_callback([verb, &choice, act = std::move(act)] {
    choice.verb = verb;
    choice.action = act;
  });
  return *verb;
}

void add_configuration_keys(CLI::App& verb, const std::string& argument) {
  const std::string meaning = absl::StrCat("Any configuration key, after the ", argument, ": --training.steps 100");
  verb.add_option(kAnyKey, meaning)->group("Configuration keys");
}

bool takes_configuration_keys(const CLI::App& verb) { return verb.get_option_no_throw(kAnyKey) != nullptr; }

void add_node_verbs(CLI::App& parent, ParsedCommand& choice) {
  add_verb(parent, choice, "list", "Nodes by name", "titanctl node list",
           [&choice] { return list_nodes(choice.globals); });

  auto node = std::make_shared<std::string>();
  add_verb(parent, choice, "describe", "One node", "titanctl node describe n1",
           [&choice, node] { return describe_node(choice.globals, *node); })
      .add_option("node", *node, "Node")
      ->required();

  struct Cordon {
    std::vector<std::string> nodes;
    std::string reason;
  };
  auto cordoned = std::make_shared<Cordon>();
  CLI::App& cordon = add_verb(parent, choice, "cordon", "Place no new ranks on nodes; running ones stay",
                              "titanctl node cordon n1 --reason 'disk is failing'", [&choice, cordoned] {
                                return cordon_nodes(choice.globals, cordoned->nodes, cordoned->reason);
                              });
  cordon.add_option("node", cordoned->nodes, "Nodes")->required();
  cordon.add_option("--reason", cordoned->reason, "Reason that the list shows");

  struct Drain : Cordon {
    bool wait = false;
  };
  auto drained = std::make_shared<Drain>();
  CLI::App& drain = add_verb(
      parent, choice, "drain", "Empty nodes: place no new ranks there; running jobs save and continue elsewhere",
      "titanctl node drain n1 --wait --reason 'new disk'\ntitanctl node drain n1 n2 --wait --timeout 600",
      [&choice, drained] { return drain_nodes(choice.globals, drained->nodes, drained->reason, drained->wait); });
  drain.add_option("node", drained->nodes, "Nodes")->required();
  drain.add_option("--reason", drained->reason, "Reason that the list shows");
  drain.add_flag("--wait", drained->wait, "Wait until nothing runs there; --timeout SECONDS limits it");

  struct Unknown {
    std::string node, job_uid;
    double grace_seconds = 30;
  };
  auto unknown = std::make_shared<Unknown>();
  CLI::App& stop = add_verb(
      parent, choice, "stop", "End the ranks that a node runs for a job that the controller does not know",
      "titanctl node describe n1     # lists them\ntitanctl node stop n1 --unknown JOB_UID", [&choice, unknown] {
        return stop_unknown(choice.globals, unknown->node, unknown->job_uid, unknown->grace_seconds);
      });
  stop.add_option("node", unknown->node, "Node")->required();
  stop.add_option("--unknown", unknown->job_uid, "Uid of the job, as `titanctl node describe` shows it")->required();
  stop.add_option("--grace-seconds", unknown->grace_seconds, "Time to save before the ranks are killed")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();

  auto freed = std::make_shared<std::vector<std::string>>();
  add_verb(parent, choice, "uncordon", "Place ranks on nodes again", "titanctl node uncordon n1",
           [&choice, freed] { return uncordon_nodes(choice.globals, *freed); })
      .add_option("node", *freed, "Nodes")
      ->required();

  auto deleted = std::make_shared<std::vector<std::string>>();
  auto forced = std::make_shared<bool>(false);
  CLI::App& delete_verb =
      add_verb(parent, choice, "delete", "Delete nodes that are lost and will not come back, with their events",
               "titanctl node delete n7 n8",
               [&choice, deleted, forced] { return delete_nodes(choice.globals, *deleted, *forced); });
  delete_verb.add_option("node", *deleted, "Nodes")->required();
  delete_verb.add_flag(
      "--force", *forced,
      "Also while ranks may still run there: for a machine that is known to be off. Jobs that wait for "
      "its ranks to end no longer do");
}

void add_cluster_verbs(CLI::App& parent, ParsedCommand& choice) {
  add_verb(parent, choice, "info", "Which cluster this is, its nodes and jobs", "titanctl cluster info",
           [&choice] { return show_cluster(choice.globals); });

  struct Backup {
    std::string file, state;
    bool force = false;
  };
  auto made = std::make_shared<Backup>();
  CLI::App& backup =
      add_verb(parent, choice, "backup", "Copy the controller's store into a file, while the controller runs",
               "titanctl cluster backup titan-$(date +%F).db",
               [&choice, made] { return back_up(choice.globals, made->file, made->force); });
  backup.add_option("file", made->file, "File to write; appears when it is whole")->required();
  backup.add_flag("--force", made->force, "Replace the file if it is there");

  auto bundle = std::make_shared<DebugOptions>();
  CLI::App& collect =
      add_verb(parent, choice, "debug", "Collect diagnostics for a bug report, without secrets, into one file",
               "titanctl cluster debug\ntitanctl cluster debug --out fault.tar.gz",
               [&choice, bundle] { return debug(choice.globals, *bundle); });
  collect.add_option("--out", bundle->file, "File to write, .tar.gz; titan-debug-TIME.tar.gz unless it is given");
  collect
      .add_option("--worker-metrics-port", bundle->worker_metrics_port,
                  "Port of the workers' metrics pages, at the nodes' addresses; 0: leave them out")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();

  auto taken = std::make_shared<Backup>();
  CLI::App& back =
      add_verb(parent, choice, "restore", "Put a backup into the state folder of a controller that is stopped",
               "titanctl cluster restore titan-2026-11-22.db --state /var/lib/titan/controller",
               [taken] { return restore(taken->file, taken->state); });
  back.add_option("file", taken->file, "A file of `titanctl cluster backup`")->required();
  back.add_option("--state", taken->state, "The controller's --state: empty or missing")->required();
}

void add_other_verbs(CLI::App& root, ParsedCommand& choice) {
  add_verb(root, choice, "version", "The version", "titanctl version -o json", [&choice] {
    return show_version(choice.globals);
  }).group("Other");
  auto shell = std::make_shared<std::string>();
  CLI::App& completion = add_verb(root, choice, "completion", "A completion script for bash, zsh or fish",
                                  "source <(titanctl completion bash)", [shell] { return show_completion(*shell); });
  completion.group("Other");
  completion.add_option("shell", *shell, "bash, zsh or fish")->required();
  add_verb(root, choice, "schema", "JSON Schema of the configuration, for editors",
           "titanctl schema > titan.schema.json",
           [] {
             print(config::json_schema().dump(2) + "\n");
             return static_cast<int>(kExitOk);
           })
      .group("Other");
  add_config_verbs(root, choice);
  add_schedule_verbs(root, choice);
  add_asset_verbs(root, choice);
}

}  // namespace titan::cli
