#pragma once

#include "worker/rank/kernels/cuda/float8_numbers.h"
#include "worker/rank/kernels/cuda/rows.h"

// Implements worker/rank/kernels/float8_scales.h for teams, eight numbers at a time. Callers check takes() first.
namespace titan::kernels::device {

constexpr int kFloat8Threads = 256;

inline int64_t parts_of(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Finds the greatest magnitude of one part of the packs.
struct AmaxOfPart {
  static constexpr int64_t kPacks = 2048;
  Float8Amax a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t part) const {
    const int64_t first = part * kPacks, left = a.count / kVector - first;
    const uint16_t* x = a.x + first * kVector;
    const uint32_t most = team.fold(
        left < kPacks ? left : kPacks, 0U,
        [=](uint32_t so_far, int64_t pack) { return greatest_magnitude(so_far, load_16_bytes(x + pack * kVector)); },
        Maximum());
    team.once([&] { raise(a.amax, most); });
  }
};

constexpr int64_t kRun = 16;  // Rows that belong to one group.

TITAN_BODY int64_t source_of(const PaddedRows& spread, int64_t row) {
  return spread.source == nullptr ? row : spread.source[row];
}

// Finds the magnitudes of one tile's columns. A thread first reads eight columns of a run, eight rows at once. Then
// each column belongs to one thread.
struct AmaxOfColumns {
  static constexpr int64_t kRows = 128, kColumns = 256;
  static constexpr int64_t kRuns = kRows / kRun;
  static constexpr int64_t kFloats = kRuns * kColumns;
  static constexpr int kAtOnce = 8;
  Float8ColumnAmax a;
  int64_t down, across;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t i) const {
    const int64_t matrix = i / (down * across), within = i % (down * across);
    const int64_t row = within / across * kRows, column = within % across * kColumns;
    const int64_t columns = a.columns - column < kColumns ? a.columns - column : kColumns;
    const uint16_t* x = a.x + matrix * a.rows * a.columns + column;
    float* memory = team.memory();
    team.each(kRuns * (kColumns / kVector), [=, *this](int64_t item) {
      const int64_t run = item / (kColumns / kVector), first = item % (kColumns / kVector) * kVector;
      if (first >= columns) return;
      Words most[2] = {};
      for (int64_t r = row + run * kRun; r < row + (run + 1) * kRun; r += kAtOnce) {
        Words read[kAtOnce] = {};
        TITAN_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const int64_t source = r + j < a.rows ? source_of(a.spread, r + j) : -1;
          if (source >= 0) read[j] = load_16_bytes(x + source * a.columns + first);
        }
        TITAN_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          TITAN_UNROLL
          for (int k = 0; k < kVector; ++k) {
            most[k / 4].w[k % 4] = Maximum()(most[k / 4].w[k % 4], read[j].w[k / 2] >> k % 2 * 16 & 0x7fff);
          }
        }
      }
      store_16_bytes(memory + run * kColumns + first, most[0]);
      store_16_bytes(memory + run * kColumns + first + 4, most[1]);
    });
    team.barrier();
    team.each(columns, [=, *this](int64_t k) {
      int64_t group = a.spread.group == nullptr ? matrix : -1;
      uint32_t most = 0;
      for (int64_t run = 0; run < kRuns && row + run * kRun < a.rows; ++run) {
        const int64_t of_run = a.spread.group == nullptr ? matrix : a.spread.group[row / kRun + run];
        if (of_run != group) {
          if (group >= 0) raise(a.amax + group * a.columns + column + k, most);
          group = of_run;
          most = 0;
        }
        most = Maximum()(most, bits_of(memory[run * kColumns + k]));
      }
      if (group >= 0) raise(a.amax + group * a.columns + column + k, most);
    });
    team.barrier();
  }
};

struct CastPart {
  static constexpr int64_t kPacks = 1024;
  Float8Cast a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t part) const {
    const int64_t first = part * kPacks, left = a.count / kVector - first;
    const uint16_t* x = a.x + first * kVector;
    uint8_t* values = a.values + first * kVector;
    const float scale = scale_of(*a.amax, a.to);
    if (part == 0) team.once([&] { *a.inverse = 1 / scale; });
    team.each(left < kPacks ? left : kPacks, [=, format = a.to.format](int64_t pack) {
      const Pack<kVector> numbers = load<kVector>(x + pack * kVector);
      store_codes(values + pack * kVector, codes_of(
                                               numbers, [=](int) { return scale; }, format));
    });
  }
};

struct Float8Row {
  Float8Rows a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t row) const {
    const int64_t source = source_of(a.spread, row);
    uint8_t* values = a.values + row * a.columns;
    if (source < 0) {
      team.once([&] { a.inverse[row] = 1; });
      return team.each(a.columns / kVector, [=](int64_t pack) { store_codes(values + pack * kVector, Codes{}); });
    }
    const uint16_t* x = a.x + source * a.columns;
    const uint32_t most = team.fold(
        a.columns / kVector, 0U,
        [=](uint32_t so_far, int64_t pack) { return greatest_magnitude(so_far, load_16_bytes(x + pack * kVector)); },
        Maximum());
    const float scale = scale_of(widened(most), a.to);
    team.once([&] { a.inverse[row] = 1 / scale; });
    team.each(a.columns / kVector, [=, format = a.to.format](int64_t pack) {
      const Pack<kVector> numbers = load<kVector>(x + pack * kVector);
      store_codes(values + pack * kVector, codes_of(
                                               numbers, [=](int) { return scale; }, format));
    });
  }
};

