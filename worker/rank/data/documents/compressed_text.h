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

// The text of a compressed file, in pieces that follow from its size alone: the first four are the quarters of what the
// first 4 * piece_bytes of the file decompress to, and so on. Any may be asked for. A few streams stay where they are,
// and of gzip the state of decompression is kept at some places that were passed: a piece costs what lies between it
// and one of these, in zstd what lies between it and a stream before it, or the file's beginning.
class CompressedText {
 public:
  struct Options {
    int64_t piece_bytes = 0;           // Of the file, on average.
    int64_t least_apart = 512 * 1024;  // Bytes of text between two states at first;
    size_t most_kept = 128;            // of more states, 40 KiB each, every second one is forgotten.
    int64_t kept_text = 1 << 20;       // Bytes before each stream that are not decompressed again.
    int64_t most_text = 8 << 20;       // Of four pieces together; more is too dense.
  };
  // `path`: the name of the file, for its ending and for errors.
  CompressedText(std::string path, std::unique_ptr<storage::ReadableFile> file, const Options& options);

  struct Piece {
    int64_t begin = 0;     // In the text.
    bool in_line = false;  // A line goes on there.
    bool words = false;    // That line so far, or else the one before, has more than spaces.
    std::string text;

    int64_t end() const { return begin + static_cast<int64_t>(text.size()); }
  };

  // How many a file of that size has.
  static int64_t pieces_of(int64_t size, int64_t piece_bytes);
  int64_t pieces() const { return pieces_; }
  // Valid until the next call. Errors: InvalidArgument for data that is damaged, or cut short in the last piece (names
  // the file), and for pieces that come to more than most_text (is_too_dense); or what the disk says.
  absl::StatusOr<const Piece*> piece(int64_t number);
  // The one with that byte of the text; pieces() for the byte behind the last. Errors: those of piece();
  // InvalidArgument for a byte behind that.
  absl::StatusOr<int64_t> piece_of(int64_t offset);

  int64_t decompressed() const { return decompressed_; }  // Bytes of text, all in all.

 private:
  struct State {
    int64_t next = 0;  // The piece that follows,
    Piece begin;       // and how it begins.
    std::unique_ptr<data_files::Decompressor> decompressor;
  };
  struct Stream : State {
    std::deque<Piece> pieces;  // The last ones before.
    int64_t text_bytes = 0;    // Of these.

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
  std::vector<Stream> streams_;  // The last was used last.
  std::vector<State> states_;    // In their order.
  int64_t apart_;
  std::string output_;  // Where text comes out.
  int64_t decompressed_ = 0;
};

// Whether that is why a piece was not given: it would have to be held whole. A reader of the whole text need not.
bool is_too_dense(const absl::Status& status);

}  // namespace titan::data
