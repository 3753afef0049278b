#include "controller/cli/bench.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/base/version/version.h"
#include "common/io/storage/file.h"
#include "controller/cli/bench/figures.h"
#include "controller/cli/bench/peak_memory.h"
#include "controller/cli/bench/plan.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/local_job.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kFirst[] = "base";  // The configuration that the command line names.
constexpr char kMark[] = "TITAN_BENCH_RUN";
constexpr absl::Duration kKillTimeout = absl::Seconds(2);

struct Own {
  const char* key;
  const char* instead;
};
constexpr Own kOwnKeys[] = {{"--training.steps", "--steps and --warmup say how many"},
                            {"--metrics.log_freq", "each step is logged"},
                            {"--job.dump_folder", "--folder says where the dump folders go"}};

absl::Status takes_only_free_keys(const std::vector<std::string>& overrides) {
  for (const std::string& word : overrides) {
    for (const Own& own : kOwnKeys) {
      if (word != own.key && !absl::StartsWith(word, absl::StrCat(own.key, "="))) continue;
      return absl::InvalidArgumentError(absl::StrCat(own.key, " is set by `titanctl bench`: ", own.instead));
    }
  }
  return absl::OkStatus();
}

// Returns the step in the middle of the measured ones.
int save_step(const BenchOptions& options) { return options.warmup + options.steps / 2; }

// Returns the overrides for measuring, which follow all of the user's. The save of the last step is not measured.
std::vector<std::string> measuring_overrides(const BenchOptions& options) {
  std::vector<std::string> words = {"--training.steps",
                                    absl::StrCat(options.warmup + options.steps),
                                    "--metrics.log_freq",
                                    "1",
                                    "--metrics.no_enable_tensorboard",
                                    "--metrics.no_enable_wandb",
                                    "--validation.no_enable",
                                    "--profiling.no_enable_profiling",
                                    "--restart.no_progress_limit",
                                    "1",
                                    "--job.dump_folder",
                                    options.folder.empty() ? fs::temp_directory_path().string() : options.folder};
  if (!options.checkpoint) {
    words.emplace_back("--checkpoint.no_enable");
    return words;
  }
  words.insert(words.end(),
               {"--checkpoint.enable", "--checkpoint.no_load_only", "--checkpoint.no_enable_first_step_checkpoint",
                "--checkpoint.keep_latest_k", "0", "--checkpoint.folder", "checkpoint", "--checkpoint.interval",
                absl::StrCat(save_step(options))});
  return words;
}

double bytes_in(const std::string& folder) {
  double sum = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) sum += static_cast<double>(entry.file_size(error));
  }
  return sum;
}

// Returns the time at which the file was written; the infinite past when it does not exist.
absl::Time time_of_file(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 ? absl::TimeFromTimespec(found.st_mtim) : absl::InfinitePast();
}

