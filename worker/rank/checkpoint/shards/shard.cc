#include "worker/rank/checkpoint/shards/shard.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/shards/safetensors.h"

namespace titan::checkpoint {
namespace {

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Writes a file's data, and computes a checksum of each chunk.
class Data {
 public:
  Data(storage::WritableFile& file, const std::atomic<bool>* stop) : file_(file), stop_(stop) {}

  absl::Status append(std::string_view bytes) {
    while (!bytes.empty()) {
      if (stop_ != nullptr && stop_->load()) return absl::CancelledError("the save was given up");
      if (left_ == 0) {
        crcs_.push_back(0);
        left_ = kChunkBytes;
      }
      const std::string_view part = bytes.substr(0, static_cast<size_t>(left_));
      crcs_.back() = storage::crc32c(part.data(), part.size(), crcs_.back());
      TITAN_RETURN_IF_ERROR(file_.append(part));
      left_ -= static_cast<int64_t>(part.size());
      bytes.remove_prefix(part.size());
    }
    return absl::OkStatus();
  }
  std::vector<uint32_t>& crcs() { return crcs_; }

 private:
  storage::WritableFile& file_;
  const std::atomic<bool>* stop_;
  std::vector<uint32_t> crcs_;
  int64_t left_ = 0;  // Bytes left in the last chunk.
};

PieceRecord piece_of(const Staged& part) {
  const bool kept = part.form != nullptr;
  return {part.key,
          kept ? at::kFloat : part.data.scalar_type(),
          part.shape,
          {part.offset, kept ? part.form->shape : part.data.sizes().vec()}};
}

// Returns the pieces' entries. A rank may hold several pieces of one tensor, and the format needs distinct keys; the
// manifest knows the offsets.
std::vector<TensorEntry> entries_of(const std::vector<PieceRecord>& pieces) {
  std::vector<TensorEntry> entries;
  std::map<std::string, int> seen;
  for (const PieceRecord& piece : pieces) {
    const int copy = seen[piece.key]++;
    entries.push_back({.key = copy == 0 ? piece.key : absl::StrCat(piece.key, "#", copy),
                       .dtype = piece.dtype,
                       .shape = piece.box.shape});
  }
  return entries;
}

absl::Status append_all(Data& data, const std::vector<const Staged*>& parts) {
  for (const Staged* part : parts) {
    const at::Tensor numbers = part->form == nullptr ? part->data : part->form->numbers(part->data);
    TITAN_RETURN_IF_ERROR(data.append(bytes_of(numbers)));
  }
  return absl::OkStatus();
}

// Writes the header and the data that `fill` appends. The file is durable on return; a failed one is removed.
absl::Status write_new(storage::Files& files, const std::string& folder, const std::string& name, int64_t bytes,
                       absl::FunctionRef<absl::Status(storage::WritableFile&)> fill) {
  const std::string path = storage::join_path(folder, name);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<storage::WritableFile> file, storage::create_large(files, path, bytes));
  absl::Status status = fill(*file);
  if (status.ok()) status = file->sync();
  if (status.ok()) status = file->close();
  if (status.ok()) status = files.sync_folder(folder);
  if (status.ok()) return status;
  file.reset();
  if (absl::IsAlreadyExists(status)) return status;  // The file belongs to another writer.
  files.remove(path).IgnoreError();  // Frees the space. If this fails, the file is cleaned up later as a leftover.
  return status;
}

// Returns the parts in the order in which they lie in the file, and their records in `pieces`.
std::vector<const Staged*> ordered(const std::vector<Staged>& parts, std::vector<PieceRecord>& pieces) {
  std::vector<std::pair<PieceRecord, const Staged*>> all;
  for (const Staged& part : parts) all.emplace_back(piece_of(part), &part);
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return lies_before(a.first, b.first); });
  std::vector<const Staged*> order;
  for (auto& [piece, part] : all) {
    pieces.push_back(std::move(piece));
    order.push_back(part);
  }
  return order;
}

absl::StatusOr<WrittenShard> write_indexed(storage::Files& files, const std::string& folder, const std::string& name,
                                           const std::vector<Staged>& parts, const std::atomic<bool>* stop) {
  WrittenShard shard{.has_file = true, .file = {.name = name}};
  const std::vector<const Staged*> order = ordered(parts, shard.pieces);
  std::vector<TensorEntry> entries = entries_of(shard.pieces);
  ShardIndex index{.pieces_crc = pieces_crc(shard.pieces)};
  for (const TensorEntry& entry : entries) index.data_bytes += entry.bytes();
  shard.file.index_bytes = index_bytes(index.data_bytes);
  entries.push_back({.key = kIndexKey, .dtype = at::kByte, .shape = {shard.file.index_bytes}});
  TITAN_ASSIGN_OR_RETURN(const Layout plan, layout(entries, {{"format", "pt"}}));
  index.header_bytes = static_cast<int64_t>(plan.header.size());
  index.header_crc = storage::crc32c(plan.header.data(), plan.header.size());
  TITAN_RETURN_IF_ERROR(
      write_new(files, folder, name, plan.file_bytes, [&](storage::WritableFile& file) -> absl::Status {
        TITAN_RETURN_IF_ERROR(file.append(plan.header));
        Data data(file, stop);
        TITAN_RETURN_IF_ERROR(append_all(data, order));
        index.chunk_crcs = std::move(data.crcs());
        const std::string bytes = to_bytes(index);
        shard.file.index_crc = checksum_in(bytes);
        return file.append(bytes);
      }));
  shard.file.bytes = plan.file_bytes;
  return shard;
}

}  // namespace

std::string shard_name(const ShardName& name, int copy) {
  return absl::StrFormat("a%d-%05d%s%s%s.safetensors", name.attempt, name.rank, name.salt.empty() ? "" : "-", name.salt,
                         copy == 0 ? "" : absl::StrCat(".", copy));
}

absl::Status write_tensors(storage::Files& files, const std::string& folder, const std::string& name,
                           const std::vector<Staged>& parts, const std::atomic<bool>* stop) {
  std::vector<PieceRecord> pieces;
  const std::vector<const Staged*> order = ordered(parts, pieces);
  std::vector<TensorEntry> entries = entries_of(pieces);
  TITAN_ASSIGN_OR_RETURN(const Layout plan, layout(entries, {{"format", "pt"}}));
  return write_new(files, folder, name, plan.file_bytes, [&](storage::WritableFile& file) -> absl::Status {
    TITAN_RETURN_IF_ERROR(file.append(plan.header));
    Data data(file, stop);
    return append_all(data, order);
  });
}

absl::StatusOr<WrittenShard> write_shard(storage::Files& files, const std::string& folder, const ShardName& name,
                                         const std::vector<Staged>& parts, const std::atomic<bool>* stop) {
  if (parts.empty()) return WrittenShard{};
  for (int copy = 0;; ++copy) {
    auto shard = write_indexed(files, folder, shard_name(name, copy), parts, stop);
    if (!absl::IsAlreadyExists(shard.status()) || copy == 1000) return shard;
  }
}

}  // namespace titan::checkpoint
