#include "worker/rank/tools/data/tokenizing.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/sync/sync.h"
#include "common/io/data_files/check_files.h"
#include "common/io/data_files/token_manifest.h"
#include "common/io/storage/crc32c.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/service/failpoint/failpoint.h"
#include "worker/rank/data/documents/token_documents.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/data/tokens/titan_shard.h"
#include "worker/rank/data/tokens/token_set.h"
#include "worker/rank/tools/data/work_plan.h"

namespace titan::tools {
namespace {

failpoint::Failpoint shard_written("data.shard.written");    // Its tokens are written, its index is not.
failpoint::Failpoint shard_finished("data.shard.finished");  // Its files are written, its record is not.

std::string shard_name(size_t number) { return absl::StrFormat("shard-%05d", number); }

// Makes all shards with several threads, each of which takes the next shard.
class Tokenizing {
 public:
  Tokenizing(const TokenizeOptions& options, std::vector<WorkUnit> units, uint32_t width, TokenizeProgress& progress,
             const std::function<void(const std::string&)>& report)
      : options_(options), units_(std::move(units)), width_(width), progress_(progress), report_(report) {
    shards_.resize(units_.size());
  }

  absl::Status run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < std::min<int>(options_.threads, static_cast<int>(units_.size())); ++i) {
      threads.emplace_back([this] { note(work()); });
    }
    for (std::thread& thread : threads) thread.join();
    sync::Lock lock(mutex_);
    return failed_;
  }

  std::vector<data_files::TokenManifest::Shard> take_shards() { return std::move(shards_); }
  std::vector<std::string> take_reasons() {
    sync::Lock lock(mutex_);
    return std::exchange(reasons_, {});
  }
  int64_t kept() const { return kept_; }

