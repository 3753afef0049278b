#include "worker/rank/checkpoint/shards/step_reader.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "worker/rank/checkpoint/shards/in_parallel.h"
#include "worker/rank/checkpoint/shards/tensor_view.h"

namespace titan::checkpoint {
namespace {

constexpr size_t kOpenFiles = 256;  // A process may open about a thousand files, and a step may have more shards.

constexpr int64_t kTaskBytes = int64_t{32}
                               << 20;  // For one thread at a time. Neighbors may both read the chunk between them.

int64_t item_size(const TensorRecord& tensor) { return static_cast<int64_t>(c10::elementSize(tensor.dtype)); }

}  // namespace

absl::StatusOr<std::unique_ptr<StepReader>> StepReader::open(storage::Files& files, const std::string& folder) {
  std::unique_ptr<StepReader> reader(new StepReader(files, folder));
  const std::string path = storage::join_path(folder, kManifestName);
  // A purge holds the lock exclusively while it renames.
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
  reader->placement_ = std::make_unique<PlacementIndex>(reader->manifest_.rows, reader->manifest_.tensors.size());
  reader->manifest_crc_ = storage::crc32c(text.data(), text.size());
  return reader;
}

std::string StepReader::path_of(int64_t file) const {
  return storage::join_path(folder_, manifest_.files[static_cast<size_t>(file)].name);
}

absl::StatusOr<std::shared_ptr<storage::ReadableFile>> StepReader::open_file(int64_t number) {
  {
    std::lock_guard lock(open_mutex_);
    if (const auto known = open_.find(number); known != open_.end()) return known->second;
  }
  TITAN_ASSIGN_OR_RETURN(std::shared_ptr<storage::ReadableFile> file, files_.open(path_of(number)));
  const int64_t bytes = manifest_.files[static_cast<size_t>(number)].bytes;
  if (file->size() != bytes) {
    return absl::DataLossError(absl::StrCat(path_of(number), ": ", file->size(), " bytes, the manifest says ", bytes));
  }
  std::lock_guard lock(open_mutex_);
  if (open_.size() == kOpenFiles) open_.clear();  // Readers keep their own reference.
  return open_.emplace(number, std::move(file)).first->second;
}

absl::Status StepReader::check_header(int64_t number, int64_t bytes, uint32_t crc) {
  TITAN_ASSIGN_OR_RETURN(const auto file, open_file(number));
  std::string header(static_cast<size_t>(bytes), '\0');
  TITAN_RETURN_IF_ERROR(file->read(0, bytes, header.data()));
  if (storage::crc32c(header.data(), header.size()) == crc) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_of(number), ": checksum mismatch in the header"));
}

absl::StatusOr<const StepReader::Shard*> StepReader::shard(int64_t number) {
  {
    std::lock_guard lock(shards_mutex_);
    if (const auto known = shards_.find(number); known != shards_.end()) return &known->second;
  }
  TITAN_ASSIGN_OR_RETURN(Shard opened, open_shard(number));
  std::lock_guard lock(shards_mutex_);
  return &shards_.emplace(number, std::move(opened)).first->second;
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

// Computes where the pieces begin, from their order and sizes.
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
  if (at + 1 != shard.begins.end() && (at + 1)->first == tensor) {  // Several pieces lie in the order of their offsets.
    placement_->for_each_piece_in(file, [&](size_t other, const Box& box) {
      if (other == tensor && box.offset < piece.offset) ++at;
    });
  }
  return at->second;
}

void StepReader::find_sources(const Wanted& wanted, std::map<int64_t, std::vector<Source>>& by_file) const {
  for (const TensorPiece& piece : wanted.tensor->pieces) {
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

// The buffers that no thread uses at the moment.
class StepReader::Buffers {
 public:
  explicit Buffers(bool pinned) : pinned_(pinned) {}

  Loaded take() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return {.part = pinned_ ? at::empty({kPartBytes}, bytes_.pinned_memory(true)) : at::Tensor()};
    Loaded one = std::move(idle_.back());
    idle_.pop_back();
    return one;
  }
  void give(Loaded&& one) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(one));
  }

 private:
  const bool pinned_;  // From pinned memory a GPU copies at the full speed of its bus.
  const at::TensorOptions bytes_ = at::kByte;
  std::mutex mutex_;
  std::vector<Loaded> idle_;
};

