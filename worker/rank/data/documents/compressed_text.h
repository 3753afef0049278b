#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/data_files/byte_source.h"
#include "common/io/storage/file.h"

namespace titan::data {

// The text of a compressed file, in pieces that follow from its size alone. The first four are the quarters of the text
// that the first 4 * piece_bytes of the file decompress to, and so on. Any piece can be requested. A few streams stay
// open where they are, and for gzip some states of decompression are kept. A piece costs the decompression from the
// nearest of these before it; zstd has only streams and the file's beginning.
class CompressedText {
 public:
  struct Options {
    int64_t piece_bytes = 0;           // Bytes of the file per piece, on average.
    int64_t least_apart = 512 * 1024;  // Bytes of text between two states at first.
    size_t max_states = 128;           // With more states, 40 KiB each, every second one is dropped.
    int64_t kept_text = 1 << 20;       // Bytes of text before each stream that are kept.
    int64_t max_text = 8 << 20;        // Bytes of text in four pieces; more is too dense.
  };
  // `path`: the name of the file, for its suffix and for errors.
  CompressedText(std::string path, std::unique_ptr<storage::ReadableFile> file, const Options& options);

  struct Piece {
    int64_t begin = 0;     // Byte of the text.
    bool in_line = false;  // The piece begins inside a line.
    bool words = false;    // That line so far, or else the line before, is not blank.
    std::string text;

    int64_t end() const { return begin + static_cast<int64_t>(text.size()); }
  };

  // Number of pieces of a file of that size.
  static int64_t pieces_of(int64_t size, int64_t piece_bytes);
  int64_t pieces() const { return pieces_; }
  // Valid until the next call. Errors: those of the disk; InvalidArgument for data that is damaged or, in the last
  // piece, cut short (names the file), and for pieces of more than max_text (is_too_dense).
  absl::StatusOr<const Piece*> piece(int64_t number);
  // The piece that holds a byte of the text; pieces() for the byte after the last. Errors: those of piece();
  // InvalidArgument for a later byte.
  absl::StatusOr<int64_t> piece_of(int64_t offset);

  int64_t decompressed() const { return decompressed_; }  // Bytes of text in total.

 private:
  struct State {
    int64_t next = 0;  // The next piece.
    Piece begin;       // Where and how it begins, without text.
    std::unique_ptr<data_files::Decompressor> decompressor;
  };
  struct Stream : State {
    std::deque<Piece> pieces;  // The last ones before `next`.
    int64_t text_bytes = 0;    // Bytes of text in `pieces`.

    int64_t first() const { return next - static_cast<int64_t>(pieces.size()); }
  };
  absl::StatusOr<Stream*> stream_at(int64_t number);
  absl::StatusOr<Stream> enter(int64_t number) const;
  absl::Status read_on(Stream& stream);
  absl::StatusOr<std::string> decompress(Stream& stream);
  void keep_state(const Stream& stream);
  const State* state_before(int64_t number) const;

  const std::string path_;
  const std::unique_ptr<storage::ReadableFile> file_;
  const Options options_;
  const int64_t pieces_;
  std::vector<Stream> streams_;  // The last is the most recently used.
  std::vector<State> states_;    // In the order of the text.
  int64_t apart_;
  std::string output_;  // Output of the decompressor.
  int64_t decompressed_ = 0;
};

// Whether a piece failed because its text exceeds max_text. A reader of the whole text need not hold a piece in
// memory.
bool is_too_dense(const absl::Status& status);

}  // namespace titan::data
