#include "worker/rank/data/documents/compressed_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/line_reader.h"
#include "worker/rank/data/documents/block_files.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::data {
namespace {

constexpr size_t kTextStreams = 3;  // For the place where a rank counts, where its rows are, and where the batch ends.
constexpr size_t kOutput = 64 * 1024;
constexpr int64_t kParts = 4;  // Pieces per read: zstd outputs 128 KiB of text at a time.

constexpr char kTooDense[] = "titan/too_dense";

absl::Status too_dense(const std::string& path, int64_t bytes, int64_t at, int64_t text) {
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat(path, ": the ", bytes, " bytes at byte ", at, " decompress to more than ", text, " bytes of text"));
  status.SetPayload(kTooDense, absl::Cord());
  return status;
}

// Returns how the piece after `piece` begins, without its text.
CompressedText::Piece piece_after(const CompressedText::Piece& piece) {
  const std::string_view text = piece.text;
  const size_t last_end = text.rfind('\n');
  CompressedText::Piece next{.begin = piece.end()};
  if (last_end == std::string_view::npos) {
    next.in_line = piece.in_line || !text.empty();
    next.words = text.empty() ? piece.words : (piece.in_line && piece.words) || !data_files::blank(text);
    return next;
  }
  next.in_line = last_end + 1 < text.size();
  if (next.in_line) {
    next.words = !data_files::blank(text.substr(last_end + 1));
    return next;
  }
  const size_t line = last_end == 0 ? std::string_view::npos : text.rfind('\n', last_end - 1);
  const bool whole = line != std::string_view::npos;  // The line begins in this piece, after another one.
  next.words = (!whole && piece.in_line && piece.words) || !data_files::blank(text.substr(whole ? line + 1 : 0));
  return next;
}

}  // namespace

CompressedText::CompressedText(std::string path, std::unique_ptr<storage::ReadableFile> file, const Options& options)
    : path_(std::move(path)),
      file_(std::move(file)),
      options_(options),
      pieces_(pieces_of(file_->size(), options.piece_bytes)),
      apart_(options.least_apart),
      output_(kOutput, '\0') {}

int64_t CompressedText::pieces_of(int64_t size, int64_t piece_bytes) {
  return parts_of(size, piece_bytes * kParts) * kParts;
}

absl::StatusOr<const CompressedText::Piece*> CompressedText::piece(int64_t number) {
  TITAN_ASSIGN_OR_RETURN(Stream * stream, stream_at(number));
  while (stream->next <= number) {
    const absl::Status read = read_on(*stream);
    if (!read.ok()) streams_.pop_back();  // The failed stream is the last one, and it has no further pieces.
    TITAN_RETURN_IF_ERROR(read);
  }
  return &stream->pieces[static_cast<size_t>(number - stream->first())];
}

absl::StatusOr<int64_t> CompressedText::piece_of(int64_t offset) {
  const auto behind_it =
      std::upper_bound(states_.begin(), states_.end(), offset,
                       [](int64_t wanted, const State& state) { return wanted < state.begin.begin; });
  int64_t end = 0;
  for (int64_t number = behind_it == states_.begin() ? 0 : (behind_it - 1)->next; number < pieces_; ++number) {
    TITAN_ASSIGN_OR_RETURN(const Piece* found, piece(number));
    end = found->end();
    if (end > offset) return number;
  }
  return offset == end ? absl::StatusOr<int64_t>(pieces_) : data_files::no_line_at(path_, offset);
}

// Returns the stream that has the least to decompress before that piece, and moves it to the back of streams_.
absl::StatusOr<CompressedText::Stream*> CompressedText::stream_at(int64_t number) {
  auto best = streams_.end();
  for (auto stream = streams_.begin(); stream != streams_.end(); ++stream) {
    const bool fits = stream->first() <= number && (best == streams_.end() || stream->next > best->next);
    if (fits) best = stream;
  }
  const State* state = state_before(number);
  const int64_t entered = state == nullptr ? 0 : state->next;
  if (best == streams_.end() || best->next < entered) {
    TITAN_ASSIGN_OR_RETURN(Stream stream, enter(number));
    if (streams_.size() == kTextStreams) streams_.erase(streams_.begin());
    streams_.push_back(std::move(stream));
  } else {
    std::rotate(best, best + 1, streams_.end());
  }
  return &streams_.back();
}

