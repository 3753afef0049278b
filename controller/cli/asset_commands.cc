#include "controller/cli/asset_commands.h"

#include <memory>
#include <stop_token>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/message_text.h"
#include "common/base/text/quantities.h"
#include "common/io/hub/get.h"
#include "common/io/hub/names.h"
#include "common/io/hub/settings.h"
#include "common/io/storage/file.h"
#include "controller/cli/asset_progress.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/terminal.h"
#include "controller/cli/verbs.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

constexpr char kStates[][8] = {"there", "partly", "missing"};

const char* state_of(const hub::PlannedFile& file) { return kStates[file.done ? 0 : file.there.total() > 0 ? 1 : 2]; }

absl::StatusOr<hub::GetRequest> to_get(const Globals& globals, const AssetsRequest& request) {
  if (request.token_on_command_line)
    return absl::InvalidArgumentError(
        "a token on the command line can be seen by everybody on this machine: set HF_TOKEN, or name a file that only "
        "you "
        "can read with --token-file");
  hub::GetRequest out;
  TITAN_ASSIGN_OR_RETURN(
      out.transfer.repo,
      hub::parse_repo(request.dataset ? hub::RepoKind::kDataset : hub::RepoKind::kModel, request.repo));
  out.revision = request.revision;
  TITAN_RETURN_IF_ERROR(hub::check_revision(out.revision));
  out.selection = {request.all, request.assets, request.include, request.exclude};
  if (std::erase(out.selection.assets, "all") > 0) out.selection.all = true;
  TITAN_RETURN_IF_ERROR(hub::check_selection(out.selection));
  std::vector<std::string> warnings;
  TITAN_ASSIGN_OR_RETURN(out.transfer.settings, hub::settings_from(http::process_environment(), request.endpoint,
                                                                   request.token_file, warnings));
  for (const std::string& warning : warnings) warn(warning);
  out.transfer.settings.token_in_clear = globals.access.security.insecure;
  if (globals.timeout_given) out.transfer.settings.timeout = globals.timeout;
  out.transfer.parallel = request.parallel;
  out.transfer.piece = static_cast<int64_t>(request.piece_mib * (1 << 20));
  out.transfer.retry.attempts = request.retries;
  out.transfer.retry.first_wait = absl::Seconds(request.retry_seconds);
  out.folder = storage::join_path(request.local_dir, out.transfer.repo.name());
  out.dry_run = request.dry_run;
  return out;
}

void print_json(const Globals& globals, const hub::GetRequest& request, const hub::GetResult& result, int64_t bytes) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const hub::PlannedFile& file : result.plan.files) {
    files.push_back({{"name", file.remote.name},
                     {"size", file.remote.size},
                     {"digest", file.remote.digest()},
                     {"was", state_of(file)}});
  }
  print(nlohmann::ordered_json{{"repo", request.transfer.repo.id},
                               {"revision", request.revision},
                               {"commit", result.plan.commit},
                               {"folder", request.folder},
                               {"dry_run", request.dry_run},
                               {"bytes_downloaded", bytes},
                               {"bytes_left", request.dry_run ? result.plan.left() : 0},
                               {"files", files}},
        globals.format);
}

void print_dry_run(const hub::GetRequest& request, const hub::DownloadPlan& plan) {
  Table table({"FILE", "SIZE", "HERE"});
  for (const hub::PlannedFile& file : plan.files)
    table.add({text::printable_name(file.remote.name), bytes_text(file.remote.size), state_of(file)});
  print(table.text());
  print(absl::StrCat(counted(plan.files.size(), "file"), " of ", bytes_text(plan.size()), ", ", bytes_text(plan.left()),
                     " to download into ", request.folder, "; commit ", plan.commit, "\n"));
}

std::string summary(const hub::GetRequest& request, const hub::DownloadPlan& plan) {
  const std::string what = absl::StrCat(request.folder, ": ", counted(plan.files.size(), "file"), ", ",
                                        bytes_text(plan.size()), ", commit ", plan.commit);
  bool all_there = true;
  for (const hub::PlannedFile& file : plan.files) all_there = all_there && file.done;
  return what + (all_there ? "; all there already, nothing to do\n" : "\n");
}

int report_failed_get(const absl::Status& status, const hub::GetRequest& request) {
  if (absl::IsCancelled(status)) {
    note(absl::StrCat("interrupted: the part downloaded so far is in ", request.folder,
                      "; run the same command again to resume"));
    return kExitInterrupted;
  }
  if (absl::IsUnavailable(status))
    return report(status,
                  "run the same command again to resume; https_proxy or --endpoint can route around a blocked network");
  const TitanctlExitCode code = report(status, "");
  return absl::IsNotFound(status) ? kExitNotFound : code;
}

}  // namespace

