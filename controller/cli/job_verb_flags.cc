#include <limits>
#include <memory>

#include "controller/cli/bench.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_names.h"
#include "controller/cli/run.h"
#include "controller/cli/verbs.h"

namespace titan::cli {
namespace {

// Accepts names in every form (job_names.h).
template <typename Value>
CLI::Option& add_job(CLI::App& verb, Value& value, const std::string& what = "Job: ID or PROJECT/ID") {
  return *verb.add_option("job", value, what)->transform([](const std::string& word) { return full_name(word); });
}

// Selects jobs by name or by what they have in common. `label_flags`: the flags that select by a label.
void add_selection(CLI::App& verb, JobSelection& selection, const std::string& which, const std::string& label_flags) {
  add_job(verb, selection.names, "Jobs: ID or PROJECT/ID");
  verb.add_flag("--all", selection.all, "Each of your jobs " + which);
  verb.add_flag("--all-owners", selection.all_owners, "With --all: also those of others");
  verb.add_option(label_flags, selection.labels,
                  "Those with KEY=VALUE, KEY!=VALUE or KEY, of all owners; may be given several times")
      ->allow_extra_args(false);
  verb.add_option("--owner", selection.owner, "Jobs of this user; me: your own");
  verb.add_flag("--yes", selection.yes, "Do not ask about jobs that are not named");
}

// The file, --format and the flags that stand for configuration keys.
struct SourceFlags {
  Source source;
  std::string ranks;  // Text, so that common/plan/config reports what is wrong with it.
  std::string nodes;
  bool no_file_checks = false;

  void add_to(CLI::App& verb) {
    verb.add_option("file", source.file, "Configuration: .toml, .yaml or .json; - reads standard input");
    verb.add_option("--format", source.format,
                    "Format of standard input: toml, yaml or json (default: guessed from its content)");
    verb.add_option("--nproc", ranks, "Ranks: --resources.ranks; placed freely unless --nodes says how");
    verb.add_option("--nodes", nodes, "Spread the ranks over this many nodes: --resources.ranks_per_node");
    verb.add_flag("--no-file-checks", no_file_checks,
                  "Do not check tokenizer, data and checkpoint folders on this machine");
    add_configuration_keys(verb);
  }

