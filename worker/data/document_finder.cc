#include "worker/data/document_finder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/data/permutation.h"

namespace titan::data {
namespace {

constexpr int64_t kReadAhead = 16 * 1024;  // Of a document that is read alone.

absl::Status no_document(const std::string& file, const FilePlace& place) {
  return absl::DataLossError(absl::StrCat(file, ": has no document at ", place.offset, ", ", place.line,
                                          ": the dataset has changed since the job began to read it"));
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
    const Permutation order(share_.documents, share_.seed, pass);
    TITAN_ASSIGN_OR_RETURN(const DocumentPosition at, places_.place(share_.first + order(number)));
    const FilePlace place{at.offset, at.line};
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentFile> file, DocumentFile::open(files_[at.file], kind_, place));
    TITAN_ASSIGN_OR_RETURN(const bool found, file->next());
    if (!found) return no_document(files_[at.file], place);
    TITAN_ASSIGN_OR_RETURN(DocumentText text, file->text());
    return Found{std::move(text), file->name()};
  }

 private:
  const std::vector<std::string> files_;
  FileKind kind_;
  DocumentPlaces places_;
  ShuffledShare share_;
};

// Rows of a row group that are shuffled among each other.
struct Block {
  int64_t file = 0, group = 0, row = 0, rows = 0;
};

// All blocks, less what is not of the share.
std::vector<Block> blocks_of_share(const std::vector<std::vector<int64_t>>& row_groups, const ShuffledShare& share) {
  std::vector<Block> blocks;
  int64_t before = 0;  // Documents.
  const int64_t end = share.documents < 0 ? INT64_MAX : share.first + share.documents;
  for (size_t file = 0; file < row_groups.size(); ++file) {
    for (size_t group = 0; group < row_groups[file].size(); ++group) {
      const int64_t rows = row_groups[file][group];
      for (int64_t row = 0; row < rows; row += kBlockRows) {
        const int64_t first = std::max(before + row, share.first);
        const int64_t last = std::min(before + std::min(rows, row + kBlockRows), end);
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
  BlockFinder(std::vector<std::string> files, const FileKind& kind, std::vector<Block> blocks, int64_t seed)
      : files_(std::move(files)), kind_(kind), blocks_(std::move(blocks)), seed_(seed) {
    for (const Block& block : blocks_) documents_ += block.rows;
  }

  int64_t documents() const override { return documents_; }

  absl::StatusOr<Found> read(int64_t pass, int64_t number) override {
    if (pass != pass_) order_blocks(pass);
    const auto behind = std::upper_bound(firsts_.begin(), firsts_.end(), number);
    const int64_t place = behind - firsts_.begin() - 1;
    const int64_t block = Permutation(static_cast<int64_t>(blocks_.size()), seed_, pass)(place);
    if (block != loaded_) TITAN_RETURN_IF_ERROR(load(block));
    const Permutation order(blocks_[block].rows, seed_ + 1 + block, pass);
    return texts_[order(number - firsts_[place])];
  }

 private:
  // The number of each block's first document in a pass.
  void order_blocks(int64_t pass) {
    const Permutation order(static_cast<int64_t>(blocks_.size()), seed_, pass);
    firsts_.clear();
    int64_t documents = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      firsts_.push_back(documents);
      documents += blocks_[order(static_cast<int64_t>(i))].rows;
    }
    pass_ = pass;
  }

  absl::Status load(int64_t number) {
    const Block& block = blocks_[number];
    const FilePlace place{block.group, block.row};
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

  const std::vector<std::string> files_;
  const FileKind kind_;
  const std::vector<Block> blocks_;
  const int64_t seed_;
  int64_t documents_ = 0;
  int64_t pass_ = -1, loaded_ = -1;
  std::vector<int64_t> firsts_;  // Of this pass, in its order.
  std::vector<Found> texts_;     // Of the loaded block.
};

}  // namespace

std::unique_ptr<DocumentFinder> find_by_places(std::vector<std::string> files, const FileKind& kind,
                                               DocumentPlaces places, const ShuffledShare& share) {
  return std::make_unique<PlaceFinder>(std::move(files), kind, std::move(places), share);
}

std::unique_ptr<DocumentFinder> find_in_blocks(std::vector<std::string> files, const FileKind& kind,
                                               const std::vector<std::vector<int64_t>>& row_groups,
                                               const ShuffledShare& share) {
  return std::make_unique<BlockFinder>(std::move(files), kind, blocks_of_share(row_groups, share), share.seed);
}

}  // namespace titan::data
