#include "worker/checkpoint/shard.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status/status.h"
#include "common/storage/crc32c.h"
#include "worker/checkpoint/safetensors.h"

namespace titan::checkpoint {
namespace {

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

absl::Status write_all(storage::WritableFile& file, const std::string& header, const std::vector<const Staged*>& order,
                       std::vector<TensorRecord>& records, const std::atomic<bool>* stop) {
  TITAN_RETURN_IF_ERROR(file.append(header));
  for (size_t i = 0; i < order.size(); ++i) {
    const Staged& part = *order[i];
    const at::Tensor numbers = part.form == nullptr ? part.data : part.form->numbers(part.data);
    std::string_view rest = bytes_of(numbers);
    while (!rest.empty()) {
      if (stop != nullptr && stop->load()) return absl::CancelledError("the save was given up");
      const std::string_view chunk = rest.substr(0, kChunkBytes);
      records[i].pieces[0].chunk_crcs.push_back(storage::crc32c(chunk.data(), chunk.size()));
      TITAN_RETURN_IF_ERROR(file.append(chunk));
      rest.remove_prefix(chunk.size());
    }
  }
  TITAN_RETURN_IF_ERROR(file.sync());
  return file.close();
}

}  // namespace

std::string shard_name(const ShardName& name, int copy) {
  return absl::StrFormat("a%d-%05d%s%s%s.safetensors", name.attempt, name.rank, name.salt.empty() ? "" : "-", name.salt,
                         copy == 0 ? "" : absl::StrCat(".", copy));
}

absl::StatusOr<ShardReport> write_tensors(storage::Files& files, const std::string& folder, const std::string& name,
                                          const std::vector<Staged>& parts, const std::atomic<bool>* stop) {
  std::vector<TensorEntry> entries;
  std::map<std::string, int> seen;
  for (const Staged& part : parts) {
    // A rank may hold several pieces of one tensor; the format wants distinct keys, the manifest knows the offsets.
    const int copy = seen[part.key]++;
    entries.push_back({.key = copy == 0 ? part.key : absl::StrCat(part.key, "#", copy),
                       .dtype = part.form == nullptr ? part.data.scalar_type() : at::kFloat,
                       .shape = part.form == nullptr ? part.data.sizes().vec() : part.form->shape});
  }
  TITAN_ASSIGN_OR_RETURN(const Layout plan, layout(entries, {{"format", "pt"}}));

  std::vector<size_t> by_place(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) by_place[i] = i;
  std::stable_sort(by_place.begin(), by_place.end(),
                   [&](size_t a, size_t b) { return entries[a].begin < entries[b].begin; });
  ShardReport report{.has_file = true};
  std::vector<const Staged*> order;
  for (const size_t i : by_place) {
    order.push_back(&parts[i]);
    Piece piece{.begin = entries[i].begin, .box = {parts[i].offset, entries[i].shape}};
    report.tensors.push_back({parts[i].key, entries[i].dtype, parts[i].shape, {std::move(piece)}});
  }

  const std::string path = storage::join_path(folder, name);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<storage::WritableFile> file, files.create(path));
  absl::Status status = write_all(*file, plan.header, order, report.tensors, stop);
  if (status.ok()) status = files.sync_folder(folder);
  if (!status.ok()) {
    file.reset();
    if (absl::IsAlreadyExists(status)) return status;  // What is there is another's.
    files.remove(path).IgnoreError();  // Gives the space back; what cannot be removed is cleaned up as a leftover.
    return status;
  }
  report.file = {.name = name,
                 .bytes = plan.file_bytes,
                 .header_bytes = static_cast<int64_t>(plan.header.size()),
                 .header_crc = storage::crc32c(plan.header.data(), plan.header.size())};
  return report;
}

absl::StatusOr<ShardReport> write_shard(storage::Files& files, const std::string& folder, const ShardName& name,
                                        const std::vector<Staged>& parts, const std::atomic<bool>* stop) {
  if (parts.empty()) return ShardReport{};
  for (int copy = 0;; ++copy) {
    auto report = write_tensors(files, folder, shard_name(name, copy), parts, stop);
    if (!absl::IsAlreadyExists(report.status()) || copy == 1000) return report;
  }
}

absl::StatusOr<std::unique_ptr<StepReader>> StepReader::open(storage::Files& files, const std::string& folder) {
  std::unique_ptr<StepReader> reader(new StepReader(files, folder));
  const std::string path = storage::join_path(folder, kManifestName);
  // A purge holds it exclusively for the moment of its rename.
  auto lock = files.try_lock(path, storage::LockMode::kShared);
  for (int i = 0; i < 200 && absl::IsUnavailable(lock.status()); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    lock = files.try_lock(path, storage::LockMode::kShared);
  }
  TITAN_ASSIGN_OR_RETURN(reader->lock_, std::move(lock));
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path));
  auto manifest = manifest_from_text(text);
  if (!manifest.ok()) return annotate(manifest.status(), path);
  reader->manifest_ = *std::move(manifest);
  reader->manifest_crc_ = storage::crc32c(text.data(), text.size());
  return reader;
}

