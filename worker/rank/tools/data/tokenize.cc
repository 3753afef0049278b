#include "worker/rank/tools/data/tokenize.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/base/text/quantities.h"
#include "common/io/data_files/check_files.h"
#include "worker/rank/tools/data/finish.h"
#include "worker/rank/tools/data/tokenizing.h"

namespace titan::tools {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

struct Words {
  TokenizeOptions options;
  std::string format = "auto", documents = "file", train_on = "assistant";
  std::vector<std::string> inputs;
  int64_t shard_mib = 256;
};

// Prints the progress every two seconds until it ends.
class Reporter {
 public:
  explicit Reporter(const TokenizeProgress& progress) : progress_(progress), thread_([this] { run(); }) {}
  ~Reporter() {
    {
      sync::Lock lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  double seconds() const { return Seconds(std::chrono::steady_clock::now() - start_).count(); }

 private:
  void run() {
    while (true) {
      {
        sync::Lock lock(mutex_);
        if (changed_.wait_for(mutex_, std::chrono::seconds(2), [this]() TITAN_REQUIRES(mutex_) { return ended_; })) {
          return;
        }
      }
      std::cerr << line() << "\n";
    }
  }

  std::string line() const {
    const auto done = static_cast<double>(progress_.bytes), kept = static_cast<double>(progress_.kept_bytes),
               total = static_cast<double>(progress_.total_bytes);
    const double rate = done / seconds();
    std::string text =
        absl::StrFormat("titan-data: %.1f of %.1f MB, %.1f MB/s, %.2f million tokens/s", (done + kept) / 1e6,
                        total / 1e6, rate / 1e6, static_cast<double>(progress_.tokens) / seconds() / 1e6);
    if (rate > 0) absl::StrAppendFormat(&text, ", %.0f s left", std::max(0.0, total - done - kept) / rate);
    return text;
  }

  const TokenizeProgress& progress_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  sync::Mutex mutex_;
  sync::Condition changed_;
  bool ended_ TITAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

absl::StatusOr<data_files::DatasetFiles> find_inputs(const Words& words) {
  data_files::DatasetFiles all;
  for (const std::string& input : words.inputs) {
    TITAN_ASSIGN_OR_RETURN(const data_files::DatasetFiles found,
                           data_files::find_dataset_files(input, *data_files::format_from_name(words.format)));
    if (!all.files.empty() && found.format != all.format) {
      return absl::InvalidArgumentError(absl::StrCat(input, ": holds ", data_files::name(found.format),
                                                     ", the input before ", data_files::name(all.format),
                                                     ": make an index of each"));
    }
    all.format = found.format;
    all.files.insert(all.files.end(), found.files.begin(), found.files.end());
  }
  if (!data_files::holds_tokens(all.format)) return all;
  return absl::InvalidArgumentError(absl::StrCat(words.inputs.front(), ": holds tokens already"));
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// Returns the path without links and without the empty name that a trailing slash leaves.
fs::path plain(const fs::path& path) {
  std::error_code error;
  fs::path found = fs::weakly_canonical(fs::absolute(path, error), error);
  return found.has_filename() ? found : found.parent_path();
}

// Rejects a folder of shards among the inputs: shards would be inputs of the next call, or would be trained on with
// them.
absl::Status check_apart(const Words& words) {
  const fs::path out = plain(words.options.out);
  const auto refused = [&](const std::string& input) {
    return absl::InvalidArgumentError(absl::StrCat("--out ", words.options.out, ": overlaps the input ", input,
                                                   ": use a separate folder for the index"));
  };
  std::error_code error;
  for (const std::string& input : words.inputs) {
    if (fs::is_directory(input, error) && lies_in(out, plain(input))) return refused(input);
  }
  for (const std::string& file : words.options.input.files) {
    if (lies_in(plain(file), out)) return refused(file);
  }
  return absl::OkStatus();
}

// Rejects input without any document before anything is created, like ranks do. Two cases pass: malformed rows before
// the first good one, which --max-bad counts later, and plain text, because other files may be fine.
absl::Status check_rows(const TokenizeOptions& options) {
  if (options.input.format == data_files::DatasetFormat::kText) return absl::OkStatus();
  absl::Status rows = data_files::check_files(options.input, {.text_key = options.kind.text_key,
                                                              .messages_key = options.kind.messages_key,
                                                              .train_on_all = options.kind.train_on_all,
                                                              .max_bad_lines = std::numeric_limits<int64_t>::max(),
                                                              .text_key_option = "--text-key"});
  if (!absl::IsInvalidArgument(rows)) return rows;
  return absl::FailedPreconditionError(absl::StrCat("no index was made: ", rows.message()));  // Not a usage error.
}

absl::Status run(Words& words) {
  TITAN_ASSIGN_OR_RETURN(words.options.input, find_inputs(words));
  TITAN_RETURN_IF_ERROR(check_apart(words));
  words.options.kind.format = words.options.input.format;
  words.options.kind.blank_lines = words.documents == "blank_lines";
  words.options.kind.train_on_all = words.train_on == "all";
  if (!words.options.kind.messages_key.empty() && words.options.input.format == data_files::DatasetFormat::kText) {
    return absl::InvalidArgumentError(absl::StrCat(words.inputs.front(),
                                                   ": holds plain text, and conversations "
                                                   "(--messages-key) are rows of JSON lines or Parquet"));
  }
  TITAN_RETURN_IF_ERROR(check_rows(words.options));
  words.options.shard_bytes = words.shard_mib << 20;
  TokenizeProgress progress;
  const Reporter reporter(progress);
  TITAN_ASSIGN_OR_RETURN(const TokenizeResult result, tokenize(words.options, progress, [](const std::string& text) {
                           std::cerr << "titan-data: " << text << "\n";
                         }));
  std::cout << absl::StrFormat("%s: %d tokens in %s, %s (%d already existed)", words.options.out, result.tokens,
                               counted(result.documents, "document"), counted(result.shards, "shard"),
                               result.kept_shards);
  if (result.malformed > 0) std::cout << ", " << counted(result.malformed, "malformed document") << " skipped";
  std::cout << absl::StrFormat("; %.1f s, %.1f MB/s\n", reporter.seconds(),
                               static_cast<double>(progress.bytes) / 1e6 / reporter.seconds());
  return absl::OkStatus();
}

}  // namespace

void add_tokenize(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "tokenize",
      "Makes a token index of text: a folder to train on (format \"titan\") without tokenizing again. If "
      "killed and run again, it resumes");
  const auto words = std::make_shared<Words>();
  words->options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  command->add_option("--tokenizer", words->options.tokenizer_folder, "Folder with tokenizer.json")->required();
  command
      ->add_option("--out", words->options.out,
                   "Folder of the index: new, or left by an interrupted run of the same call")
      ->required();
  command->add_option("inputs", words->inputs, "Folders, globs or files, in this order")->required();
  command->add_option("--format", words->format, "auto: by file name")
      ->check(CLI::IsMember({"auto", "jsonl", "text", "parquet"}))
      ->capture_default_str();
  command->add_option("--text-key", words->options.kind.text_key, "Key or column of a document's text")
      ->capture_default_str();
  CLI::Option* messages_key = command->add_option(
      "--messages-key", words->options.kind.messages_key,
      "Key or column of a conversation's messages, which the tokenizer's chat template renders as text; "
      "the index then records which tokens are labels");
  command->add_option("--train-on", words->train_on, "Which tokens of conversations are labels (dataloader.train_on)")
      ->check(CLI::IsMember({"assistant", "all"}))
      ->needs(messages_key)
      ->capture_default_str();
  command->add_option("--text-documents", words->documents, "What counts as a document in plain text")
      ->check(CLI::IsMember({"file", "blank_lines"}))
      ->capture_default_str();
  command->add_option("--threads", words->options.threads, "Number of shards made concurrently")
      ->check(CLI::Range(1, 4096));
  command->add_option("--shard-mib", words->shard_mib, "Approximate input size of a shard")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-bad", words->options.max_bad, "Fail if there are more malformed documents than this")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->callback([words] { finish(run(*words)); });
}

}  // namespace titan::tools
