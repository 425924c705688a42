// SPDX-License-Identifier: MIT
/// \file
/// From the distance of a key to the row of a table: clipping, with the direction in the name.
///
/// Backwards tables give the same answer wherever the table is symmetric, so the mistake goes unnoticed: T5,
/// Shaw and wav2vec2-BERT count key − query, DeBERTa query − key, and posenc has no default.
///
/// Golden values: tests/golden/relative.json.
#pragma once

#include <algorithm>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/required.hpp>

namespace posenc::inline v0_2 {

/// In which direction the rows of a relative table run.
enum class relative_direction : unsigned char {
  key_minus_query,  ///< row 0 is the farthest key *behind* the query: T5, Shaw, wav2vec2-BERT
  query_minus_key,  ///< row 0 is the farthest key *ahead* of the query: DeBERTa
};

/// A clipped relative distance. `left` and `right` are sides of the query in the text and mean the same in
/// either direction; left + right + 1 distances are told apart, and all beyond share the outermost rows:
///
///     key_minus_query:  row = clip(key − query, −left, right) + left
///     query_minus_key:  row = clip(query − key, −right, left) + right
///
/// The usual clip(i − j, −K, K) + K is left = right = K. wav2vec2-BERT: key_minus_query, left 64, right 8.
/// DeBERTa's clip(i − j + span, 0, 2·span − 1): query_minus_key, left span − 1, right span. Encodings that
/// take a clip check that neither side is negative.
struct relative_clip {
  required<relative_direction> direction;  ///< which way rows run; there is no default
  position left = 0;                       ///< farthest distance behind the query that has a row of its own
  position right = 0;                      ///< farthest distance ahead of the query that has a row of its own

  /// Rows of the table.
  [[nodiscard]] index_t rows() const noexcept { return static_cast<index_t>(left + right + 1); }

  /// The row of a key at `offset` = key − query.
  [[nodiscard]] index_t row(position offset) const noexcept {
    const position clipped = (std::clamp)(offset, -left, right);
    return static_cast<index_t>(direction == relative_direction::key_minus_query ? clipped + left
                                                                                 : right - clipped);
  }
};

namespace detail {
/// \throws std::invalid_argument when a clip is negative or the table has other than left + right + 1 rows.
inline void check_clip(const relative_clip& clip, index_t rows, const char* what) {
  require(clip.left >= 0 && clip.right >= 0, what, ": clips left ", clip.left, " and right ", clip.right,
          " must not be negative");
  require(clip.left <= position_limit && clip.right <= position_limit && clip.rows() == rows, what,
          ": a table of ", rows, " rows for clips left ", clip.left, " and right ", clip.right,
          ", which need left + right + 1 rows");
}
}  // namespace detail

}  // namespace posenc::inline v0_2
