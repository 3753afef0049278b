#include "worker/rank/data/documents/document_finder.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/documents/permutation.h"

namespace titan::data {
namespace {

constexpr int64_t kReadAhead = 16 * 1024;  // Bytes to read at once for a single document.

absl::Status no_document(const std::string& file, const data_files::FilePlace& place) {
  return absl::DataLossError(absl::StrCat(file, ": has no document at place (", place.offset, ", ", place.line,
                                          "): the dataset has changed since the job began to read it"));
}

DocumentPosition end_of_files(const std::vector<std::string>& files, int64_t documents) {
  return {.file = static_cast<int64_t>(files.size()), .document = documents};
}

class PlaceFinder final : public DocumentFinder {
 public:
  PlaceFinder(std::vector<std::string> files, const FileKind& kind, DocumentPlaces places, const ShuffledShare& share)
      : files_(std::move(files)), kind_(kind), places_(std::move(places)), share_(share) {
    kind_.read_ahead = kReadAhead;
    if (share_.documents < 0) share_.documents = places_.documents() - share_.first;
  }

  int64_t documents() const override { return share_.documents; }

  absl::StatusOr<Found> read(int64_t pass, int64_t number) override {
    const int64_t document = share_.in_order ? number : Permutation(share_.documents, share_.seed, pass)(number);
    TITAN_ASSIGN_OR_RETURN(const DocumentPosition at, places_.place(share_.first + document));
    const data_files::FilePlace place{at.offset, at.line};
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> file, DocumentFile::open(files_[at.file], kind_, place));
    TITAN_ASSIGN_OR_RETURN(const bool found, file->next());
    if (!found) return no_document(files_[at.file], place);
    TITAN_ASSIGN_OR_RETURN(DocumentText text, file->text());
    return Found{std::move(text), file->name()};
  }

  absl::StatusOr<DocumentPosition> position(int64_t number) override {
    if (!share_.in_order) return DocumentPosition{.document = number};
    if (number == share_.documents) return end_of_files(files_, number);
    return places_.place(share_.first + number);
  }

 private:
  const std::vector<std::string>& files() const override { return files_; }
  const FileKind& kind() const override { return kind_; }
  bool in_order() const override { return share_.in_order; }

  const std::vector<std::string> files_;
  FileKind kind_;
  DocumentPlaces places_;
  ShuffledShare share_;
};

// Rows of a row group that are shuffled with each other.
struct Block {
  int64_t file = 0, group = 0, row = 0, rows = 0;
};

// Returns all blocks of the share.
std::vector<Block> blocks_of_share(const std::vector<std::vector<int64_t>>& row_groups, const ShuffledShare& share) {
  std::vector<Block> blocks;
  int64_t before = 0;  // Documents before the row group.
  const int64_t block_rows = share.in_order ? kOrderedBlockRows : kBlockRows;
  const int64_t end = share.documents < 0 ? INT64_MAX : share.first + share.documents;
  for (size_t file = 0; file < row_groups.size(); ++file) {
    for (size_t group = 0; group < row_groups[file].size(); ++group) {
      const int64_t rows = row_groups[file][group];
      for (int64_t row = 0; row < rows; row += block_rows) {
        const int64_t first = std::max(before + row, share.first);
        const int64_t last = std::min(before + std::min(rows, row + block_rows), end);
        if (first >= last) continue;
        blocks.push_back({static_cast<int64_t>(file), static_cast<int64_t>(group), first - before, last - first});
      }
      before += rows;
    }
  }
  return blocks;
}

class BlockFinder final : public DocumentFinder {
 public:
  BlockFinder(std::vector<std::string> files, const FileKind& kind, std::vector<Block> blocks,
              const ShuffledShare& share)
      : files_(std::move(files)), kind_(kind), blocks_(std::move(blocks)), share_(share) {
    for (const Block& block : blocks_) documents_ += block.rows;
  }

  int64_t documents() const override { return documents_; }

  absl::StatusOr<Found> read(int64_t pass, int64_t number) override {
    if (pass != pass_) order_blocks(pass);
    const int64_t place = place_of(number), block = block_at(place);
    if (block != loaded_) TITAN_RETURN_IF_ERROR(load(block));
    const int64_t row = number - firsts_[place];
    if (share_.in_order) return texts_[row];
    return texts_[Permutation(blocks_[block].rows, share_.seed + 1 + block, pass)(row)];
  }