  Source resolved(const ParsedCommand& choice) const {
    Source out = source;
    out.overrides = choice.overrides;
    if (!ranks.empty()) out.overrides.insert(out.overrides.end(), {"--nproc", ranks});
    if (!nodes.empty()) out.overrides.insert(out.overrides.end(), {"--nodes", nodes});
    out.check_files = !no_file_checks;
    if (project_is_given()) out.project = project();
    return out;
  }
};

CLI::App& add_source_verb(CLI::App& parent, ParsedCommand& choice, const std::string& name, const std::string& what,
                          const std::string& examples, SourceFlags& flags, std::function<int()> act) {
  CLI::App& verb = add_verb(parent, choice, name, what, examples, [&choice, act = std::move(act)] {
    choice.takes_overrides = true;
    return act();
  });
  flags.add_to(verb);
  return verb;
}

void add_submit_flags(CLI::App& verb, SubmitOptions& options) {
  verb.add_option("--job-id", options.job_id, "Id of the job (default: the controller chooses)");
  verb.add_option("--label", options.labels, "KEY=VALUE, to find the job again; may be given several times")
      ->allow_extra_args(false);
  verb.add_flag("--dry-run", options.dry_run, "The controller checks everything and queues nothing");
  verb.add_flag("--require-fit", options.require_fit,
                "Refuse a job that the present nodes could never run or hold in memory, instead of warning");
  verb.add_flag("--wait", options.wait, "Wait for the job's end; the exit code reports the result");
  verb.add_flag("-q,--quiet", options.quiet, "Print only the job's id");
}

void add_submit(CLI::App& parent, ParsedCommand& choice) {
  auto flags = std::make_shared<SourceFlags>();
  auto options = std::make_shared<SubmitOptions>();
  CLI::App& verb = add_source_verb(parent, choice, "submit", "Check a job and queue it",
                                   "titanctl submit configs/llama3_tiny.toml --nproc 2\n"
                                   "titanctl submit job.yaml --wait --training.steps 100 --checkpoint.interval=10\n"
                                   "generate-config | titanctl submit - --format toml -q",
                                   *flags, [&choice, flags, options] {
                                     options->source = flags->resolved(choice);
                                     return submit(choice.globals, *options);
                                   });
  add_submit_flags(verb, *options);
}

void add_resubmit(CLI::App& parent, ParsedCommand& choice) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App& verb =
      add_verb(parent, choice, "resubmit",
               "Queue the configuration of an earlier job again; it resumes from its newest checkpoint",
               "titanctl resubmit my-job\ntitanctl resubmit my-job --training.steps 2000 --wait", [&choice, options] {
                 choice.takes_overrides = true;
                 options->source.overrides = choice.overrides;
                 return submit(choice.globals, *options);
               });
  add_job(verb, options->earlier).required();
  add_configuration_keys(verb, "job");
  add_submit_flags(verb, *options);
}

void add_run(CLI::App& parent, ParsedCommand& choice) {
  auto flags = std::make_shared<SourceFlags>();
  auto options = std::make_shared<RunOptions>();
  CLI::App& verb =
      add_source_verb(parent, choice, "run", "Run a job here, without a cluster; Ctrl-C saves and stops",
                      "titanctl run configs/llama3_tiny.toml --nproc 2\n"
                      "titanctl run configs/llama3_tiny.toml --job.dump_folder /tmp/try --training.steps 50",
                      *flags, [&choice, flags, options] {
                        options->source = flags->resolved(choice);
                        return run(choice.globals, *options);
                      });
  verb.add_flag("--all-ranks", options->all_ranks, "Show the log of every rank, not only of rank 0");
  verb.add_flag("--keep-state", options->keep_state, "Keep the private daemons' folder");
}

void add_bench(CLI::App& parent, ParsedCommand& choice) {
  auto flags = std::make_shared<SourceFlags>();
  auto options = std::make_shared<BenchOptions>();
  CLI::App& verb = add_source_verb(
      parent, choice, "bench",
      "Measure how fast a job trains here and where its time goes; Ctrl-C leaves nothing behind\n"
      "Runs it with a private controller and worker and dump folders that it removes: without validation, profiler "
      "and, "
      "unless requested, checkpoints.",
      "titanctl bench configs/llama3_tiny.toml --nproc 2\n"
      "titanctl bench job.toml --steps 50 --variant long='--training.seq_len 4096 --training.local_batch_size 1'\n"
      "titanctl bench job.toml --variant reference='--resources.kernels reference' -o json > kernels.json\n"
      "titanctl bench job.toml --checkpoint --folder /mnt/checkpoints",
      *flags, [&choice, flags, options] {
        options->source = flags->resolved(choice);
        return bench(choice.globals, *options);
      });
  verb.add_option("--steps", options->steps, "Measured steps of each run")
      ->check(CLI::Range(2, 1000000))
      ->capture_default_str();
  verb.add_option("--warmup", options->warmup, "Warm-up steps before them")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  verb.add_option("--repeat", options->repeats, "Runs of each configuration; configurations alternate")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb.add_option("--variant", options->variants,
                  "NAME='--section.key value ...': another configuration, with its ratio to the first; may be given "
                  "several times")
      ->allow_extra_args(false);
  verb.add_flag("--checkpoint", options->checkpoint, "Save once in each run, asynchronously, and measure that");
  verb.add_option("--folder", options->folder, "Existing folder for the dump folders (default: Titan's cache)")
      ->check(CLI::ExistingDirectory);
}

void add_validate(CLI::App& parent, ParsedCommand& choice) {
  auto flags = std::make_shared<SourceFlags>();
  add_source_verb(parent, choice, "validate", "Check a configuration; needs no controller",
                  "titanctl validate configs/llama3_8b.toml --nproc 64 --no-file-checks\ntitanctl validate job.toml -o "
                  "json   # the "
                  "resolved configuration",
                  *flags, [&choice, flags] { return validate(choice.globals, flags->resolved(choice)); });
}

void add_reading_verbs(CLI::App& parent, ParsedCommand& choice) {
  auto list_options = std::make_shared<ListOptions>();
  CLI::App& list_verb = add_verb(parent, choice, "list", "Jobs, newest first",
                                 "titanctl list --state running,queued\ntitanctl list -o wide\n"
                                 "titanctl list -l team=vision --owner alice --sort-by 'priority desc, create_time'\n"
                                 "titanctl list --filter 'state = FAILED AND end_time > -2h'",
                                 [&choice, list_options] { return list(choice.globals, *list_options); });
  JobQuery& query = list_options->query;
  list_verb.add_flag("-a,--all", list_options->all,
                     "Also jobs that ended more than a day ago, which a table hides unless jobs are selected by "
                     "another flag");
  list_verb.add_option("--state", query.states, "Only jobs in these states")->delimiter(',');
  list_verb.add_option("--project", query.project,
                       "Only jobs of this project (TITAN_PROJECT, else all that you may see); '*': all");
  list_verb.add_option("--filter", query.filter,
                       "Only jobs that match: comparisons of state, name, id, project, owner, title, priority, "
                       "ranks, device, labels.KEY, create_time, start_time, end_time and progress.step, with AND, OR, "
                       "NOT and parentheses");
  list_verb.add_option("--sort-by", query.sort_by, "Fields as in --filter: 'priority desc, create_time'");
  list_verb.add_option("-l,--label", query.labels, "KEY=VALUE, KEY!=VALUE or KEY; may be given several times")
      ->allow_extra_args(false);
  list_verb.add_option("--owner", query.owner, "Only jobs of this user; me: your own");
  list_verb.add_option("--limit", query.limit, "At most this many")->check(integer_range(1));

  auto described = std::make_shared<std::string>();
  add_job(add_verb(parent, choice, "describe", "One job: state, progress, every attempt and why it ended",
                   "titanctl describe my-job", [&choice, described] { return describe(choice.globals, *described); }),
          *described)
      .required();

  auto diagnosed = std::make_shared<std::pair<std::string, int>>();
  CLI::App& diagnose_verb = add_verb(
      parent, choice, "diagnose", "Why an attempt stalled: which rank diverged first, and where every rank was",
      "titanctl diagnose my-job\ntitanctl diagnose my-job --attempt 2",
      [&choice, diagnosed] { return diagnose(choice.globals, diagnosed->first, diagnosed->second); });
  add_job(diagnose_verb, diagnosed->first).required();
  diagnose_verb.add_option("--attempt", diagnosed->second, "Attempt to show (default: the newest that stalled)")
      ->check(integer_range(1));

  auto log_options = std::make_shared<LogsOptions>();
  CLI::App& logs_verb = add_verb(parent, choice, "logs", "Show what the ranks printed",
                                 "titanctl logs -f my-job --rank 0\ntitanctl logs my-job --attempt 1 --tail 50",
                                 [&choice, log_options] { return logs(choice.globals, *log_options); });
  add_job(logs_verb, log_options->job).required();
  logs_verb.add_flag("-f,--follow", log_options->follow, "Until the job ends, across restarts");
  logs_verb.add_option("--rank", log_options->ranks, "Only these ranks (default: all)")
      ->delimiter(',')
      ->allow_extra_args(false)  // `--rank 0,7 my-job`
      ->check(integer_range(0));
  logs_verb.add_option("--attempt", log_options->attempt, "Attempt to show (default: the newest)")
      ->check(integer_range(1));
  logs_verb.add_option("--tail", log_options->tail, "Only the last lines")->check(integer_range(0));

  auto event_options = std::make_shared<EventsOptions>();
  CLI::App& events_verb =
      add_verb(parent, choice, "events", "Events of a job or a node, oldest first; -o json: one object per line",
               "titanctl events -f my-job\ntitanctl events --node n1",
               [&choice, event_options] { return events(choice.globals, *event_options); });
  add_job(events_verb, event_options->job, "Job: ID or PROJECT/ID (default: everything)");
  events_verb.add_option("--node", event_options->node, "Events of this node");
  events_verb.add_flag("-f,--follow", event_options->follow, "Later events too");
  events_verb.add_option("--after", event_options->after, "Only events after this revision")->check(integer_range(0));
}

void add_acting_verbs(CLI::App& parent, ParsedCommand& choice) {
  auto cancelled = std::make_shared<CancelOptions>();
  CLI::App& cancel_verb =
      add_verb(parent, choice, "cancel", "Stop jobs for good; they save at a step edge first",
               "titanctl cancel my-job --wait\ntitanctl cancel --all --yes --now\ntitanctl cancel -l team=vision",
               [&choice, cancelled] { return cancel(choice.globals, *cancelled); });
  add_selection(cancel_verb, cancelled->selection, "that is queued or running", "-l,--label");
  cancel_verb.add_flag("--now", cancelled->now, "Kill the ranks at once, without saving");
  cancel_verb.add_flag("--wait", cancelled->wait, "Wait until they have ended");

  auto updated = std::make_shared<UpdateOptions>();
  CLI::App& update_verb =
      add_verb(parent, choice, "update", "Change a job's priority, title or labels; its configuration stays",
               "titanctl update my-job --priority 10\ntitanctl update my-job --label team=vision --label old-\n"
               "titanctl update -l team=vision --priority 5",
               [&choice, updated] { return update(choice.globals, *updated); });
  add_selection(update_verb, updated->selection, "that is queued or running", "-l,--selector");
  update_verb.add_option("--priority", updated->priority, "Jobs with a higher priority are placed first")
      ->check(integer_range(std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
  update_verb.add_option("--title", updated->title, "Title that `titanctl list` shows");
  update_verb.add_option("--label", updated->set_labels, "KEY=VALUE, or KEY- to remove it; may be given several times")
      ->allow_extra_args(false);

  auto deleted = std::make_shared<JobSelection>();
  CLI::App& delete_verb = add_verb(parent, choice, "delete", "Delete jobs that are over; dump folders stay",
                                   "titanctl delete my-job old-job\ntitanctl delete -l sweep=7 --yes",
                                   [&choice, deleted] { return delete_jobs(choice.globals, *deleted); });
  add_selection(delete_verb, *deleted, "that is over", "-l,--label");

  struct Wait {
    std::string job, until;
  };
  auto waited = std::make_shared<Wait>();
  CLI::App& wait_verb = add_verb(
      parent, choice, "wait", "Wait for a job's end; --timeout SECONDS limits it",
      "titanctl wait my-job\ntitanctl wait my-job --for running --timeout 60\ntitanctl wait my-job --for step=100",
      [&choice, waited] { return wait(choice.globals, waited->job, waited->until); });
  add_job(wait_verb, waited->job).required();
  wait_verb.add_option("--for", waited->until, "A state, step=N or committed=N instead of the end");

  struct Checkpoint {
    std::string job;
    bool wait = false;
  };
  auto saved = std::make_shared<Checkpoint>();
  CLI::App& checkpoint_verb = add_verb(
      parent, choice, "checkpoint", "Save a running job at its next step edge", "titanctl checkpoint my-job --wait",
      [&choice, saved] { return checkpoint(choice.globals, saved->job, saved->wait); });
  add_job(checkpoint_verb, saved->job).required();
  checkpoint_verb.add_flag("--wait", saved->wait, "Wait until the checkpoint is committed");

  auto profiled = std::make_shared<ProfileOptions>();
  CLI::App& profile_verb =
      add_verb(parent, choice, "profile", "Record the next steps of a running job with the profiler, as Chrome traces",
               "titanctl profile my-job\ntitanctl profile my-job --ranks 0,7 --steps 3 --folder traces",
               [&choice, profiled] { return profile(choice.globals, *profiled); });
  add_job(profile_verb, profiled->job).required();
  profile_verb.add_option("--ranks", profiled->ranks, "Ranks to record")
      ->delimiter(',')
      ->allow_extra_args(false)  // `--ranks 0,7 my-job`
      ->check(integer_range(0))
      ->default_str("0");
  profile_verb.add_option("--steps", profiled->steps, "Number of steps, at most 100")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  profile_verb.add_option("--folder", profiled->folder,
                          "Folder for rankR_trace.json (default: JOB_iteration_STEP here)");
}

}  // namespace

void add_job_verbs(CLI::App& parent, ParsedCommand& choice, const std::string& group) {
  add_submit(parent, choice);
  add_resubmit(parent, choice);
  add_run(parent, choice);
  add_bench(parent, choice);
  add_validate(parent, choice);
  add_reading_verbs(parent, choice);
  add_acting_verbs(parent, choice);
  for (CLI::App* verb : parent.get_subcommands([](const CLI::App*) { return true; })) verb->group(group);
}

}  // namespace titan::cli