absl::Status StepReader::read(const std::vector<Wanted>& wanted) {
  std::map<int64_t, std::vector<Source>> by_file;
  bool pinned = false;
  for (const Wanted& one : wanted) {
    find_sources(one, by_file);
    pinned |= one.out != nullptr && one.out->is_cuda();
  }
  Buffers buffers(pinned);
  for (auto at = by_file.begin(); at != by_file.end();) {
    std::vector<std::pair<int64_t, std::vector<Source>*>> group;  // All files of a group stay open.
    for (; at != by_file.end() && group.size() < kOpenFiles / 2; ++at) group.emplace_back(at->first, &at->second);
    TITAN_RETURN_IF_ERROR(
        in_parallel(group.size(), kReaders, [&](size_t i) { return place_sources(group[i].first, *group[i].second); }));
    std::vector<Task> tasks;
    for (const auto& [file, sources] : group) {
      for (Task& task : tasks_of(file, *sources)) tasks.push_back(std::move(task));
    }
    TITAN_RETURN_IF_ERROR(in_parallel(tasks.size(), kReaders, [&](size_t i) {
      Loaded loaded = buffers.take();
      TITAN_RETURN_IF_ERROR(run(tasks[i], loaded));
      buffers.give(std::move(loaded));
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

absl::Status StepReader::place_sources(int64_t file, std::vector<Source>& sources) {
  TITAN_ASSIGN_OR_RETURN(const Shard* shard, this->shard(file));
  for (Source& source : sources) {
    if (source.chunks.crcs != nullptr) continue;
    const auto tensor = static_cast<size_t>(source.tensor - manifest_.tensors.data());
    source.begin = begin_of(file, *shard, tensor, source.piece);
    source.chunks = {shard->index.header_bytes, shard->index.data_bytes, &shard->index.chunk_crcs};
  }
  return absl::OkStatus();
}

std::vector<StepReader::Task> StepReader::tasks_of(int64_t file, const std::vector<Source>& sources) const {
  std::vector<Unit> units;
  for (const Source& source : sources) {
    const int64_t item = item_size(*source.tensor);
    for (const Box& part : cut(*intersect(source.piece, source.wanted->box), kPartBytes / item)) {
      units.push_back({&source, part, source.begin + first_element(part, source.piece) * item});
    }
  }
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) { return a.begin < b.begin; });
  std::vector<Task> tasks;
  int64_t bytes = kTaskBytes;
  for (Unit& unit : units) {
    if (bytes >= kTaskBytes) {
      tasks.push_back({file, {}});
      bytes = 0;
    }
    bytes += unit.part.elements() * item_size(*unit.source->tensor);
    tasks.back().units.push_back(std::move(unit));
  }
  return tasks;
}

absl::Status StepReader::run(const Task& task, Loaded& loaded) {
  const at::NoGradGuard no_grad;
  for (const Unit& unit : task.units) TITAN_RETURN_IF_ERROR(fill(task.file, unit, loaded));
  return absl::OkStatus();
}

absl::Status StepReader::fill(int64_t file, const Unit& unit, Loaded& loaded) {
  const Wanted& wanted = *unit.source->wanted;
  if (wanted.out == nullptr) return copy(file, unit, wanted.box, nullptr, loaded);
  const c10::ScalarType dtype = unit.source->tensor->dtype;
  if (wanted.out->is_cpu() && wanted.out->scalar_type() == dtype && wanted.out->is_contiguous()) {
    return copy(file, unit, wanted.box, static_cast<char*>(wanted.out->mutable_data_ptr()), loaded);
  }
  if (!loaded.part.defined()) loaded.part = at::empty({kPartBytes}, at::kByte);
  const int64_t bytes = unit.part.elements() * item_size(*unit.source->tensor);
  const at::Tensor held = loaded.part.narrow(0, 0, bytes).view(dtype).view(unit.part.shape);
  TITAN_RETURN_IF_ERROR(copy(file, unit, unit.part, static_cast<char*>(held.mutable_data_ptr()), loaded));
  part_of(*wanted.out, wanted.box, unit.part).copy_(held);
  return absl::OkStatus();
}

// Copies to `target`, which holds `box`; if it is null, only verifies.
absl::Status StepReader::copy(int64_t file, const Unit& unit, const Box& box, char* target, Loaded& loaded) {
  const Source& source = *unit.source;
  const int64_t item = item_size(*source.tensor);
  return for_each_run(unit.part, source.piece, box, [&](int64_t from, int64_t to, int64_t count) -> absl::Status {
    int64_t from_byte = source.begin + from * item, to_byte = to * item;
    const int64_t end = from_byte + count * item;
    while (from_byte < end) {
      const int64_t chunk = from_byte - (from_byte - source.chunks.begin) % kChunkBytes;
      const int64_t bytes = std::min(end, chunk + source.chunks.size_at(chunk)) - from_byte;
      if (target != nullptr && bytes == source.chunks.size_at(chunk)) {  // A whole chunk needs no buffer.
        TITAN_RETURN_IF_ERROR(read_chunk(file, source.chunks, chunk, source.tensor->key, target + to_byte));
      } else {
        TITAN_RETURN_IF_ERROR(load(file, source.chunks, chunk, source.tensor->key, loaded));
        const char* held = static_cast<const char*>(loaded.chunk.const_data_ptr()) + (from_byte - chunk);
        if (target != nullptr) std::memcpy(target + to_byte, held, static_cast<size_t>(bytes));
      }
      from_byte += bytes;
      to_byte += bytes;
    }
    return absl::OkStatus();
  });
}

absl::Status StepReader::load(int64_t file, const Chunks& chunks, int64_t at, const std::string& what, Loaded& loaded) {
  if (loaded.of == chunks.crcs && loaded.begin == at) return absl::OkStatus();
  if (!loaded.chunk.defined()) loaded.chunk = at::empty({kChunkBytes}, at::kByte);
  loaded.of = nullptr;
  TITAN_RETURN_IF_ERROR(read_chunk(file, chunks, at, what, static_cast<char*>(loaded.chunk.mutable_data_ptr())));
  loaded.of = chunks.crcs;
  loaded.begin = at;
  return absl::OkStatus();
}

absl::Status StepReader::read_chunk(int64_t file, const Chunks& chunks, int64_t at, const std::string& what,
                                    char* out) {
  TITAN_ASSIGN_OR_RETURN(const auto open, open_file(file));
  const int64_t size = chunks.size_at(at), number = (at - chunks.begin) / kChunkBytes;
  TITAN_RETURN_IF_ERROR(open->read(at, size, out));
  if (storage::crc32c(out, static_cast<size_t>(size)) == (*chunks.crcs)[static_cast<size_t>(number)]) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(path_of(file), ": checksum mismatch in ", what, ", chunk ", number,
                                          " (bytes ", at, " to ", at + size, ")"));
}

// Names the tensor at byte `at` of a file, for messages.
std::string StepReader::first_piece_at(int64_t file, const Shard& shard, int64_t at) const {
  int64_t best = -1;
  size_t tensor = 0;
  for (const auto& [number, begin] : shard.begins) {
    if (begin <= at && begin > best) best = begin, tensor = number;
  }
  return best < 0 ? path_of(file) : manifest_.tensors[tensor].key;
}

std::vector<StepReader::Stretch> StepReader::stretches(std::vector<absl::Status>& unusable) {
  unusable.assign(manifest_.files.size(), absl::OkStatus());
  in_parallel(unusable.size(), kReaders, [&](size_t file) {
    unusable[file] = shard(static_cast<int64_t>(file)).status();
    return absl::OkStatus();
  }).IgnoreError();
  std::vector<Stretch> all;
  const auto add = [&](int64_t file, const Chunks& chunks, const std::function<std::string(int64_t)>& what) {
    const int64_t end = chunks.begin + chunks.bytes;
    for (int64_t at = chunks.begin; at < end; at += kTaskBytes) {
      all.push_back({file, chunks, at, std::min(end, at + kTaskBytes), what});
    }
  };
  for (int64_t file = 0; file < static_cast<int64_t>(unusable.size()); ++file) {
    if (!unusable[static_cast<size_t>(file)].ok()) continue;
    const Shard* opened = *shard(file);
    add(file, {opened->index.header_bytes, opened->index.data_bytes, &opened->index.chunk_crcs},
        [this, file, opened](int64_t at) { return first_piece_at(file, *opened, at); });
  }
  for (const TensorRecord& tensor : manifest_.tensors) {
    for (const TensorPiece& piece : tensor.pieces) {
      if (!unusable[static_cast<size_t>(piece.file)].ok()) continue;
      add(piece.file, {piece.begin, piece.box.elements() * item_size(tensor), &piece.chunk_crcs},
          [&tensor](int64_t) { return tensor.key; });
    }
  }
  return all;
}

std::vector<absl::Status> StepReader::verify(const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<absl::Status> problems;
  const std::vector<Stretch> all = stretches(problems);
  std::erase_if(problems, [](const absl::Status& status) { return status.ok(); });
  int64_t bytes = 0, done = 0;
  for (const Stretch& one : all) bytes += one.end - one.begin;
  std::mutex mutex;
  std::vector<std::vector<absl::Status>> found(all.size());
  Buffers buffers(/*pinned=*/false);
  in_parallel(all.size(), kReaders, [&](size_t i) {
    const Stretch& one = all[i];
    Loaded loaded = buffers.take();
    for (int64_t at = one.begin; at < one.end; at += kChunkBytes) {
      absl::Status bad = load(one.file, one.chunks, at, one.what(at), loaded);
      if (!bad.ok()) found[i].push_back(std::move(bad));
    }
    buffers.give(std::move(loaded));
    std::lock_guard lock(mutex);
    done += one.end - one.begin;
    if (progress) progress(done, bytes);
    return absl::OkStatus();
  }).IgnoreError();
  for (std::vector<absl::Status>& some : found) std::move(some.begin(), some.end(), std::back_inserter(problems));
  return problems;
}

}  // namespace titan::checkpoint
