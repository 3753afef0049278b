#include "worker/checkpoint/step_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/status.h"
#include "common/storage/crc32c.h"

namespace titan::checkpoint {
namespace {

constexpr size_t kOpenFiles = 256;  // A process may have a thousand or so, and a step more shards than that.

int64_t item_size(const TensorRecord& tensor) { return static_cast<int64_t>(c10::elementSize(tensor.dtype)); }

}  // namespace

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
  reader->placement_ = std::make_unique<Placement>(reader->manifest_.rows, reader->manifest_.tensors.size());
  reader->manifest_crc_ = storage::crc32c(text.data(), text.size());
  return reader;
}

std::string StepReader::path_of(int64_t file) const {
  return storage::join_path(folder_, manifest_.files[static_cast<size_t>(file)].name);
}

absl::StatusOr<std::shared_ptr<storage::ReadableFile>> StepReader::open_file(int64_t number) {
  std::lock_guard lock(open_mutex_);
  if (const auto known = open_.find(number); known != open_.end()) return known->second;
  if (open_.size() == kOpenFiles) open_.clear();  // Whoever reads one keeps it.
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<storage::ReadableFile> file, files_.open(path_of(number)));
  const int64_t bytes = manifest_.files[static_cast<size_t>(number)].bytes;
  if (file->size() != bytes) {
    return absl::DataLossError(absl::StrCat(path_of(number), ": ", file->size(), " bytes, the manifest says ", bytes));
  }
  return open_[number] = std::move(file);
}

absl::Status StepReader::check_header(int64_t number, int64_t bytes, uint32_t crc) {
  TITAN_ASSIGN_OR_RETURN(const auto file, open_file(number));
  std::string header(static_cast<size_t>(bytes), '\0');
  TITAN_RETURN_IF_ERROR(file->read(0, bytes, header.data()));
  if (storage::crc32c(header.data(), header.size()) == crc) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_of(number), ": checksum mismatch in the header"));
}

absl::StatusOr<const StepReader::Shard*> StepReader::shard(int64_t number) {
  std::lock_guard lock(shards_mutex_);
  if (const auto known = shards_.find(number); known != shards_.end()) return &known->second;
  TITAN_ASSIGN_OR_RETURN(Shard opened, open_shard(number));
  return &(shards_[number] = std::move(opened));
}

absl::StatusOr<StepReader::Shard> StepReader::open_shard(int64_t number) {
  const FileRecord& record = manifest_.files[static_cast<size_t>(number)];
  if (!record.indexed()) {
    TITAN_RETURN_IF_ERROR(check_header(number, record.header_bytes, record.header_crc));
    return Shard{};
  }
  TITAN_ASSIGN_OR_RETURN(const auto file, open_file(number));
  std::string bytes(static_cast<size_t>(record.index_bytes), '\0');
  TITAN_RETURN_IF_ERROR(file->read(record.bytes - record.index_bytes, record.index_bytes, bytes.data()));
  auto index = index_from_bytes(bytes);
  if (!index.ok()) return annotate(index.status(), absl::StrCat(path_of(number), ": its last bytes"));
  const bool named = checksum_in(bytes) == record.index_crc;
  if (!named || index->header_bytes + index->data_bytes != record.bytes - record.index_bytes) {
    return absl::DataLossError(
        absl::StrCat(path_of(number), ": checksum mismatch: its index is not the one that the manifest names"));
  }
  TITAN_RETURN_IF_ERROR(check_header(number, index->header_bytes, index->header_crc));
  Shard shard{.index = *std::move(index)};
  TITAN_RETURN_IF_ERROR(place_pieces(number, shard));
  return shard;
}

// Where they begin follows from their order and sizes.
absl::Status StepReader::place_pieces(int64_t number, Shard& shard) const {
  std::vector<std::pair<PieceRecord, size_t>> all;
  placement_->for_each_piece_in(number, [&](size_t tensor, const Box& box) {
    const TensorRecord& record = manifest_.tensors[tensor];
    all.push_back({{record.key, record.dtype, record.shape, box}, tensor});
  });
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return lies_before(a.first, b.first); });
  std::vector<PieceRecord> pieces;
  int64_t begin = shard.index.header_bytes;
  for (auto& [piece, tensor] : all) {
    shard.begins.emplace_back(tensor, begin);
    begin += piece.box.elements() * static_cast<int64_t>(c10::elementSize(piece.dtype));
    pieces.push_back(std::move(piece));
  }
  if (begin != shard.index.header_bytes + shard.index.data_bytes || pieces_crc(pieces) != shard.index.pieces_crc) {
    return absl::DataLossError(absl::StrCat(path_of(number), ": holds other pieces of tensors than the manifest says"));
  }
  std::sort(shard.begins.begin(), shard.begins.end());
  return absl::OkStatus();
}

int64_t StepReader::begin_of(int64_t file, const Shard& shard, size_t tensor, const Box& piece) const {
  auto at = std::lower_bound(shard.begins.begin(), shard.begins.end(), std::pair(tensor, int64_t{0}));
  if (at + 1 != shard.begins.end() && (at + 1)->first == tensor) {  // Several: they lie in the order of their offsets.
    placement_->for_each_piece_in(file, [&](size_t other, const Box& box) {
      if (other == tensor && box.offset < piece.offset) ++at;
    });
  }
  return at->second;
}

