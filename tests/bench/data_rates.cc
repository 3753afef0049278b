// data_rates FOLDER_WITH_TOKENIZER SCRATCH TEXT.jsonl [TEXT.txt] [TEXT.parquet] [TEXT.jsonl.gz]: prints how many of its
// own tokens per second the reader of one data-parallel rank among 1, 16, 256 and 4096 makes, for text that it reads
// alone, text with distributed row counting, and a token index; each in the files' order, shuffled and packed. The
// other ranks are only simulated: the counts file already holds their counts and lacks this rank's. Seconds are the
// thread's processor time, which other work on the machine changes little.
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>

#include "common/io/data_files/byte_source.h"
#include "common/io/data_files/token_manifest.h"
#include "worker/rank/data/rows/counted_rows.h"
#include "worker/rank/data/rows/open_rows.h"
#include "worker/rank/data/rows/row_stream.h"
#include "worker/rank/data/rows/token_rows.h"
#include "worker/rank/tools/data/tokenizing.h"

namespace {

using namespace titan::data;
constexpr int64_t kRow = 4097;
constexpr int kRanks[] = {1, 16, 256, 4096};

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

template <typename T>
T value(absl::StatusOr<T> result) {
  if (result.ok()) return *std::move(result);
  std::cerr << result.status() << "\n";
  std::exit(1);
}

std::unique_ptr<Tokenizer> load(const std::string& folder) { return value(Tokenizer::load(folder)); }

// Reads microbatches of one row per rank for two seconds, or until a limit: 2000 batches, or `max_rows` rows of all
// ranks.
void measure(const std::string& name, int ranks, const std::function<std::unique_ptr<RowSource>()>& open,
             int64_t max_rows = int64_t{1} << 40) {
  const double before = now();
  const std::unique_ptr<RowSource> rows = open();
  const int64_t rank = ranks / 2;
  double start = before;
  double first = 0;
  int64_t batches = 0;
  for (; batches < std::min<int64_t>(2000, max_rows / ranks) && (batches < 2 || now() - start < 2); ++batches) {
    value(rows->skip(rank));
    value(rows->next());
    value(rows->skip(ranks - rank - 1));
    value(rows->position());
    if (batches > 0) continue;
    first = now() - before;
    start = now();
  }
  const double each = (now() - start) / static_cast<double>(batches - 1);
  std::printf("| %s | %d | %.3f | %.2f | %.0f |\n", name.c_str(), ranks, first, each * 1e3,
              static_cast<double>(kRow - 1) / each);
  std::fflush(stdout);
}

// Restores the counts file without the counts that `rank` makes.
void forget(const std::string& counts, int64_t record_bytes, int rank, int ranks) {
  std::filesystem::copy_file(counts + ".all", counts, std::filesystem::copy_options::overwrite_existing);
  const auto records = static_cast<int64_t>(std::filesystem::file_size(counts)) / record_bytes;
  std::fstream file(counts, std::ios::binary | std::ios::in | std::ios::out);
  const std::string nothing(static_cast<size_t>(record_bytes), '\0');
  for (int64_t record = rank; record < records; record += ranks) {
    file.seekp(record * record_bytes).write(nothing.data(), record_bytes);
  }
}

// Measures text in the files' order, with and without distributed row counting.
void measure_order(const std::string& tokenizer, const std::string& scratch, const std::string& text, int64_t tokens) {
  const FileKind kind{.format = *titan::data_files::format_of_file(text), .blank_lines = true};
  const std::string counts = scratch + "/counts";
  const auto counted = [&](int rank, int ranks) {
    DocumentBlocks opened = value(DocumentBlocks::open({.files = {text}, .kind = kind}));
    return std::make_unique<CountedRows>(
        std::move(opened), load(tokenizer),
        CountedRows::Options{.row_tokens = kRow, .rank = rank, .ranks = ranks, .counts_file = counts});
  };
  std::filesystem::remove(counts);
  value(counted(0, 1)->skip(tokens / kRow + 1));  // Counts the whole text once.
  std::filesystem::copy_file(counts, counts + ".all", std::filesystem::copy_options::overwrite_existing);
  const std::string what =
      titan::data_files::is_compressed(text) ? std::filesystem::path(text).extension().string() : name(kind.format);
  for (const int ranks : kRanks) {
    measure(what + ", alone", ranks, [&] {
      return std::make_unique<RowStream>(DocumentReader({.files = {text}, .kind = kind}), load(tokenizer), kRow, true);
    });
    // Reads at most one pass, because in the next one everything is counted.
    measure(
        what + ", counted together", ranks,
        [&] {
          forget(counts, CountsFile<BlockCount>::kRecordBytes, ranks / 2, ranks);
          return counted(ranks / 2, ranks);
        },
        std::max<int64_t>(tokens / kRow, 3 * ranks));
  }
}

// Measures shuffled or packed text, with and without distributed row counting.
void measure_arranged_text(const std::string& tokenizer, const std::string& scratch, const std::string& text,
                           int64_t tokens, RowsWanted wanted, const std::string& name) {
  wanted.files = {text};
  wanted.kind = {.format = *titan::data_files::format_of_file(text), .blank_lines = true};
  wanted.tokenizer_folder = tokenizer;
  wanted.row_tokens = kRow;
  wanted.counts_folder = scratch + "/" + name;
  wanted.dp_size = 4;
  wanted.timeout = absl::ZeroDuration();
  std::filesystem::remove_all(wanted.counts_folder);
  // Two windows of 4,096 ranks span several passes.
  const int64_t documents = 2 * 4096 * DocumentLengths::kDocuments, all = 2000 * documents / kRow;
  const int64_t counted = std::min(all, 16 * tokens / kRow);
  value(value(open_rows(wanted, load(tokenizer))).rows->skip(counted));
  std::string counts;
  for (const auto& entry : std::filesystem::directory_iterator(wanted.counts_folder)) {
    if (entry.path().filename().string().starts_with("document-lengths-")) counts = entry.path();
  }
  std::filesystem::copy_file(counts, counts + ".all", std::filesystem::copy_options::overwrite_existing);
  for (const int ranks : kRanks) {
    wanted.dp_size = 1;
    measure(name + ", alone", ranks, [&] { return value(open_rows(wanted, load(tokenizer))).rows; });
    wanted.dp_size = ranks;
    wanted.dp_rank = ranks / 2;
    if (ranks < 4) continue;
    measure(
        name + ", counted together", ranks,
        [&] {
          forget(counts, CountsFile<DocumentLengths>::kRecordBytes, ranks / 2, ranks);
          return value(open_rows(wanted, load(tokenizer))).rows;
        },
        counted * 6 / 10);
  }
}

void measure_index(const std::string& tokenizer, const std::string& scratch) {
  const auto arranged = [&](const char* name, int ranks, RowsWanted wanted) {
    wanted.tokenizer_folder = tokenizer;
    wanted.row_tokens = kRow;
    wanted.counts_folder = scratch;
    measure(name, ranks, [&] { return value(open_rows(wanted, load(tokenizer))).rows; });
  };
  const std::vector<std::string> index = {scratch + "/index/" + titan::data_files::kTokenManifest};
  const FileKind tokens{.format = titan::data_files::DatasetFormat::kTitan};
  for (const int ranks : kRanks) {
    arranged("token index", ranks, {.files = index, .kind = tokens});
    arranged("token index, shuffled rows", ranks, {.files = index, .kind = tokens, .shuffle = Shuffle::kRows});
    arranged("token index, shuffled documents", ranks,
             {.files = index, .kind = tokens, .shuffle = Shuffle::kDocuments});
    arranged("token index, shuffled and packed", ranks,
             {.files = index, .kind = tokens, .shuffle = Shuffle::kDocuments, .packing_window = 1024});
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string tokenizer = argv[1], scratch = argv[2];
  titan::tools::TokenizeProgress progress;
  const auto made = value(titan::tools::tokenize({.tokenizer_folder = tokenizer,
                                                  .out = scratch + "/index",
                                                  .input = {titan::data_files::DatasetFormat::kJsonLines, {argv[3]}},
                                                  .threads = 2},
                                                 progress, [](const std::string&) {}));
  std::cout << made.tokens << " tokens of " << std::filesystem::file_size(argv[3]) << " bytes\n\n"
            << "| rows from | ranks | first batch s | batch ms | own tokens/s |\n|---|---|---|---|---|\n";
  for (int i = 3; i < argc; ++i) {
    const std::string kind = name(*titan::data_files::format_of_file(argv[i]));
    measure_order(tokenizer, scratch, argv[i], made.tokens);
    if (titan::data_files::is_compressed(argv[i])) continue;  // Compressed text is read only in its own order.
    measure_arranged_text(tokenizer, scratch, argv[i], made.tokens, {.shuffle = Shuffle::kDocuments},
                          kind + ", shuffled");
    measure_arranged_text(tokenizer, scratch, argv[i], made.tokens, {.packing_window = 1024}, kind + ", packed");
  }
  measure_index(tokenizer, scratch);
}
