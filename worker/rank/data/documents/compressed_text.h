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

// The text of a compressed file, in pieces whose number depends only on the file's size. The first four are the
// quarters of the text that the first 4 * piece_bytes of the file decompress to, and so on. Pieces may be read in any
// order. A few streams stay open, and for gzip some states of the decompressor are kept. Reading a piece decompresses
// from the nearest stream or state before it; for zstd, from the nearest stream or the file's start.
class CompressedText {
 public:
  struct Options {
    int64_t piece_bytes = 0;           // Bytes of the file per piece, on average.
    int64_t least_apart = 512 * 1024;  // Initial distance of two states, in bytes of text.
    size_t max_states = 128;           // With more states, 40 KiB each, every second one is dropped.
    int64_t kept_text = 1 << 20;       // Bytes of text that a stream keeps; at least eight pieces.
    int64_t max_text = 8 << 20;        // Most bytes of text in four pieces (is_too_dense).
  };
  // `path`: the name of the file, for its suffix and for errors.
  CompressedText(std::string path, std::unique_ptr<storage::ReadableFile> file, const Options& options);

  struct Piece {
    int64_t begin = 0;     // Byte of the text.
    bool in_line = false;  // The piece begins inside a line.
    bool words = false;    // That line so far (or, if !in_line, the line before) is not blank.
    std::string text;

    int64_t end() const { return begin + static_cast<int64_t>(text.size()); }
  };

  // Returns the number of pieces of a file of that size.
  static int64_t pieces_of(int64_t size, int64_t piece_bytes);
  int64_t pieces() const { return pieces_; }
  // Valid until the next call. Errors: those of the disk; InvalidArgument for data that is damaged or, in the last
  // piece, cut short (names the file), and for pieces of more than max_text (is_too_dense).
  absl::StatusOr<const Piece*> piece(int64_t number);
  // Returns the piece that holds a byte of the text; pieces() for the byte after the last. Errors: those of piece();
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

// Returns whether a piece failed because its text exceeds max_text. Such a file can still be read as a stream, which
// holds no whole piece in memory.
bool is_too_dense(const absl::Status& status);

}  // namespace titan::data
