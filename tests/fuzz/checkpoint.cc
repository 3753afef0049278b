// Files of checkpoints and weights, which may come from anywhere.

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "common/io/storage/crc32c.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/target.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_quantization.h"
#include "worker/rank/checkpoint/formats/pickle/archive.h"
#include "worker/rank/checkpoint/formats/pickle/plain.h"
#include "worker/rank/checkpoint/formats/pickle/reader.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/checkpoint/shards/shard_index.h"
#include "worker/rank/checkpoint/shards/written_step.h"
#include "worker/rank/pickle/writer.h"

namespace titan::fuzz {
namespace {

using nlohmann::json;

class Text : public storage::ReadableFile {
 public:
  explicit Text(std::string_view bytes) : bytes_(bytes) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    require(offset >= 0 && bytes >= 0, "read bytes lie in the file");
    if (offset + bytes > size()) return absl::DataLossError("the file ends before");
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

 private:
  std::string_view bytes_;
};

// Checks that lookups in both directions find the same pieces.
void check_placement_of(const checkpoint::Manifest& manifest) {
  const checkpoint::PlacementIndex placement(manifest.rows, manifest.tensors.size());
  int64_t listed = 0, in_files = 0, found = 0;
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    if (!manifest.tensors[i].pieces.empty()) return;
    listed += placement.pieces_of(i);
    placement.for_each_piece(i, checkpoint::whole(manifest.tensors[i].shape),
                             [&](int64_t, const checkpoint::Box&) { ++found; });
  }
  for (size_t file = 0; file < manifest.files.size(); ++file) {
    placement.for_each_piece_in(static_cast<int64_t>(file), [&](size_t tensor, const checkpoint::Box& piece) {
      require(checkpoint::intersect(piece, checkpoint::whole(manifest.tensors.at(tensor).shape)).has_value() ||
                  piece.elements() == 0,
              "a piece lies in its tensor");
      ++in_files;
      if (piece.elements() == 0) ++found;
    });
  }
  require(listed == in_files && listed == found, "every piece is found");
}

void read_manifest(const std::string& text) {
  const auto manifest = checkpoint::manifest_from_text(text);
  if (!manifest.ok()) return;
  const std::string written = checkpoint::to_text(*manifest);
  const auto again = checkpoint::manifest_from_text(written);
  require(again.ok() && checkpoint::to_text(*again) == written, "a manifest reads back to the same");
  for (size_t cut = 0; cut < text.size(); cut += 1 + text.size() / 16) {
    require(!checkpoint::manifest_from_text(std::string_view(text).substr(0, cut)).ok(), "a truncated one is refused");
  }
  // Readers allocate sizes and add offsets from the manifest.
  for (const auto& tensor : manifest->tensors) {
    for (const auto& piece : tensor.pieces) {
      require(piece.file >= 0 && static_cast<size_t>(piece.file) < manifest->files.size(), "a piece lies in a file");
      require(piece.begin >= 0 && piece.begin <= manifest->files[static_cast<size_t>(piece.file)].bytes,
              "the piece lies inside the file");
    }
  }
  check_placement_of(*manifest);
}

}  // namespace

// The input is the body, which gets its correct checksum; after a zero byte it is the whole text.
TITAN_FUZZ(manifest, 1500) {
  if (!bytes.empty() && bytes[0] == 0) return read_manifest(std::string(bytes.substr(1)));
  read_manifest(absl::StrFormat("{\"crc32c\":\"%08x\",", storage::crc32c(bytes.data(), bytes.size())) +
                std::string(bytes));
}

// The input is up to four reports of ranks about their shards after a list of tensors; together they make a step.
TITAN_FUZZ(shard_report, 1000) {
  Parts parts(bytes);
  std::vector<checkpoint::WrittenStep> reports;
  std::map<std::string, checkpoint::TensorTable> tables;
  for (int rank = 0; rank < 4 && !parts.empty(); ++rank) {
    const auto table = checkpoint::table_from_text(std::string(parts.next()));
    const auto report = checkpoint::report_from_json(json::parse(parts.next(), nullptr, /*allow_exceptions=*/false));
    if (!table.ok() || !report.ok()) return;
    require(checkpoint::table_text(*checkpoint::table_from_text(checkpoint::table_text(*table))) ==
                checkpoint::table_text(*table),
            "a list of tensors reads back to the same");
    const json text = to_json(*report);
    const auto again = checkpoint::report_from_json(text);
    require(again.ok() && to_json(*again) == text, "a report reads back to the same");
    for (const auto& [name, rows] : report->rows) tables[name] = *table;
    reports.push_back(*report);
  }
  checkpoint::WrittenStep joined = checkpoint::join(reports);
  require(checkpoint::report_from_json(to_json(joined)).ok(), "joined reports form one report");
  checkpoint::Manifest manifest;
  if (checkpoint::complete(std::move(joined), tables, manifest).ok()) {
    const auto read = checkpoint::manifest_from_text(checkpoint::to_text(manifest));
    require(read.ok(), "a step that was put together is read");
  }
}

// The input is the index at a shard's end, which gets its correct checksum; after a zero byte it is the whole index.
TITAN_FUZZ(shard_index, 20000) {
  const auto read = [](const std::string& text) {
    const auto index = checkpoint::index_from_bytes(text);
    if (!index.ok()) return;
    require(checkpoint::to_bytes(*index) == text, "an index reads back to the same");
    require(static_cast<int64_t>(index->chunk_crcs.size()) == checkpoint::chunks_of(index->data_bytes) &&
                index->header_bytes + index->data_bytes >= index->data_bytes,
            "it has a checksum for each chunk");
    require(!checkpoint::index_from_bytes(std::string_view(text).substr(0, text.size() / 2)).ok(),
            "a truncated one is refused");
  };
  if (!bytes.empty() && bytes[0] == 0) return read(std::string(bytes.substr(1)));
  const uint32_t crc = storage::crc32c(bytes.data(), bytes.size());
  read(std::string(bytes) + std::string(reinterpret_cast<const char*>(&crc), 4));
}