 private:
  absl::Status work() {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data::Tokenizer> tokenizer,
                           data::Tokenizer::load(options_.tokenizer_folder));
    data::FileKind kind = options_.kind;  // Each thread has its own template.
    if (marked()) {
      TITAN_ASSIGN_OR_RETURN(kind.chat,
                             data::Chat::load(options_.tokenizer_folder, kind.messages_key, kind.train_on_all));
    }
    for (size_t number = next_++; number < units_.size() && !stopped_; number = next_++) {
      if (std::optional<data_files::TokenManifest::Shard> there = find_finished(number)) {
        progress_.kept_bytes += units_[number].bytes;
        malformed_ += there->malformed;
        shards_[number] = std::move(*there);
        ++kept_;
        continue;
      }
      TITAN_ASSIGN_OR_RETURN(shards_[number], make(number, kind, *tokenizer));
    }
    return absl::OkStatus();
  }

  // Returns whether the input is conversations, for which the index records which tokens are labels.
  bool marked() const { return !options_.kind.messages_key.empty(); }

  void note(const absl::Status& status) {
    if (status.ok() || absl::IsCancelled(status)) return;
    stopped_ = true;
    sync::Lock lock(mutex_);
    failed_.Update(status);
  }

  std::string path(size_t number, absl::string_view ending) const {
    return storage::join_path(options_.out, absl::StrCat(shard_name(number), ending));
  }

  // Returns a shard whose record, which is written last, fits its files and whose checksums are correct.
  std::optional<data_files::TokenManifest::Shard> find_finished(size_t number) const {
    const absl::StatusOr<std::string> record = storage::read_file(files_, path(number, ".json"));
    if (!record.ok()) return std::nullopt;
    auto shard = data_files::shard_from_json(nlohmann::json::parse(*record, nullptr, false), path(number, ".json"));
    const auto index = storage::read_file(files_, path(number, data::kIndexSuffix));
    if (!shard.ok() || !index.ok() || storage::crc32c(index->data(), index->size()) != shard->index_sum) {
      return std::nullopt;
    }
    const auto opened = data::open_titan_shard(path(number, data::kTokensSuffix));
    if (!opened.ok() || !(*opened)->verify().ok()) return std::nullopt;
    return *std::move(shard);
  }

  absl::StatusOr<data_files::TokenManifest::Shard> make(size_t number, const data::FileKind& kind,
                                                        data::Tokenizer& tokenizer) {
    const WorkUnit& unit = units_[number];
    TITAN_ASSIGN_OR_RETURN(data::ShardWriter writer,
                           data::ShardWriter::create(files_, path(number, ""), width_, marked()));
    data_files::TokenManifest::Shard shard{.name = shard_name(number)};
    int64_t counted = 0;
    for (const std::string& file : unit.files) {
      TITAN_RETURN_IF_ERROR(add_file(file, unit, kind, tokenizer, writer, shard.malformed, counted));
    }
    progress_.bytes += unit.bytes - counted;
    shard_written.pass();
    TITAN_ASSIGN_OR_RETURN(const data::ShardWriter::Written written, writer.finish());
    shard_finished.pass();
    shard.tokens = written.tokens;
    shard.documents = written.documents;
    shard.index_sum = written.index_sum;
    TITAN_RETURN_IF_ERROR(
        storage::atomic_write(files_, path(number, ".json"), absl::StrCat(data_files::to_json(shard).dump(), "\n")));
    return shard;
  }

  absl::Status add_file(const std::string& file, const WorkUnit& unit, const data::FileKind& kind,
                        data::Tokenizer& tokenizer, data::ShardWriter& writer, int64_t& malformed, int64_t& counted) {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data::DocumentFile> documents,
                           data::DocumentFile::open(file, kind, {.offset = unit.begin}));
    std::vector<int32_t> tokens;
    while (!stopped_) {
      TITAN_ASSIGN_OR_RETURN(const bool more, documents->next());
      if (!more || (unit.end >= 0 && documents->start().offset >= unit.end)) return absl::OkStatus();
      TITAN_ASSIGN_OR_RETURN(data::DocumentText document, documents->text());
      tokens.clear();
      TITAN_RETURN_IF_ERROR(data::encode_document_text(tokenizer, document, tokens));
      if (!document.problem.empty()) {
        ++malformed;
        TITAN_RETURN_IF_ERROR(note_malformed(*documents, file, unit, document.problem));
        continue;
      }
      TITAN_RETURN_IF_ERROR(writer.add_document(tokens));
      const auto size = std::min<int64_t>(static_cast<int64_t>(document.text.size()), unit.bytes - counted);
      counted += size;
      progress_.bytes += size;
      progress_.tokens += static_cast<int64_t>(tokens.size());
    }
    return absl::CancelledError("another thread failed");
  }

  // Reports and counts a malformed document. Lines of a split file are not numbered, so its place is a byte offset.
  absl::Status note_malformed(const data::DocumentFile& documents, const std::string& file, const WorkUnit& unit,
                              const std::string& problem) {
    const std::string place =
        unit.begin > 0 ? absl::StrCat(file, ", byte ", documents.start().offset) : documents.name();
    if (++malformed_ > options_.max_bad) {
      return absl::InvalidArgumentError(absl::StrCat(
          place, ": ", problem, "; that is malformed ", data::document_word(options_.kind), " ", malformed_.load(),
          ", more than --max-bad = ", options_.max_bad, " (", data::document_rule(options_.kind), ")"));
    }
    sync::Lock lock(mutex_);
    reasons_.push_back(absl::StrCat(place, ": ", problem));
    report_(absl::StrCat(reasons_.back(), ", skipped"));
    return absl::OkStatus();
  }

  const TokenizeOptions& options_;
  const std::vector<WorkUnit> units_;
  const uint32_t width_;
  TokenizeProgress& progress_;
  const std::function<void(const std::string&)>& report_;
  storage::Files& files_ = storage::posix_files();
  std::vector<data_files::TokenManifest::Shard> shards_;  // Each is written by one thread.
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> malformed_{0}, kept_{0};
  std::atomic<bool> stopped_{false};
  sync::Mutex mutex_;
  absl::Status failed_ TITAN_GUARDED_BY(mutex_);
  std::vector<std::string> reasons_ TITAN_GUARDED_BY(mutex_);  // Why documents were skipped; at most max_bad.
};

bool is_part_of_index(const std::string& name) {
  return name.starts_with("shard-") || name.starts_with("titan-tokens.");
}

// Removes files that a killed call left incomplete under temporary names. The caller holds the lock.
absl::Status remove_leftovers(storage::Files& files, const std::string& out) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(out));
  for (const std::string& name : names) {
    if (is_part_of_index(name) && name.ends_with(".tmp"))
      TITAN_RETURN_IF_ERROR(files.remove(storage::join_path(out, name)));
  }
  return absl::OkStatus();
}

