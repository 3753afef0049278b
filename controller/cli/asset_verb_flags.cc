#include <memory>

#include "controller/cli/asset_commands.h"
#include "controller/cli/verbs.h"

namespace titan::cli {
namespace {

void add_choice_of_files(CLI::App& get, AssetsRequest& wanted) {
  get.add_option("repo", wanted.repo, "ORG/NAME")->required();
  get.add_option("--assets", wanted.assets,
                 "Kinds, with commas between: tokenizer, config, index, safetensors (these four, unless something is "
                 "chosen); all: as --all")
      ->delimiter(',')
      ->allow_extra_args(false);  // The repository may stand behind it.
  get.add_option("--include", wanted.include, "Glob of names, also of their last parts; may be repeated")
      ->allow_extra_args(false);
  get.add_option("--exclude", wanted.exclude, "Glob of names to leave out; may be repeated")->allow_extra_args(false);
  get.add_flag("--all", wanted.all, "Every file of the repository");
  get.add_flag("--dataset", wanted.dataset, "The repository is one of datasets");
  get.add_option("--revision", wanted.revision, "Branch, tag or commit; what it is at the start holds for every file")
      ->capture_default_str();
}

void add_ways(CLI::App& get, AssetsRequest& wanted) {
  get.add_option("--local-dir,--local_dir", wanted.local_dir, "Folder; the files go into one in it that is called NAME")
      ->capture_default_str();
  get.add_option("--endpoint", wanted.endpoint, "Address of the hub or a mirror (HF_ENDPOINT; https://huggingface.co)");
  get.add_option("--token-file", wanted.token_file,
                 "File with the hub's token, which nobody else can read (HF_TOKEN, HF_TOKEN_PATH, HF_HOME/token)");
  get.add_option("--parallel", wanted.parallel, "Connections at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  get.add_option("--piece-mib", wanted.piece_mib, "What one of them fetches of a file at a time")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  get.add_option("--retries", wanted.retries, "Attempts in a row that bring nothing, before it is given up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  get.add_option("--retry-seconds", wanted.retry_seconds, "Wait before the second one; then twice as long each time")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  get.add_flag("--dry-run", wanted.dry_run, "List files and sizes, and what is here of them; download nothing");
  // Shown by `ps`, so it is refused with what to do instead.
  get.add_option_function<std::string>(
         "--hf-token,--hf_token", [&wanted](const std::string&) { wanted.token_on_command_line = true; }, "")
      ->group("");
}

}  // namespace

void add_asset_verbs(CLI::App& root, Choice& choice) {
  CLI::App* assets = root.add_subcommand("assets", "Tokenizers, configurations and weights of a hub")->group("Other");
  assets->fallthrough()->allow_extras()->require_subcommand(0, 1)->footer("");
  auto wanted = std::make_shared<AssetsRequest>();
  CLI::App& get = add_verb(*assets, choice, "get",
                           "Download a repository's files, or go on with that; what is there already is left alone",
                           "titanctl assets get Qwen/Qwen3-0.6B                          # into assets/hf/Qwen3-0.6B\n"
                           "titanctl assets get meta-llama/Llama-3.1-8B --assets tokenizer,config\n"
                           "titanctl assets get allenai/c4 --dataset --include 'en/c4-train.0000*' --dry-run",
                           [&choice, wanted] { return get_assets(choice.globals, *wanted); });
  add_choice_of_files(get, *wanted);
  add_ways(get, *wanted);
}

}  // namespace titan::cli