  absl::StatusOr<DocumentPosition> position(int64_t number) override {
    if (!share_.in_order) return DocumentPosition{.document = number};
    if (number == documents_) return end_of_files(files_, number);
    if (pass_ < 0) order_blocks(0);
    const int64_t place = place_of(number);
    const Block& block = blocks_[place];
    return DocumentPosition{block.file, block.group, block.row + number - firsts_[place], number};
  }

 private:
  // Computes the number of each block's first document in the pass.
  void order_blocks(int64_t pass) {
    pass_ = pass;
    firsts_.clear();
    int64_t documents = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      firsts_.push_back(documents);
      documents += blocks_[block_at(static_cast<int64_t>(i))].rows;
    }
  }
  // Return, for this pass, the place of the block that holds a document, and the block at a place.
  int64_t place_of(int64_t number) const {
    return std::upper_bound(firsts_.begin(), firsts_.end(), number) - firsts_.begin() - 1;
  }
  int64_t block_at(int64_t place) const {
    return share_.in_order ? place : Permutation(static_cast<int64_t>(blocks_.size()), share_.seed, pass_)(place);
  }

  absl::Status load(int64_t number) {
    const Block& block = blocks_[number];
    const data_files::FilePlace place{block.group, block.row};
    loaded_ = -1;
    texts_.clear();
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> file,
                           DocumentFile::open(files_[block.file], kind_, place));
    for (int64_t row = 0; row < block.rows; ++row) {
      TITAN_ASSIGN_OR_RETURN(const bool found, file->next());
      if (!found) return no_document(files_[block.file], place);
      TITAN_ASSIGN_OR_RETURN(DocumentText text, file->text());
      texts_.push_back({std::move(text), file->name()});
    }
    loaded_ = number;
    return absl::OkStatus();
  }

  const std::vector<std::string>& files() const override { return files_; }
  const FileKind& kind() const override { return kind_; }
  bool in_order() const override { return share_.in_order; }

  const std::vector<std::string> files_;
  const FileKind kind_;
  const std::vector<Block> blocks_;
  const ShuffledShare share_;
  int64_t documents_ = 0;
  int64_t pass_ = -1, loaded_ = -1;
  std::vector<int64_t> firsts_;  // In this pass, in its order.
  std::vector<Found> texts_;     // The documents of the loaded block.
};

}  // namespace

// In order, a valid position lies after the previous document's start, not after the document's own start, and is a
// place of the file.
absl::Status DocumentFinder::check(const DocumentPosition& saved) {
  if (saved.document > documents()) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is document ", saved.document,
                                                   " of ", documents(), ": the dataset has changed"));
  }
  if (!in_order()) return absl::OkStatus();
  const auto place = [](const DocumentPosition& at) { return std::tuple(at.file, at.offset, at.line); };
  TITAN_ASSIGN_OR_RETURN(const DocumentPosition own, position(saved.document));
  bool right = saved.file >= 0 && place(saved) <= place(own);
  if (saved.document > 0) {
    TITAN_ASSIGN_OR_RETURN(const DocumentPosition before, position(saved.document - 1));
    right = right && place(before) < place(saved);
  }
  if (!right) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's data position is document ", saved.document,
                                                   " of the dataset, at ", saved.offset, " of file ", saved.file,
                                                   ", but no document starts there: the dataset has changed"));
  }
  if (saved.file == static_cast<int64_t>(files().size())) return absl::OkStatus();
  return DocumentFile::open(files()[saved.file], kind(), {saved.offset, saved.line}).status();
}

std::unique_ptr<DocumentFinder> find_by_places(std::vector<std::string> files, const FileKind& kind,
                                               DocumentPlaces places, const ShuffledShare& share) {
  return std::make_unique<PlaceFinder>(std::move(files), kind, std::move(places), share);
}

std::unique_ptr<DocumentFinder> find_in_blocks(std::vector<std::string> files, const FileKind& kind,
                                               const std::vector<std::vector<int64_t>>& row_groups,
                                               const ShuffledShare& share) {
  return std::make_unique<BlockFinder>(std::move(files), kind, blocks_of_share(row_groups, share), share);
}

}  // namespace titan::data