// Transposes a tile of a matrix in a team's memory. A thread reads eight neighbours in each of four rows, holds their
// codes as eight words of one column each, and writes sixteen codes of a column.
struct Tile {
  static constexpr int64_t kRows = 128, kColumns = 64;
  static constexpr int kPitch = kRows / 4 + 1;  // Words per column. One more, so that columns use different banks.
  static constexpr int64_t kFloats = kColumns * kPitch;

  int64_t rows, columns;  // Size of the matrix.
  int64_t row, column;    // Start of the tile.
  uint8_t* to;            // Start of the tile's first column in the transposed matrix.

  // codes(row, column) returns eight codes of a row of the matrix.
  template <typename Team, typename Source>
  TITAN_BODY void turn(Team& team, uint32_t* memory, const Source& codes) const {
    team.each(kRows / 4 * (kColumns / kVector), [=, *this](int64_t i) {
      const int64_t four = i / (kColumns / kVector), eight = i % (kColumns / kVector);
      const int64_t first = row + 4 * four, left = column + kVector * eight;
      if (first >= rows || left >= columns) return;
      Codes of_rows[4];
      TITAN_UNROLL
      for (int r = 0; r < 4; ++r) of_rows[r] = codes(first + r, left);
      TITAN_UNROLL
      for (int k = 0; k < kVector; ++k) {
        const auto byte = [&](int r) { return of_rows[r].w[k / 4] >> k % 4 * 8 & 0xff; };
        memory[(kVector * eight + k) * kPitch + four] = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
      }
    });
    team.barrier();
    team.each(kColumns * (kRows / 16), [=, *this](int64_t i) {
      const int64_t k = i / (kRows / 16), sixteen = i % (kRows / 16);
      if (column + k >= columns || row + 16 * sixteen >= rows) return;
      const uint32_t* words = memory + k * kPitch + 4 * sixteen;
      store_16_bytes(to + k * rows + 16 * sixteen, {{words[0], words[1], words[2], words[3]}});
    });
    team.barrier();
  }
};

// Tiles of matrices [batch, rows, columns], one per team.
struct Tiles {
  Tiles(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), down(parts_of(rows, Tile::kRows)), across(parts_of(columns, Tile::kColumns)) {}

  int64_t rows, columns;
  int64_t down, across;

  TITAN_BODY int64_t matrix(int64_t i) const { return i / (down * across); }
  TITAN_BODY Tile tile(int64_t i, uint8_t* turned) const {
    const int64_t within = i % (down * across);
    const int64_t row = within / across * Tile::kRows, column = within % across * Tile::kColumns;
    return {rows, columns, row, column, turned + (matrix(i) * columns + column) * rows + row};
  }
};

struct TurnColumns {
  static constexpr int64_t kRuns = Tile::kRows / kRun;
  static constexpr int64_t kFloats = kRuns * Tile::kColumns + Tile::kFloats;
  Float8Columns a;
  Tiles tiles;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t i) const {
    const int64_t matrix = tiles.matrix(i);
    const Tile tile = tiles.tile(i, a.values);
    const bool grouped = a.spread.group != nullptr;
    float* scales = team.memory();  // Scales of the tile's columns, one set per run if rows are spread.
    team.each((grouped ? kRuns : 1) * Tile::kColumns, [=, *this](int64_t item) {
      const int64_t run = item / Tile::kColumns, k = item % Tile::kColumns;
      if (tile.column + k >= a.columns || tile.row + run * kRun >= a.rows) return;
      const int64_t group = grouped ? a.spread.group[tile.row / kRun + run] : matrix;
      scales[item] = group < 0 ? 0 : scale_of(a.amax[group * a.columns + tile.column + k], a.to);
    });
    team.barrier();
    const uint16_t* x = a.x + matrix * a.rows * a.columns;
    const auto codes = [=, *this](int64_t row, int64_t column) {
      const int64_t source = source_of(a.spread, row);
      if (source < 0) return Codes{};
      const float* of_columns =
          scales + (grouped ? (row - tile.row) / kRun * Tile::kColumns : 0) + (column - tile.column);
      return codes_of(
          load<kVector>(x + source * a.columns + column), [=](int k) { return of_columns[k]; }, a.to.format);
    };
    tile.turn(team, reinterpret_cast<uint32_t*>(scales + kRuns * Tile::kColumns), codes);
  }
};

// Writes 1 / scale of each amax.
struct InvertScales {
  const float* amax;
  float* inverse;
  int64_t count;
  Float8Format to;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t part) const {
    const int64_t first = part * kFloat8Threads, left = count - first;
    team.each(left < kFloat8Threads ? left : kFloat8Threads,
              [=, *this](int64_t i) { inverse[first + i] = 1 / scale_of(amax[first + i], to); });
  }
};