// A folder that is removed with this object.
class DumpFolder {
 public:
  static absl::StatusOr<std::unique_ptr<DumpFolder>> make(const std::string& base) {
    std::string pattern = base + "/bench-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) return errno_status(errno, absl::StrCat("make a folder in ", base));
    return std::unique_ptr<DumpFolder>(new DumpFolder(pattern));
  }
  ~DumpFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  DumpFolder(const DumpFolder&) = delete;
  DumpFolder& operator=(const DumpFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit DumpFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// Says why a job that is over or was restarted has no figures.
absl::Status no_figures(const v1::Job& job) {
  if (!job.failure_reason().empty()) {
    return absl::AbortedError(absl::StrCat(job.failure_reason(), ": ", job.failure_message()));
  }
  if (job.attempts_size() > 1) {
    const v1::Attempt& lost = job.attempts(0);
    return absl::AbortedError(absl::StrCat("it had to be restarted after step ", lost.last_step(), ": ",
                                           lost.end_cause(), ": ", lost.end_message()));
  }
  return absl::AbortedError(state_name(job.state()));
}

class Bench {
 public:
  Bench(const Globals& globals, const BenchOptions& options) : globals_(globals), options_(options) {}

  int run() {
    if (const absl::Status bad = prepare_all(); !bad.ok()) return report(bad);
    mark_ = make_request_id();
    setenv(kMark, mark_.c_str(), 1);  // Must run before other threads start.
    Interrupt::block_signals();
    const absl::StatusOr<std::string> base = run_base();
    if (!base.ok()) return report(base.status());
    clean_run_folders(*base, absl::Now());
    const Interrupt interrupt([this](int) { stopper_.cancel(); });
    const int code = run_all();
    if (interrupt.count() > 0) note("interrupted; the table has the runs that ended");
    if (code == kExitOk || (interrupt.count() > 0 && !all_.back().runs.empty() && !all_.front().runs.empty())) show();
    return interrupt.count() > 0 ? static_cast<int>(kExitInterrupted) : code;
  }

 private:
  // Checks all configurations before the first one runs.
  absl::Status prepare_all() {
    TITAN_ASSIGN_OR_RETURN(std::vector<Variant> variants, parse_variants(options_.variants, kFirst));
    variants.insert(variants.begin(), {.name = kFirst, .overrides = {}});
    Source source = options_.source;
    TITAN_RETURN_IF_ERROR(takes_only_free_keys(source.overrides));
    TITAN_ASSIGN_OR_RETURN(source.text, read_source(source));  // Standard input can be read once.
    const std::vector<std::string> measuring = measuring_overrides(options_);
    for (Variant& variant : variants) {
      TITAN_RETURN_IF_ERROR(takes_only_free_keys(variant.overrides));
      Source one = source;
      // Measures an asynchronous save, unless the command line says otherwise.
      one.overrides.insert(one.overrides.begin(), {"--checkpoint.async_mode", "async"});
      one.overrides.insert(one.overrides.end(), variant.overrides.begin(), variant.overrides.end());
      one.overrides.insert(one.overrides.end(), measuring.begin(), measuring.end());
      auto prepared = prepare(one);
      if (!prepared.ok()) return in_variant(variant, prepared.status());
      config::ResourcesSection& resources = prepared->loaded.config.resources;
      resources.ranks_per_node = resources.ranks;  // There is one node.
      prepared_.push_back(*std::move(prepared));
      all_.push_back({.name = variant.name, .overrides = std::move(variant.overrides), .runs = {}});
    }
    return absl::OkStatus();
  }

  static absl::Status in_variant(const Variant& variant, const absl::Status& status) {
    return variant.name == kFirst ? status : annotate(status, absl::StrCat("--variant ", variant.name));
  }

  int run_all() {
    const std::vector<int> order = order_of_runs(static_cast<int>(all_.size()), options_.repeats);
    for (size_t i = 0; i < order.size(); ++i) {
      Measured& measured = all_[static_cast<size_t>(order[i])];
      const std::string title = absl::StrCat("run ", i + 1, " of ", order.size(), ": ", measured.name);
      note(title);
      const auto figures = run_once(prepared_[static_cast<size_t>(order[i])]);
      if (absl::IsCancelled(figures.status())) return kExitInterrupted;
      if (!figures.ok()) return report(annotate(figures.status(), title), remedy_);
      note(absl::StrCat("  ", grouped(figures->at("tokens_per_second"), 0), " tokens/s a rank, ",
                        grouped(1e3 * figures->at("step_seconds"), 1), " ms a step"));
      measured.runs.push_back(*figures);
    }
    return kExitOk;
  }

  absl::StatusOr<Figures> run_once(const Prepared& prepared) {
    if (stopper_.cancelled()) return absl::CancelledError();
    TITAN_ASSIGN_OR_RETURN(const std::string base, run_base());
    TITAN_ASSIGN_OR_RETURN(const auto state, RunFolder::make(base));
    auto figures = run_in(*state, prepared);
    if (figures.ok() || absl::IsCancelled(figures.status())) {
      state->remove();
    } else {
      const std::string logs = state->rank_logs();
      remedy_ = logs.empty() ? "logs of the private daemons: " + state->path()
                             : absl::StrCat("what the ranks printed: ", logs, "/rank-*.log");
    }
    return figures;
  }

  absl::StatusOr<Figures> run_in(const RunFolder& state, const Prepared& prepared) {
    TITAN_ASSIGN_OR_RETURN(
        const auto dump,
        DumpFolder::make(options_.folder.empty() ? state.path() : fs::absolute(options_.folder).string()));
    Prepared placed = prepared;
    config::JobConfig& config = placed.loaded.config;
    config.job.dump_folder = dump->path();
    const PeakMemory memory(absl::StrCat(kMark, "=", mark_));
    RunRecord record{.launched = absl::Now(),
                     .ranks = config.resources.ranks,
                     .warmup = options_.warmup,
                     .on_cpu = config.resources.device == "cpu",
                     .saved_step = options_.checkpoint ? save_step(options_) : 0};
    LocalJob job(globals_, stopper_);
    TITAN_RETURN_IF_ERROR(job.start(state.path(), placed));
    const auto ended = job.wait([](const v1::Job& seen) { return is_final(seen.state()) || seen.attempts_size() > 1; });
    if (!ended.ok() || !is_final(ended->state())) job.cancel(/*now=*/true, kKillTimeout).IgnoreError();
    job.stop();
    TITAN_RETURN_IF_ERROR(ended.status());
    if (ended->state() != v1::Job::SUCCEEDED || ended->attempts_size() > 1) return no_figures(*ended);
    record.metrics = storage::read_file(storage::posix_files(), dump->path() + "/metrics.jsonl").value_or("");
    const std::string saved = absl::StrCat(dump->path(), "/checkpoint/step-", record.saved_step);
    record.saved_bytes = bytes_in(saved);
    record.published = time_of_file(saved + "/manifest.json");
    TITAN_ASSIGN_OR_RETURN(Figures figures, figures_of(record));
    if (memory.bytes() > 0) figures["memory_bytes"] = static_cast<double>(memory.bytes());
    return figures;
  }

  void show() const {
    if (globals_.format == OutputFormat::kTable) {
      const auto rows = table_rows(all_);
      Table table(rows[0]);
      for (size_t i = 1; i < rows.size(); ++i) table.add(rows[i]);
      print(table.text());
      return;
    }
    nlohmann::ordered_json document = {{"version", version()},
                                       {"steps", options_.steps},
                                       {"warmup", options_.warmup},
                                       {"repeats", options_.repeats},
                                       {"ranks", prepared_[0].loaded.config.resources.ranks}};
    document.update(report_json(all_));
    print(document, globals_.format);
  }

  const Globals& globals_;
  const BenchOptions& options_;
  std::vector<Prepared> prepared_;  // One per configuration, like all_.
  std::vector<Measured> all_;
  std::string mark_;
  std::string remedy_;  // Where to look after a run that failed.
  Stopper stopper_;
};

}  // namespace

int bench(const Globals& globals, const BenchOptions& options) { return Bench(globals, options).run(); }

}  // namespace titan::cli