void StepReader::find_sources(const Wanted& wanted, std::map<int64_t, std::vector<Source>>& by_file) const {
  for (const Piece& piece : wanted.tensor->pieces) {
    const auto shared = intersect(piece.box, wanted.box);
    if (!shared || shared->elements() == 0) continue;
    const Chunks chunks{piece.begin, piece.box.elements() * item_size(*wanted.tensor), &piece.chunk_crcs};
    by_file[piece.file].push_back({wanted.tensor, piece.box, piece.begin, chunks, &wanted});
  }
  if (manifest_.version == 1) return;
  const auto tensor = static_cast<size_t>(wanted.tensor - manifest_.tensors.data());
  placement_->for_each_piece(tensor, wanted.box, [&](int64_t file, const Box& piece) {
    by_file[file].push_back({.tensor = wanted.tensor, .piece = piece, .wanted = &wanted});
  });
}

absl::Status StepReader::read(const std::vector<Wanted>& wanted) {
  std::map<int64_t, std::vector<Source>> by_file;
  for (const Wanted& one : wanted) find_sources(one, by_file);
  for (auto& [file, sources] : by_file) TITAN_RETURN_IF_ERROR(read_file(file, sources));
  return absl::OkStatus();
}

absl::Status StepReader::read_file(int64_t file, std::vector<Source>& sources) {
  TITAN_ASSIGN_OR_RETURN(const Shard* shard, this->shard(file));
  for (Source& source : sources) {
    if (source.chunks.crcs != nullptr) continue;
    const auto tensor = static_cast<size_t>(source.tensor - manifest_.tensors.data());
    source.begin = begin_of(file, *shard, tensor, source.piece);
    source.chunks = {shard->index.header_bytes, shard->index.data_bytes, &shard->index.chunk_crcs};
  }
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) { return a.begin < b.begin; });
  Loaded loaded;
  for (const Source& source : sources) TITAN_RETURN_IF_ERROR(copy(file, source, loaded));
  return absl::OkStatus();
}

absl::Status StepReader::copy(int64_t file, const Source& source, Loaded& loaded) {
  const int64_t item = item_size(*source.tensor);
  char* const target = static_cast<char*>(source.wanted->out->mutable_data_ptr());
  const Box& box = source.wanted->box;
  const Box part = *intersect(source.piece, box);
  return for_each_run(part, source.piece, box, [&](int64_t from, int64_t to, int64_t count) -> absl::Status {
    int64_t from_byte = source.begin + from * item, to_byte = to * item;
    const int64_t end = from_byte + count * item;
    while (from_byte < end) {
      const int64_t chunk = from_byte - (from_byte - source.chunks.begin) % kChunkBytes;
      TITAN_RETURN_IF_ERROR(load(file, source.chunks, chunk, source.tensor->key, loaded));
      const int64_t bytes = std::min(end, chunk + kChunkBytes) - from_byte;
      std::memcpy(target + to_byte, loaded.bytes.data() + (from_byte - chunk), static_cast<size_t>(bytes));
      from_byte += bytes;
      to_byte += bytes;
    }
    return absl::OkStatus();
  });
}

absl::Status StepReader::load(int64_t file, const Chunks& chunks, int64_t at, const std::string& what, Loaded& loaded) {
  if (loaded.of == chunks.crcs && loaded.begin == at) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const auto open, open_file(file));
  const int64_t size = std::min(kChunkBytes, chunks.begin + chunks.bytes - at);
  const int64_t number = (at - chunks.begin) / kChunkBytes;
  loaded.of = nullptr;
  loaded.bytes.resize(static_cast<size_t>(size));
  TITAN_RETURN_IF_ERROR(open->read(at, size, loaded.bytes.data()));
  if (storage::crc32c(loaded.bytes.data(), loaded.bytes.size()) != (*chunks.crcs)[static_cast<size_t>(number)]) {
    return absl::DataLossError(absl::StrCat(path_of(file), ": checksum mismatch in ", what, ", chunk ", number,
                                            " (bytes ", at, " to ", at + size, ")"));
  }
  loaded.of = chunks.crcs;
  loaded.begin = at;
  return absl::OkStatus();
}

// For messages.
std::string StepReader::first_piece_at(int64_t file, const Shard& shard, int64_t at) const {
  int64_t best = -1;
  size_t tensor = 0;
  for (const auto& [number, begin] : shard.begins) {
    if (begin <= at && begin > best) best = begin, tensor = number;
  }
  return best < 0 ? path_of(file) : manifest_.tensors[tensor].key;
}

void StepReader::verify_chunks(int64_t file, const Chunks& chunks, absl::FunctionRef<std::string(int64_t)> what,
                               std::vector<absl::Status>& problems) {
  Loaded loaded;
  for (int64_t at = chunks.begin; at < chunks.begin + chunks.bytes; at += kChunkBytes) {
    if (absl::Status bad = load(file, chunks, at, what(at), loaded); !bad.ok()) problems.push_back(std::move(bad));
  }
}

std::vector<absl::Status> StepReader::verify() {
  std::vector<absl::Status> problems;
  std::vector<bool> usable;
  for (int64_t file = 0; file < static_cast<int64_t>(manifest_.files.size()); ++file) {
    const auto opened = shard(file);
    usable.push_back(opened.ok());
    if (!opened.ok()) {
      problems.push_back(opened.status());
      continue;
    }
    const ShardIndex& index = (*opened)->index;
    verify_chunks(
        file, {index.header_bytes, index.data_bytes, &index.chunk_crcs},
        [&](int64_t at) { return first_piece_at(file, **opened, at); }, problems);
  }
  for (const TensorRecord& tensor : manifest_.tensors) {
    for (const Piece& piece : tensor.pieces) {
      if (!usable[static_cast<size_t>(piece.file)]) continue;
      const Chunks chunks{piece.begin, piece.box.elements() * item_size(tensor), &piece.chunk_crcs};
      verify_chunks(
          piece.file, chunks, [&](int64_t) { return tensor.key; }, problems);
    }
  }
  return problems;
}

}  // namespace titan::checkpoint