const CompressedText::State* CompressedText::state_before(int64_t number) const {
  const auto behind_it = std::upper_bound(states_.begin(), states_.end(), number,
                                          [](int64_t wanted, const State& state) { return wanted < state.next; });
  return behind_it == states_.begin() ? nullptr : &*(behind_it - 1);
}

// Returns a new stream that starts as close before the piece as possible.
absl::StatusOr<CompressedText::Stream> CompressedText::enter(int64_t number) const {
  Stream stream;
  if (const State* state = state_before(number); state != nullptr) {
    stream.next = state->next;
    stream.begin = state->begin;
    stream.decompressor = state->decompressor->copy();
    if (stream.decompressor != nullptr) return stream;
    stream = {};
  }
  TITAN_ASSIGN_OR_RETURN(stream.decompressor, data_files::Decompressor::of(path_));
  return stream;
}

absl::Status CompressedText::read_on(Stream& stream) {
  keep_state(stream);
  TITAN_ASSIGN_OR_RETURN(const std::string text, decompress(stream));
  for (size_t part = 0; part < kParts; ++part) {
    Piece piece = stream.begin;
    const size_t begin = text.size() * part / kParts, end = text.size() * (part + 1) / kParts;
    piece.text = text.substr(begin, end - begin);
    stream.begin = piece_after(piece);
    stream.pieces.push_back(std::move(piece));
  }
  stream.next += kParts;
  stream.text_bytes += static_cast<int64_t>(text.size());
  while (stream.pieces.size() > 2 * kParts && stream.text_bytes > options_.kept_text) {
    stream.text_bytes -= static_cast<int64_t>(stream.pieces.front().text.size());
    stream.pieces.pop_front();
  }
  return absl::OkStatus();
}

// Decompresses the next four pieces.
absl::StatusOr<std::string> CompressedText::decompress(Stream& stream) {
  const int64_t at = stream.next * options_.piece_bytes;
  std::string input(static_cast<size_t>(std::min(options_.piece_bytes * kParts, file_->size() - at)), '\0');
  TITAN_RETURN_IF_ERROR(file_->read(at, static_cast<int64_t>(input.size()), input.data()));
  std::string text;
  std::string_view unused = input;
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const size_t got, stream.decompressor->decompress(unused, output_.data(), output_.size()));
    if (got == 0) break;
    text.append(output_.data(), got);
    if (static_cast<int64_t>(text.size()) > options_.max_text) {
      return too_dense(path_, static_cast<int64_t>(input.size()), at, options_.max_text);
    }
  }
  decompressed_ += static_cast<int64_t>(text.size());
  if (stream.next + kParts == pieces_) TITAN_RETURN_IF_ERROR(stream.decompressor->at_end());
  return text;
}

void CompressedText::keep_state(const Stream& stream) {
  const int64_t last = states_.empty() ? 0 : states_.back().begin.begin;
  if (stream.begin.begin < last + apart_) return;
  std::unique_ptr<data_files::Decompressor> copy = stream.decompressor->copy();
  if (copy == nullptr) return;
  states_.push_back({stream.next, stream.begin, std::move(copy)});
  if (states_.size() <= options_.max_states) return;
  apart_ *= 2;
  size_t kept = 0;
  for (size_t i = 1; i < states_.size(); i += 2) states_[kept++] = std::move(states_[i]);
  states_.resize(kept);
}

bool is_too_dense(const absl::Status& status) { return status.GetPayload(kTooDense).has_value(); }

}  // namespace titan::data