absl::Status remove_parts(storage::Files& files, const std::string& out) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(out));
  for (const std::string& name : names) {
    if (is_part_of_index(name)) TITAN_RETURN_IF_ERROR(files.remove(storage::join_path(out, name)));
  }
  return absl::OkStatus();
}

absl::Status no_documents(const std::vector<std::string>& reasons) {
  return absl::FailedPreconditionError(
      absl::StrCat("no index was made: the input holds no document: ",
                   reasons.empty() ? "all of it is blank or has an empty text" : data_files::first_reasons(reasons)));
}

// Checks that `out` holds no parts of an index with another plan, and records the plan there.
absl::Status claim(storage::Files& files, const std::string& out, const std::string& plan) {
  const std::string path = storage::join_path(out, "titan-tokens.plan.json");
  const absl::StatusOr<std::string> there = storage::read_file(files, path);
  if (absl::IsNotFound(there.status())) return storage::atomic_write(files, path, plan);
  TITAN_RETURN_IF_ERROR(there.status());
  if (*there == plan) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(out, ": holds an index of other input, another tokenizer or other options (", path,
                   " says which): give --out another folder, or remove this one"));
}

}  // namespace

absl::StatusOr<TokenizeResult> tokenize(const TokenizeOptions& options, TokenizeProgress& progress,
                                        const std::function<void(const std::string&)>& report) {
  storage::Files& files = storage::posix_files();
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<data::Tokenizer> tokenizer,
                         data::Tokenizer::load(options.tokenizer_folder));
  for (const std::string& note : tokenizer_files::not_applied(options.tokenizer_folder)) report("warning: " + note);
  TITAN_ASSIGN_OR_RETURN(const data_files::TokenizerFingerprint mark,
                         data::tokenizer_fingerprint(options.tokenizer_folder, *tokenizer));
  TITAN_ASSIGN_OR_RETURN(std::vector<WorkUnit> units, plan_shards(options.input, options.shard_bytes));
  const bool marked = !options.kind.messages_key.empty();
  data::FileKind kind = options.kind;
  if (marked) {
    TITAN_ASSIGN_OR_RETURN(kind.chat, data::Chat::load(options.tokenizer_folder, kind.messages_key, kind.train_on_all));
  }
  TITAN_ASSIGN_OR_RETURN(const std::string plan, plan_text(options.input, kind, options.shard_bytes, mark));
  const bool is_new_folder = !files.exists(options.out);
  TITAN_RETURN_IF_ERROR(files.make_folders(options.out));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::FileLock> lock,
                         files.lock(storage::join_path(options.out, ".titan-tokens.lock"),
                                    storage::LockMode::kExclusive, absl::Seconds(2)));
  TITAN_RETURN_IF_ERROR(remove_leftovers(files, options.out));
  TITAN_RETURN_IF_ERROR(claim(files, options.out, plan));
  for (const WorkUnit& unit : units) progress.total_bytes += unit.bytes;
  Tokenizing work(options, std::move(units), mark.max_id < 65536 ? 2 : 4, progress, report);
  TITAN_RETURN_IF_ERROR(work.run());
  TokenizeResult result;
  std::vector<data_files::TokenManifest::Shard> shards = work.take_shards();
  for (const data_files::TokenManifest::Shard& shard : shards) {
    result.tokens += shard.tokens;
    result.documents += shard.documents;
    result.malformed += shard.malformed;
  }
  if (result.tokens == 0) {  // Nothing could be trained on it.
    TITAN_RETURN_IF_ERROR(is_new_folder ? files.remove_folder(options.out) : remove_parts(files, options.out));
    return no_documents(work.take_reasons());
  }
  data_files::TokenManifest manifest{.tokenizer = mark, .marked = marked, .shards = std::move(shards)};
  if (marked) manifest.train_on_all = kind.train_on_all;
  TITAN_RETURN_IF_ERROR(storage::atomic_write(files, storage::join_path(options.out, data_files::kTokenManifest),
                                              data_files::manifest_text(manifest)));
  result.shards = static_cast<int64_t>(manifest.shards.size());
  result.kept_shards = work.kept();
  return result;
}

}  // namespace titan::tools