absl::StatusOr<storage::ReadableFile*> StepReader::file(int index) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<storage::ReadableFile>& slot = open_[index];
  if (slot != nullptr) return slot.get();
  const FileRecord& record = manifest_.files[static_cast<size_t>(index)];
  const std::string path = storage::join_path(folder_, record.name);
  TITAN_ASSIGN_OR_RETURN(auto file, files_.open(path));
  if (file->size() != record.bytes) {
    return absl::DataLossError(absl::StrCat(path, ": ", file->size(), " bytes, the manifest says ", record.bytes));
  }
  std::string header(static_cast<size_t>(record.header_bytes), '\0');
  TITAN_RETURN_IF_ERROR(file->read(0, record.header_bytes, header.data()));
  if (storage::crc32c(header.data(), header.size()) != record.header_crc) {
    return absl::DataLossError(absl::StrCat(path, ": checksum mismatch in the header"));
  }
  slot = std::move(file);
  return slot.get();
}

absl::Status StepReader::read_chunk(const TensorRecord& tensor, const Piece& piece, size_t chunk, std::string& buffer) {
  TITAN_ASSIGN_OR_RETURN(storage::ReadableFile * shard, file(piece.file));
  const int64_t size = piece.box.elements() * static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const int64_t begin = static_cast<int64_t>(chunk) * kChunkBytes;
  buffer.resize(static_cast<size_t>(std::min(kChunkBytes, size - begin)));
  TITAN_RETURN_IF_ERROR(shard->read(piece.begin + begin, static_cast<int64_t>(buffer.size()), buffer.data()));
  if (storage::crc32c(buffer.data(), buffer.size()) != piece.chunk_crcs[chunk]) {
    return absl::DataLossError(
        absl::StrCat(storage::join_path(folder_, manifest_.files[static_cast<size_t>(piece.file)].name),
                     ": checksum mismatch in ", tensor.key, ", chunk ", chunk, " (bytes ", piece.begin + begin, " to ",
                     piece.begin + begin + static_cast<int64_t>(buffer.size()), ")"));
  }
  return absl::OkStatus();
}

absl::Status StepReader::read(const TensorRecord& tensor, const Box& box, at::Tensor& out) {
  const auto item = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  char* const target = static_cast<char*>(out.mutable_data_ptr());
  std::string buffer;
  for (const Piece& piece : tensor.pieces) {
    const std::optional<Box> part = intersect(piece.box, box);
    if (!part || part->elements() == 0) continue;
    size_t loaded = piece.chunk_crcs.size();  // None.
    TITAN_RETURN_IF_ERROR(
        for_each_run(*part, piece.box, box, [&](int64_t source, int64_t to, int64_t count) -> absl::Status {
          int64_t from_byte = source * item, to_byte = to * item;
          const int64_t end = from_byte + count * item;
          while (from_byte < end) {
            const auto chunk = static_cast<size_t>(from_byte / kChunkBytes);
            if (chunk != loaded) {
              TITAN_RETURN_IF_ERROR(read_chunk(tensor, piece, chunk, buffer));
              loaded = chunk;
            }
            const int64_t begin = static_cast<int64_t>(chunk) * kChunkBytes;
            const int64_t bytes = std::min(end, begin + kChunkBytes) - from_byte;
            std::memcpy(target + to_byte, buffer.data() + (from_byte - begin), static_cast<size_t>(bytes));
            from_byte += bytes;
            to_byte += bytes;
          }
          return absl::OkStatus();
        }));
  }
  return absl::OkStatus();
}

std::vector<absl::Status> StepReader::verify() {
  std::vector<absl::Status> problems;
  std::vector<bool> usable;
  for (size_t i = 0; i < manifest_.files.size(); ++i) {
    const auto opened = file(static_cast<int>(i));
    usable.push_back(opened.ok());
    if (!opened.ok()) problems.push_back(opened.status());
  }
  std::string buffer;
  for (const TensorRecord& tensor : manifest_.tensors) {
    for (const Piece& piece : tensor.pieces) {
      if (!usable[static_cast<size_t>(piece.file)]) continue;
      for (size_t chunk = 0; chunk < piece.chunk_crcs.size(); ++chunk) {
        if (absl::Status bad = read_chunk(tensor, piece, chunk, buffer); !bad.ok()) problems.push_back(std::move(bad));
      }
    }
  }
  return problems;
}

}  // namespace titan::checkpoint