int get_assets(const Globals& globals, const AssetsRequest& request) {
  absl::StatusOr<hub::GetRequest> wanted = to_get(globals, request);
  if (!wanted.ok()) return report(wanted.status(), "");
  std::stop_source stop;
  Interrupt::block_signals();
  const Interrupt interrupt([&stop](int) { stop.request_stop(); });
  AssetProgress progress(globals.format != OutputFormat::kTable);
  wanted->transfer.retry.on_retry = [&progress](const absl::Status& why, absl::Duration wait) {
    progress.retrying(why, wait);
  };
  const absl::StatusOr<hub::GetResult> result = hub::get(*wanted, progress, stop.get_token());
  progress.end();
  if (!result.ok()) return report_failed_get(result.status(), *wanted);
  for (const std::string& nothing : result->unmatched)
    warn(absl::StrCat(wanted->transfer.repo.id, " has no file for ", nothing));
  if (globals.format != OutputFormat::kTable) {
    print_json(globals, *wanted, *result, progress.bytes());
  } else if (request.dry_run) {
    print_dry_run(*wanted, result->plan);
  } else {
    print(summary(*wanted, result->plan));
  }
  return kExitOk;
}

namespace {

void add_choice_of_files(CLI::App& get, AssetsRequest& wanted) {
  get.add_option("repo", wanted.repo, "ORG/NAME")->required();
  get.add_option("--assets", wanted.assets,
                 "Kinds, with commas between: tokenizer, config, index, safetensors (these four, unless something is "
                 "chosen); all: same as --all")
      ->delimiter(',')
      ->allow_extra_args(false);  // The repository may follow.
  get.add_option("--include", wanted.include, "Glob of names, also of their last parts; may be repeated")
      ->allow_extra_args(false);
  get.add_option("--exclude", wanted.exclude, "Glob of names to leave out; may be repeated")->allow_extra_args(false);
  get.add_flag("--all", wanted.all, "Every file of the repository");
  get.add_flag("--dataset", wanted.dataset, "The repository is a dataset");
  get.add_option("--revision", wanted.revision, "Branch, tag or commit; resolved once, at the start, for every file")
      ->capture_default_str();
}

void add_ways(CLI::App& get, AssetsRequest& wanted) {
  get.add_option("--local-dir,--local_dir", wanted.local_dir, "Folder; the files go into its subfolder NAME")
      ->capture_default_str();
  get.add_option("--endpoint", wanted.endpoint, "Address of the hub or a mirror (HF_ENDPOINT; https://huggingface.co)");
  get.add_option("--token-file", wanted.token_file,
                 "File with the hub's token, which nobody else can read (HF_TOKEN, HF_TOKEN_PATH, HF_HOME/token)");
  get.add_option("--parallel", wanted.parallel, "Connections at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  get.add_option("--piece-mib", wanted.piece_mib, "MiB of a file that a connection downloads at a time")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  get.add_option("--retries", wanted.retries, "Give up after this many attempts in a row without progress")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  get.add_option("--retry-seconds", wanted.retry_seconds,
                 "Seconds to wait before the second attempt; doubles each time")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  get.add_flag("--dry-run", wanted.dry_run, "List files, sizes and what is already here; download nothing");
  // `ps` would show a token on the command line, so it is refused with advice.
  get.add_option_function<std::string>(
         "--hf-token,--hf_token", [&wanted](const std::string&) { wanted.token_on_command_line = true; }, "")
      ->group("");
}

}  // namespace

void add_asset_verbs(CLI::App& root, ParsedCommand& choice) {
  CLI::App* assets = root.add_subcommand("assets", "Tokenizers, configurations and weights of a hub")->group("Other");
  assets->fallthrough()->allow_extras()->require_subcommand(0, 1)->footer("");
  auto wanted = std::make_shared<AssetsRequest>();
  CLI::App& get = add_verb(*assets, choice, "get",
                           "Download a repository's files, or resume a download; complete files are left alone",
                           "titanctl assets get Qwen/Qwen3-0.6B                          # into assets/hf/Qwen3-0.6B\n"
                           "titanctl assets get meta-llama/Llama-3.1-8B --assets tokenizer,config\n"
                           "titanctl assets get allenai/c4 --dataset --include 'en/c4-train.0000*' --dry-run",
                           [&choice, wanted] { return get_assets(choice.globals, *wanted); });
  add_choice_of_files(get, *wanted);
  add_ways(get, *wanted);
}

}  // namespace titan::cli