// Makes a file: the header with its length in front, then as many zeroes as the first byte says.
std::string safetensors_file(Parts& parts) {
  const uint8_t zeroes = parts.byte();
  const std::string header(parts.rest());
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += header;
  file.append(zeroes, '\0');
  return file;
}

TITAN_FUZZ(safetensors, 2500) {
  Parts parts(bytes);
  const std::string file = safetensors_file(parts);
  Text text(file);
  const auto entries = checkpoint::read_header(text, "model.safetensors");
  Text raw(bytes);
  (void)checkpoint::read_header(raw, "raw");  // The length may be wrong.
  if (!entries.ok()) return;
  std::vector<checkpoint::TensorEntry> all;
  int64_t end = 0;
  for (const auto& [key, entry] : *entries) {
    require(entry.begin >= 8 && entry.bytes() >= 0 && entry.begin <= static_cast<int64_t>(file.size()) - entry.bytes(),
            "every tensor lies inside the file");
    end = std::max(end, entry.begin + entry.bytes());
    all.push_back(entry);
  }
  Text cut(std::string_view(file).substr(0, file.size() / 2));
  require(!checkpoint::read_header(cut, "cut").ok() || end <= cut.size(), "a truncated one is refused");
  const auto layout = checkpoint::layout(all);
  require(layout.ok(), "tensors that were read can be written");
  std::string written = layout->header;
  written.resize(static_cast<size_t>(layout->file_bytes));
  Text again(written);
  const auto same = checkpoint::read_header(again, "again");
  require(same.ok() && same->size() == all.size(), "and written tensors are read again");
}

// Descriptions of quantized weights in a folder's config.json and headers: readers allocate the shape and read a scale
// for each block. The input is the config, then a file.
TITAN_FUZZ(quantized, 10000) {
  Parts parts(bytes);
  const auto settings = checkpoint::quantization_of(std::string(parts.next()), "config.json");
  const std::string file = safetensors_file(parts);
  Text text(file);
  const auto entries = checkpoint::read_header(text, "model.safetensors");
  if (!settings.ok() || !entries.ok()) return;
  require(settings->block_rows > 0 && settings->block_columns > 0, "a block has numbers");
  for (const auto& [key, entry] : *entries) {
    const std::string tensor = checkpoint::scaled_by(key);
    require(tensor.empty() || checkpoint::scales_of(tensor) == key, "names map in both directions");
    const auto scales = entries->find(checkpoint::scales_of(key));
    const checkpoint::TensorEntry* found = scales == entries->end() ? nullptr : &scales->second;
    const auto coded = checkpoint::coding_of(entry, found, *settings);
    if (!coded.ok() || coded->coding == checkpoint::Coding::kPlain) continue;
    int64_t numbers = 1;
    for (const int64_t size : coded->shape) numbers *= size;
    require(numbers >= 0 && numbers <= 2 * entry.bytes(), "no byte stands for more than two numbers");
    require(found != nullptr && (numbers == 0 || found->bytes() > 0), "coded numbers have scales");
  }
}

// Reads a pickle as plain objects and as the metadata of a torch.distributed.checkpoint folder.
TITAN_FUZZ(pickle, 2500) {
  const pickle::ReadLimits limits{.bytes = 1 << 20, .values = 1 << 16};
  const auto document = pickle::read(std::string(bytes), "fuzz.pkl", limits);
  if (!document.ok()) {
    require(document.status().message().find("fuzz.pkl: byte ") == 0, "an error names its place");
    return;
  }
  const auto plain = pickle::plain(*document, "fuzz.pkl");
  if (plain.ok()) {
    const auto again = pickle::read(pickle::Writer().plain(*plain).finish(), "again");
    require(again.ok() && pickle::plain(*again, "again").ok(), "plain objects are written and read again");
  }
  const auto metadata = checkpoint::dcp_metadata(std::string(bytes), ".metadata");
  if (!metadata.ok()) return;
  // Readers allocate these sizes and open these files.
  for (const auto& [key, tensor] : metadata->tensors) {
    for (const auto& piece : tensor.pieces) {
      require(piece.box.elements() > 0 && piece.place.offset >= 0 && piece.place.bytes >= 0, "a piece has a place");
      require(("/" + piece.place.file + "/").find("/../") == std::string::npos && piece.place.file[0] != '/',
              "inside the folder");
    }
  }
}

// Reads an archive of torch.save at some offset of a file.
TITAN_FUZZ(torch_archive, 2500) {
  Parts parts(bytes);
  const int64_t before = parts.byte();
  Text file(bytes);
  if (before > file.size()) return;
  const auto archive = pickle::Archive::open(file, {before, file.size() - before}, "f.distcp");
  if (!archive.ok()) return;
  (void)archive->plain();
  const auto tensor = archive->tensor();
  if (!tensor.ok()) return;
  require(tensor->storage.begin >= before && tensor->storage.bytes <= file.size() - tensor->storage.begin,
          "it lies in the file");
}

// Compares a manifest's description of its model with a model's spec.
TITAN_FUZZ(model, 1500) {
  static const models::ModelSpec spec = *models::find("deepseek_v3", "debugmodel");
  const json stored = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!stored.is_object()) return;  // The manifest has no description.
  (void)models::differences(stored, spec);
  (void)models::label(stored);
}

}  // namespace titan::fuzz
