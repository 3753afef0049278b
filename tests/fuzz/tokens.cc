// Datasets that already consist of tokens, and distributed row counting.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/io/data_files/token_manifest.h"
#include "common/io/storage/crc32c.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/target.h"
#include "tests/worker/rank/data/byte_tokenizer.h"
#include "tests/worker/rank/data/compress.h"
#include "worker/rank/data/documents/compressed_text.h"
#include "worker/rank/data/documents/counted_documents.h"
#include "worker/rank/data/documents/document_places.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/rows/counted_rows.h"
#include "worker/rank/data/rows/document_rows.h"
#include "worker/rank/data/rows/open_rows.h"
#include "worker/rank/data/rows/packed_rows.h"
#include "worker/rank/data/rows/row_stream.h"
#include "worker/rank/data/rows/stream_state.h"
#include "worker/rank/data/rows/token_rows.h"
#include "worker/rank/data/tokens/titan_shard.h"

namespace titan::fuzz {
namespace {

constexpr int32_t kMaxId = 1000;

// Reads some rows of any valid set, starting at several positions.
void read_rows(data_files::DatasetFormat format, const std::string& file) {
  auto set = data::TokenSet::open(format, {file});
  if (!set.ok()) return;
  auto rows = data::TokenRows::open(*std::move(set), {.row_tokens = 7, .max_token_id = kMaxId});
  if (!rows.ok()) return;
  for (const int64_t skipped : {0, 1, 1000}) {
    (void)(*rows)->skip(skipped);
    const auto row = (*rows)->next();
    if (row.ok() && *row != nullptr) {
      require(std::all_of(*row, *row + 7, [](int32_t id) { return id >= 0 && id <= kMaxId; }), "ids of the vocabulary");
    }
    const auto position = (*rows)->position();
    if (position.ok()) (void)(*rows)->seek(*position);
  }
}

class Bytes final : public data::testing::ByteTokenizer {
 public:
  absl::Status encode_document(std::string_view text, std::vector<int32_t>& tokens) override {
    if (text.size() % 3 == 0) tokens.push_back(kSpecial);  // So that some documents have no token.
    return encode(text, tokens);
  }
};

}  // namespace

// The input is the manifest and a shard's two files; an odd first byte corrects the header's checksum.
TITAN_FUZZ(token_index, 300) {
  Parts parts(bytes);
  const bool repair = parts.byte() % 2 == 1;
  const std::string manifest = scratch_file(data_files::kTokenManifest, parts.next());
  std::string index(parts.next());
  if (repair && index.size() >= sizeof(data::ShardHeader)) {
    data::ShardHeader header;
    std::memcpy(&header, index.data(), sizeof header);
    header.sum = data::header_sum(header);
    std::memcpy(index.data(), &header, sizeof header);
  }
  scratch_file("shard-00000.index", index);
  const std::string tokens = scratch_file("shard-00000.tokens", parts.rest());
  const auto read = data_files::read_manifest(storage::posix_files(), manifest);
  if (read.ok()) {
    scratch_file("again.json", data_files::manifest_text(*read));
    const auto again = data_files::read_manifest(storage::posix_files(), scratch_folder() + "/again.json");
    require(again.ok() && data_files::manifest_text(*again) == data_files::manifest_text(*read),
            "written and read it is the same");
  }
  read_rows(data_files::DatasetFormat::kTitan, manifest);
  const auto shard = data::open_titan_shard(tokens);
  if (shard.ok()) (void)(*shard)->verify();
}

// Megatron-LM's .idx and .bin.
TITAN_FUZZ(megatron, 400) {
  Parts parts(bytes);
  const std::string index = scratch_file("set.idx", parts.next());
  scratch_file("set.bin", parts.rest());
  read_rows(data_files::DatasetFormat::kMegatron, index);
  const auto shard = data::open_megatron_shard(index);
  if (shard.ok()) (void)(*shard)->verify();
}

// Text in blocks, compressed or not, with row counts of other ranks from a reader of the same kind.
TITAN_FUZZ(counted_rows, 150) {
  Parts parts(bytes);
  const int64_t block_bytes = 1 + parts.byte();
  const int shape = parts.byte(), choice = shape / 40 % 4, compressed = shape / 160;
  const int64_t row = 1 + shape % 40;
  const std::string counts = scratch_file("counts", parts.next());
  const data::FileKind kind{
      .format = choice > 1 ? data_files::DatasetFormat::kText : data_files::DatasetFormat::kJsonLines,
      .blank_lines = choice == 2};
  const std::string name = compressed == 0 ? "counted" : shape % 2 == 0 ? "counted.gz" : "counted.zst";
  const std::string file = scratch_file(name, data::testing::as_named(name, parts.rest(), 100));
  auto blocks = data::DocumentBlocks::open(
      {.files = {file}, .kind = kind, .sizes = {.text_bytes = block_bytes, .compressed_bytes = block_bytes}});
  if (!blocks.ok()) return;
  data::CountedRows counted(*std::move(blocks), std::make_unique<Bytes>(), {.row_tokens = row, .counts_file = counts});
  data::RowStream whole(data::DocumentReader({.files = {file}, .kind = kind, .share = {}}), std::make_unique<Bytes>(),
                        row, true);
  for (int i = 0; i < 12; ++i) {
    const auto a = counted.next(), b = whole.next();
    require(a.ok() == b.ok(), "both fail or both succeed");
    if (!a.ok()) return;
    require(std::equal(*a, *a + row, *b), "the rows equal those of a complete reader");
    const auto position = counted.position();
    require(position.ok() && counted.seek(*position).ok() && whole.seek(*position).ok(), "a position is found again");
  }
}

// Compressed text, or bytes that may not be: its pieces are the same in any order as one after the other.
TITAN_FUZZ(compressed_text, 150) {
  Parts parts(bytes);
  const int shape = parts.byte();
  const bool good = shape / 2 % 2 == 0;
  const std::string name = shape % 2 == 0 ? "pieces.gz" : "pieces.zst";
  const data::CompressedText::Options options{
      .piece_bytes = 1 + parts.byte(), .least_apart = 50, .max_states = 4, .kept_text = 100};
  const std::string text(parts.rest());
  const std::string file = scratch_file(name, good ? data::testing::as_named(name, text, 100) : text);
  const auto open = [&] { return data::CompressedText(name, *storage::posix_files().open(file), options); };
  data::CompressedText once = open(), again = open();
  std::vector<std::string> pieces;
  std::string all;
  for (int64_t i = 0; i < once.pieces(); ++i) {
    const auto piece = once.piece(i);
    require(piece.ok() || !good, "compressed text is decompressed");
    if (!piece.ok()) break;
    require((*piece)->begin == static_cast<int64_t>(all.size()), "a piece begins where the previous one ends");
    all += pieces.emplace_back((*piece)->text);
  }
  require(!good || all == text, "it is the text that was compressed");
  for (size_t i = 0; i < std::min<size_t>(pieces.size(), 40); ++i) {
    const size_t number = (pieces.size() - i) * 7 % pieces.size();
    const auto piece = again.piece(static_cast<int64_t>(number));
    require(piece.ok() && (*piece)->text == pieces[number], "a piece is the same in another order");
  }
}

// Text that is shuffled or packed, with token counts of its documents from a reader that tokenizes all of them.
TITAN_FUZZ(counted_documents, 150) {
  Parts parts(bytes);
  const int shape = parts.byte();
  const bool shuffled = shape % 4 != 1, packed = shape % 2 == 1;
  const int64_t row = 2 + parts.byte() % 40;
  const data::FileKind kind{
      .format = shape / 4 % 2 == 1 ? data_files::DatasetFormat::kText : data_files::DatasetFormat::kJsonLines,
      .blank_lines = shape / 8 % 2 == 0};
  const std::string counts = scratch_file("lengths", parts.next());
  const std::vector<std::string> files = {scratch_file("arranged", parts.rest())};
  const std::string places = scratch_folder() + "/arranged-places";
  (void)storage::posix_files().remove_folder(places);
  const auto finder = [&]() -> std::unique_ptr<data::DocumentFinder> {
    auto found = data::DocumentPlaces::get(files, kind, places);
    if (!found.ok()) return nullptr;
    return data::find_by_places(files, kind, *std::move(found), {.seed = 3, .in_order = !shuffled});
  };
  if (finder() == nullptr) return;
  const data::TokenDocumentsOptions options{
      .arrangement = {.shuffle = shuffled ? data::Shuffle::kDocuments : data::Shuffle::kNone, .seed = 3},
      .row_tokens = row};
  const auto rows = [&](std::unique_ptr<data::TokenDocuments> documents) -> std::unique_ptr<data::RowSource> {
    if (!packed) return std::make_unique<data::DocumentRows>(std::move(documents), row, false);
    return std::make_unique<data::PackedRows>(std::move(documents),
                                              data::PackedRows::Options{.row_tokens = row, .window = 5});
  };
  const auto tokenizer = std::make_shared<Bytes>();
  const auto counted =
      rows(data::counted_documents(finder(), finder(), tokenizer, {.kind = kind, .counts_file = counts}, options));
  const auto whole = rows(
      shuffled ? data::shuffled_documents(finder(), kind, 100, tokenizer, options)
               : data::documents_in_order(data::DocumentReader({.files = files, .kind = kind}), tokenizer, options));
  for (int i = 0; i < 12; ++i) {
    const auto a = counted->next(), b = whole->next();
    require(a.ok() == b.ok(), "both fail or both succeed");
    if (!a.ok()) return;
    require(std::equal(*a, *a + row, *b), "the rows equal those of a complete reader");
    const auto position = counted->position();
    require(position.ok() && counted->seek(*position).ok() && whole->seek(*position).ok(), "a position is found again");
  }
}

// Document offsets as a file of the dump folder stores them; an odd first byte corrects the last checksum.
TITAN_FUZZ(document_places, 300) {
  Parts parts(bytes);
  const bool repair = parts.byte() % 2 == 1;
  const int64_t files = parts.byte() % 4;
  std::string places(parts.rest());
  constexpr size_t kFooter = 32, kSummed = 28;
  if (repair && places.size() >= kFooter) {
    char* footer = places.data() + places.size() - kFooter;
    const uint32_t sum = storage::crc32c(footer, kSummed);
    std::memcpy(footer + kSummed, &sum, sizeof sum);
  }
  auto opened = data::DocumentPlaces::open(scratch_file("places", places), files);
  if (!opened.ok()) return;
  for (const int64_t document : {int64_t{0}, opened->documents() / 2, opened->documents() - 1}) {
    if (document < 0 || document >= opened->documents()) continue;
    const auto place = opened->place(document);
    require(!place.ok() || (place->file >= 0 && place->file < files), "a document is in one of the files");
  }
}

// A checkpoint's position in data of several kinds of rows.
TITAN_FUZZ(data_cursor, 150) {
  Parts parts(bytes);
  const int kind = parts.byte() % 4;
  const auto state = nlohmann::json::parse(parts.next(), nullptr, /*allow_exceptions=*/false);
  const std::string text = scratch_file("cursor.jsonl", parts.rest());
  const std::string counts = scratch_folder() + "/counted";
  (void)storage::posix_files().remove_folder(counts);
  const data::RowsWanted wanted{.files = {},
                                .kind = {},
                                .row_tokens = 9,
                                .shuffle = kind == 1 ? data::Shuffle::kDocuments : data::Shuffle::kNone,
                                .packing_window = kind == 2 ? 3 : 0,
                                .counts_folder = counts};
  std::vector<data::SourceWanted> sources = {{kind == 0 ? "" : "a", {text}, {}}};
  if (kind == 3) sources.push_back({"b", {text}, {}, false});
  auto rows = data::open_mixed_rows(wanted, sources, {}, std::make_shared<Bytes>());
  if (!rows.ok() || !state.is_object()) return;
  const auto cursor = data::mix_from_json(state, *rows);
  if (!cursor.ok() || !rows->seek(*cursor).ok()) return;
  for (int i = 0; i < 3; ++i) {
    const auto row = rows->next();
    if (!row.ok() || *row == nullptr) return;
    const auto reached = rows->cursor();
    require(reached.ok(), "a row is followed by a place");
    const auto again = data::mix_from_json(data::to_json(**reached, *rows), *rows);
    require(again.ok() && rows->seek(*again).ok(), "a place is found again");
  }
}

// Plain text between blank lines.
TITAN_FUZZ(paragraphs, 100) {
  const std::string path = scratch_file("text.txt", bytes);
  const data::FileKind kind{.format = data_files::DatasetFormat::kText, .text_key = "", .blank_lines = true};
  data::DocumentReader reader({.files = {path}, .kind = kind, .share = {}, .max_bad_lines = 1 << 20});
  for (int i = 0; i < 100; ++i) {
    const auto document = reader.next();
    if (!document.ok() || !document->has_value()) break;
    require(!(*document)->text.empty(), "a document has text");
    data::DocumentReader again({.files = {path}, .kind = kind, .share = {}, .max_bad_lines = 1 << 20});
    require(again.seek((*document)->position, 0).ok(), "a position is found again");
    const auto found = again.next();
    require(found.ok() && found->has_value() && (*found)->text == (*document)->text,
            "the document at a position is found again");
  }
}

}  // namespace titan::fuzz