// Uses one thread per row. Each searches all groups.
struct FindSpread {
  FindPaddedRows a;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t part) const {
    const int64_t first = part * kFloat8Threads, left = a.rows - first;
    team.each(left < kFloat8Threads ? left : kFloat8Threads, [=, *this](int64_t i) {
      const int64_t row = first + i;
      int64_t begin = 0, spread = 0, group = 0;  // Start of the group that may contain the row.
      while (group < a.groups && row >= spread + up(a.ends[group] - begin)) {
        spread += up(a.ends[group] - begin);
        begin = a.ends[group++];
      }
      const int64_t end = group < a.groups ? a.ends[group] : a.count, source = begin + row - spread;
      const bool there = source < end;
      a.source[row] = there && group < a.groups ? static_cast<int32_t>(source) : -1;
      if (row % kRun == 0) a.group[row / kRun] = group < a.groups ? static_cast<int32_t>(group) : -1;
      if (there) a.places[source] = static_cast<int32_t>(row);
    });
    if (part != 0) return;
    team.once([&] {
      int64_t begin = 0, spread = 0;
      for (int64_t group = 0; group < a.groups; begin = a.ends[group++]) {
        spread += up(a.ends[group] - begin);
        a.spread_ends[group] = static_cast<int32_t>(spread);
      }
    });
  }

 private:
  TITAN_BODY static int64_t up(int64_t rows) { return (rows + kRun - 1) / kRun * kRun; }
};

struct TurnTile {
  TransposeBytes a;
  Tiles tiles;

  template <typename Team>
  TITAN_BODY void operator()(Team& team, int64_t i) const {
    const auto codes = [=, *this](int64_t row, int64_t column) {
      return load_codes(a.from + row * a.columns + column);
    };
    tiles.tile(i, a.to).turn(team, reinterpret_cast<uint32_t*>(team.memory()), codes);
  }
};

inline bool takes(const Float8Amax& a) { return a.count % kVector == 0 && lie_at_16(a.x); }
inline bool takes(const FindPaddedRows& a) { return a.rows % kRun == 0 && a.rows < INT32_MAX; }
inline bool takes(const Float8ColumnAmax& a) { return a.columns % kVector == 0 && lie_at_16(a.x); }
inline bool takes(const Float8Cast& a) { return a.count % kVector == 0 && lie_at_16(a.x, a.values); }
inline bool takes(const Float8Rows& a) { return a.columns % kVector == 0 && lie_at_16(a.x, a.values); }
inline bool takes(const Float8Columns& a) {
  return a.rows % 16 == 0 && a.columns % kVector == 0 && lie_at_16(a.x, a.values);
}
inline bool takes(const TransposeBytes& a) {
  return a.rows % 16 == 0 && a.columns % kVector == 0 && lie_at_16(a.from, a.to);
}

template <typename Grid>
void float8(const Float8Amax& a, Grid& grid) {
  grid(AmaxOfPart{a}, parts_of(a.count / kVector, AmaxOfPart::kPacks), kFloat8Threads);
}

template <typename Grid>
void float8(const Float8ColumnAmax& a, Grid& grid) {
  const int64_t down = parts_of(a.rows, AmaxOfColumns::kRows), across = parts_of(a.columns, AmaxOfColumns::kColumns);
  grid(AmaxOfColumns{a, down, across}, a.batch * down * across, kFloat8Threads, AmaxOfColumns::kFloats);
}

template <typename Grid>
void float8(const Float8Cast& a, Grid& grid) {
  // At least one part runs, because it writes the scale.
  const int64_t parts = parts_of(a.count / kVector, CastPart::kPacks);
  grid(CastPart{a}, parts > 0 ? parts : 1, kFloat8Threads);
}

template <typename Grid>
void float8(const Float8Rows& a, Grid& grid) {
  grid(Float8Row{a}, a.rows, threads_for(a.columns / kVector));
}

template <typename Grid>
void float8(const Float8Columns& a, Grid& grid) {
  const Tiles tiles(a.rows, a.columns);
  grid(TurnColumns{a, tiles}, a.batch * tiles.down * tiles.across, kFloat8Threads, TurnColumns::kFloats);
  const int64_t scales = (a.spread.group == nullptr ? a.batch : a.groups) * a.columns;
  grid(InvertScales{a.amax, a.inverse, scales, a.to}, parts_of(scales, kFloat8Threads), kFloat8Threads);
}

template <typename Grid>
void float8(const FindPaddedRows& a, Grid& grid) {
  grid(FindSpread{a}, parts_of(a.rows, kFloat8Threads), kFloat8Threads);
}

template <typename Grid>
void float8(const TransposeBytes& a, Grid& grid) {
  const Tiles tiles(a.rows, a.columns);
  grid(TurnTile{a, tiles}, tiles.down * tiles.across, kFloat8Threads, Tile::kFloats);
}

}  // namespace titan::kernels::device
