#include "worker/rank/tools/data/work_plan.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "common/base/status/status.h"
#include "common/io/data_files/byte_source.h"
#include "worker/rank/data/documents/text_blocks.h"

namespace titan::tools {
namespace {

absl::StatusOr<struct stat> facts_of(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return errno_status(errno, path);
  return facts;
}

absl::Status cut_at_lines(const std::string& file, int64_t size, int64_t shard_bytes, std::vector<WorkUnit>& units) {
  int64_t begin = 0;
  for (int64_t cut = shard_bytes; cut < size; cut += shard_bytes) {
    TITAN_ASSIGN_OR_RETURN(const int64_t end, data::line_start(file, cut));
    if (end <= begin || end >= size) continue;  // A line longer than a shard.
    units.push_back({{file}, begin, end, end - begin});
    begin = end;
  }
  units.push_back({{file}, begin, -1, size - begin});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<WorkUnit>> plan_shards(const data_files::DatasetFiles& input, int64_t shard_bytes) {
  std::vector<WorkUnit> units;
  WorkUnit together;
  const auto flush = [&] {
    if (!together.files.empty()) units.push_back(std::exchange(together, {}));
  };
  for (const std::string& file : input.files) {
    TITAN_ASSIGN_OR_RETURN(const struct stat facts, facts_of(file));
    const auto size = static_cast<int64_t>(facts.st_size);
    if (size > 2 * shard_bytes && input.format == data_files::DatasetFormat::kJsonLines &&
        !data_files::is_compressed(file)) {
      flush();
      TITAN_RETURN_IF_ERROR(cut_at_lines(file, size, shard_bytes, units));
      continue;
    }
    together.files.push_back(file);
    together.bytes += size;
    if (together.bytes >= shard_bytes) flush();
  }
  flush();
  return units;
}

absl::StatusOr<std::string> plan_text(const data_files::DatasetFiles& input, const data::FileKind& kind,
                                      int64_t shard_bytes, const data_files::TokenizerFingerprint& tokenizer) {
  nlohmann::json plan = {{"format", data_files::name(kind.format)},
                         {"text_key", kind.text_key},
                         {"blank_lines", kind.blank_lines},
                         {"shard_bytes", shard_bytes},
                         {"tokenizer", {tokenizer.sum, tokenizer.bos, tokenizer.eos, tokenizer.max_id}}};
  if (kind.chat != nullptr) plan["messages"] = {kind.messages_key, kind.train_on_all, kind.chat->template_sum()};
  for (const std::string& file : input.files) {
    TITAN_ASSIGN_OR_RETURN(const struct stat facts, facts_of(file));
    plan["files"].push_back({file, facts.st_size, facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec});
  }
  return plan.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace titan::tools
